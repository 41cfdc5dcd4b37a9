// Numbers of the server over the last minutes, from its metrics.
import { request } from "./api.js";
import { useState, useEffect } from "./ui.js";
import { parseMetrics, sumBy, histograms, between, quantile, countOf } from "./metrics.js";

const wanted = [
  "apiserver_request_total",
  "apiserver_request_duration_seconds_bucket",
  "etcd_request_duration_seconds_bucket",
  "apiserver_storage_size_bytes",
  "apiserver_storage_db_total_size_in_bytes",
  "apiserver_longrunning_requests",
  "apiserver_flowcontrol_current_executing_seats",
  "apiserver_flowcontrol_current_limit_seats",
  "apiserver_flowcontrol_nominal_limit_seats",
  "apiserver_flowcontrol_current_inqueue_requests",
  "apiserver_flowcontrol_rejected_requests_total",
  "kelson_memory_held_bytes",
  "kelson_memory_limit_bytes",
  "go_memstats_heap_inuse_bytes",
  "process_resident_memory_bytes",
  "process_cpu_seconds_total",
  "process_start_time_seconds",
];

const capacity = 150; // samples
const period = 2000; // milliseconds
// spanOf is how many samples back the table by verb looks.
export const spanOf = 30;

// Long requests are not slow ones.
const isLong = (verb) => verb === "WATCH" || verb === "CONNECT" || verb === "WATCHLIST" || verb === "PROXY";
const isRead = (verb) => verb === "GET" || verb === "LIST" || verb === "HEAD";

function read(text) {
  const m = parseMetrics(text, wanted);
  const one = (name) => (m[name].length ? m[name].reduce((a, s) => a + s.value, 0) : undefined);
  const seats = sumBy(m.apiserver_flowcontrol_current_limit_seats, (l) => l.priority_level);
  const nominal = sumBy(m.apiserver_flowcontrol_nominal_limit_seats, (l) => l.priority_level);
  const used = sumBy(m.apiserver_flowcontrol_current_executing_seats, (l) => l.priority_level);
  const waiting = sumBy(m.apiserver_flowcontrol_current_inqueue_requests, (l) => l.priority_level);
  const refused = sumBy(m.apiserver_flowcontrol_rejected_requests_total, (l) => l.priority_level);
  const names = [...new Set([...nominal.keys(), ...seats.keys(), ...used.keys()])].sort();
  return {
    at: Date.now() / 1000,
    started: one("process_start_time_seconds"),
    requests: sumBy(m.apiserver_request_total, (l) => l.verb),
    failed: sumBy(m.apiserver_request_total, (l) => (l.code >= "500" ? l.verb : undefined)),
    codes: sumBy(m.apiserver_request_total, (l) => (l.code === "429" ? "429" : l.code?.[0])),
    latency: histograms(m.apiserver_request_duration_seconds_bucket, (l) => (isLong(l.verb) ? undefined : l.verb)),
    writes: histograms(m.etcd_request_duration_seconds_bucket, (l) => (/^(create|update|delete|txn|put|optimisticPut|optimisticDelete)/i.test(l.operation || l.type || "") ? "write" : undefined)).get("write") || new Map(),
    store: one("apiserver_storage_size_bytes") ?? one("apiserver_storage_db_total_size_in_bytes"),
    watches: sumBy(m.apiserver_longrunning_requests, (l) => (l.verb === "WATCH" ? "watch" : undefined)).get("watch"),
    held: sumBy(m.kelson_memory_held_bytes, (l) => l.part),
    limit: one("kelson_memory_limit_bytes"),
    heap: one("go_memstats_heap_inuse_bytes"),
    resident: one("process_resident_memory_bytes"),
    cpu: one("process_cpu_seconds_total"),
    levels: names.map((name) => ({ name, seats: seats.get(name) ?? nominal.get(name) ?? 0, nominal: nominal.get(name) ?? 0, used: used.get(name) || 0, waiting: waiting.get(name) || 0, refused: refused.get(name) || 0 })),
  };
}

const merged = (byVerb) => {
  const all = new Map();
  for (const buckets of byVerb.values()) for (const [bound, n] of buckets) all.set(bound, (all.get(bound) || 0) + n);
  return all;
};
const total = (sums, verbs = () => true) => [...sums].reduce((a, [verb, n]) => (verbs(verb) ? a + n : a), 0);

// derive returns what happened between two samples; nothing if the server has started again
// or the page slept.
function derive(now, before) {
  const seconds = now.at - before.at;
  if (now.started !== before.started || seconds > 15 || seconds <= 0) return {};
  const rate = (a, b) => Math.max(0, a - b) / seconds;
  const latency = between(merged(now.latency), merged(before.latency));
  const writes = between(now.writes, before.writes);
  const sum = (key, verbs) => rate(total(now[key], verbs), total(before[key], verbs));
  return {
    reads: sum("requests", isRead),
    changes: sum("requests", (v) => !isRead(v) && !isLong(v)),
    watchesBegun: sum("requests", isLong),
    all: sum("requests"),
    refused: rate(now.codes.get("429") || 0, before.codes.get("429") || 0),
    failed: rate(now.codes.get("5") || 0, before.codes.get("5") || 0),
    declined: rate(now.codes.get("4") || 0, before.codes.get("4") || 0),
    p50: quantile(latency, 0.5),
    p99: quantile(latency, 0.99),
    write50: quantile(writes, 0.5),
    write99: quantile(writes, 0.99),
    cpu: now.cpu === undefined ? undefined : 100 * rate(now.cpu, before.cpu),
  };
}

// byVerb is what the requests of each verb took between two samples.
export function byVerb(now, before) {
  const seconds = now.at - before.at;
  if (seconds <= 0 || now.started !== before.started) return [];
  return [...now.requests]
    .map(([verb, n]) => {
      const took = between(now.latency.get(verb), before.latency.get(verb));
      const since = Math.max(0, n - (before.requests.get(verb) || 0));
      return { verb, rate: since / seconds, failed: Math.max(0, (now.failed.get(verb) || 0) - (before.failed.get(verb) || 0)), p50: quantile(took, 0.5), p99: quantile(took, 0.99), count: countOf(took), long: isLong(verb) };
    })
    .filter((r) => r.rate > 0)
    .sort((a, b) => b.rate - a.rate);
}

// The samples outlive the view, so that who comes back sees what was.
const samples = [];
let paused = false;

function add(sample) {
  const before = samples.at(-1);
  sample.derived = before ? derive(sample, before) : {};
  samples.push(sample);
  if (samples.length > capacity) samples.shift();
}

// column returns a number of all samples, for a chart.
export const column = (all, of) => all.map((s) => of(s) ?? null);

// useRecorder takes samples while the view is shown and visible: {samples, error, paused,
// pause(), took}. A server whose metrics are slow to read is asked less often.
export function useRecorder() {
  const [state, setState] = useState({ samples, error: undefined });
  useEffect(() => {
    const abort = new AbortController();
    let timer;
    const turn = async () => {
      let wait = period;
      if (!document.hidden && !paused) {
        const began = performance.now();
        try {
          const text = await (await request("/metrics", { accept: "text/plain", signal: abort.signal })).text();
          const took = performance.now() - began;
          add(read(text));
          wait = Math.max(period, 2 * took);
          setState({ samples, size: text.length, took, error: undefined });
        } catch (error) {
          if (!abort.signal.aborted) setState((s) => ({ ...s, error }));
        }
      }
      if (!abort.signal.aborted) timer = setTimeout(turn, wait);
    };
    turn();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, []);
  return { ...state, paused, pause: () => ((paused = !paused), setState((s) => ({ ...s }))) };
}
