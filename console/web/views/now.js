// What the server does now: charts of the last minutes, who uses it, flow control, and
// whether it has too much to do.
import { html, usePoll, useStyle, setQuery, Failure, Loading, bytes } from "../lib/ui.js";
import { get } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { useRecorder, column, byVerb, spanOf } from "../lib/recorder.js";
import { Snippet, toYAML, visible } from "../lib/snippet.js";

const number = (v) => (v === undefined ? "–" : v >= 1000 ? (v / 1000).toFixed(v >= 10000 ? 0 : 1) + "k" : v >= 10 || v === 0 || Number.isInteger(v) ? v.toFixed(0) : v.toFixed(v >= 1 ? 1 : 2));
const perSecond = (v) => number(v) + "/s";
const seconds = (v) => (v === undefined ? "–" : v >= 1 ? v.toFixed(v >= 10 ? 0 : 1) + " s" : v >= 0.001 ? (v * 1000).toFixed(v >= 0.01 ? 0 : 1) + " ms" : v === 0 ? "0" : (v * 1e6).toFixed(0) + " µs");
const percent = (v) => (v === undefined ? "–" : v.toFixed(v >= 10 || v === 0 ? 0 : 1) + " %");

export default function Now({ route, features }) {
  useStyle("lib/isolate.css");
  useStyle("views/now.css");
  const recorder = useRecorder();
  return html`<div class="now isolate">
    <header class="head">
      <h1>Now</h1>
      <${State} ...${recorder} />
    </header>
    ${features.top && html`<${Storm} />`}
    <${Charts} recorder=${recorder} features=${features} />
    ${features.top && html`<${Users} query=${route.query} />`}
    <${Levels} recorder=${recorder} />
    ${!features.kelson && html`<p class="quiet">This server is not Kelson: what is shown here comes from its metrics alone. Who uses it, and what holds its memory, they do not tell.</p>`}
  </div>`;
}

// State says whether the numbers are live, and why not.
function State({ samples, error, paused, pause }) {
  const away = error && samples.length > 0;
  const [kind, text] = paused ? ["quiet", "paused"] : away ? ["bad", "no answer"] : samples.length ? ["good", "live"] : error ? ["bad", error.code === 403 ? "not allowed" : "no answer"] : ["quiet", "starting"];
  return html`<span class="state"><span role="status" class=${kind}><i aria-hidden="true">●</i> ${text}</span>
    <button onClick=${pause} aria-pressed=${paused}>${paused ? "Go on" : "Pause"}</button></span>`;
}

function Storm() {
  const { value: storm, error } = usePoll((signal) => get("/debug/kelson/storm", {}, { signal }), 5000);
  if (!storm) return html`<${Failure} error=${error} />`;
  return html`<section class=${"storm panel" + (storm.overloaded ? " pressed" : "")} aria-label="Load in words">
    ${storm.words.map((words, i) => html`<p key=${i}><bdi>${visible(words)}</bdi></p>`)}
    ${storm.apply?.length > 0 && html`<${Snippet} label="Objects that limit the client; apply them with kubectl, delete them when it is mended" text=${toYAML(...storm.apply)} />`}
  </section>`;
}

function Charts({ recorder: { samples, error }, features }) {
  if (!samples.length && error?.code === 403 && !features.kelson) return html`<p class="quiet">The charts are drawn from the metrics of the server, which you may not read: <bdi>${visible(error.message)}</bdi></p>`;
  if (!samples.length) return error ? html`<${Failure} error=${error} />` : html`<${Loading} what="Reading the metrics" />`;
  const last = samples.at(-1);
  const d = last.derived;
  const times = samples.map((s) => s.at);
  const of = (name) => column(samples, (s) => s.derived[name]);
  const parts = [...last.held.keys()].sort();
  const memory = [
    ...parts.map((part) => ({ name: part, values: column(samples, (s) => s.held.get(part)) })),
    { name: "heap in use", values: column(samples, (s) => s.heap) },
    { name: "process", values: column(samples, (s) => s.resident) },
  ];
  return html`
    ${error && html`<${Failure} error=${error} />`}
    <div class="panels charts">
      <${Chart} title="Requests" times=${times} format=${perSecond} headline=${d.all === undefined ? "–" : perSecond(d.all)}
        series=${[{ name: "reads", values: of("reads") }, { name: "writes", values: of("changes") }, { name: "long-running", values: of("watchesBegun") }]} note=${features.top && "Requests for resources, without those that were denied. All are counted below."} />
      <${Chart} title="Latency" times=${times} format=${seconds} headline=${"p99 " + seconds(d.p99)} series=${[{ name: "p50", values: of("p50") }, { name: "p99", values: of("p99") }]} />
      <${Chart} title="Errors" times=${times} format=${perSecond} headline=${d.failed === undefined ? "–" : perSecond(d.failed + d.refused)}
        series=${[{ name: "5xx: failed", values: of("failed") }, { name: "429: refused", values: of("refused") }, { name: "other 4xx: declined", values: of("declined") }]} />
      <${Chart} title="Processor" times=${times} format=${percent} headline=${percent(d.cpu)} series=${[{ name: "process", values: of("cpu") }]} note="100 % is one busy processor." />
      <${Chart} title="Memory by holder" times=${times} format=${bytes} headline=${last.resident === undefined ? "–" : bytes(last.resident)} series=${memory} note=${last.limit && "The limit of the server is " + bytes(last.limit) + "."} />
      <${Chart} title="Store" times=${times} format=${seconds} headline=${last.store === undefined ? "–" : bytes(last.store)}
        series=${[{ name: "write, p50", values: of("write50") }, { name: "write, p99", values: of("write99") }]} note="The number above is its size." />
      ${features.top ? html`<${Watches} />` : last.watches !== undefined && html`<${Chart} title="Watches" times=${times} format=${number} headline=${number(last.watches)} series=${[{ name: "open", values: column(samples, (s) => s.watches) }]} />`}
      <${Verbs} samples=${samples} />
    </div>`;
}

// Watches are known by the accounts of Kelson; kept here for the chart.
const open = { times: [], values: [], events: [] };
function Watches() {
  const { value: top } = usePoll(async (signal) => {
    const top = await get("/debug/kelson/top", { by: "verb", rows: 50 }, { signal });
    open.times.push(Date.now() / 1000);
    open.values.push(top.total.openWatches);
    if (open.times.length > 150) [open.times, open.values].forEach((a) => a.shift());
    return top;
  }, 3000);
  if (!top) return null;
  return html`<${Chart} title="Watches" times=${open.times} format=${number} headline=${number(top.total.openWatches)} series=${[{ name: "open", values: open.values }]} />`;
}

const dimensions = [
  ["user", "Users"],
  ["agent", "Clients"],
  ["resource", "Resources"],
  ["namespace", "Namespaces"],
];
const all = ["user", "agent", "resource", "namespace", "level", "verb"];
const sorts = {
  cpu: ["CPU", (r) => r.cpuSeconds, (r) => percent(r.cpuPercent)],
  requests: ["requests", (r) => r.requests, (r) => perSecond(r.requestsPerSecond)],
  bytes: ["bytes sent", (r) => r.bytesOut, (r, s) => bytes(r.bytesOut / Math.max(s, 0.001)) + "/s"],
  memory: ["memory", (r) => r.memoryBytes, (r) => bytes(r.memoryBytes)],
  seats: ["seats", (r) => r.seats, (r) => number(r.seats)],
  watches: ["open watches", (r) => r.openWatches, (r) => number(r.openWatches)],
  writes: ["writes of the store", (r) => r.storeWrites, (r, s) => perSecond(r.storeWrites / Math.max(s, 0.001))],
  refused: ["refused requests", (r) => r.refused, (r) => number(r.refused)],
};

// Users shows who uses the server. A click on a name shows what is behind it.
function Users({ query }) {
  const only = Object.fromEntries(all.filter((d) => query.get(d)).map((d) => [d, query.get(d)]));
  const sort = sorts[query.get("sort")] ? query.get("sort") : "cpu";
  const key = JSON.stringify([only, sort]);
  const { value, error } = usePoll(
    async (signal) => {
      const tops = await Promise.all(dimensions.map(([by]) => get("/debug/kelson/top", { by, sort, rows: 8, ...only }, { signal })));
      return { key, tops };
    },
    4000,
    [key],
  );
  return html`<section aria-label="Who uses the server">
    <div class="tools">
      <h2>Who uses the server</h2>
      <label>by <select value=${sort} onChange=${(e) => setQuery({ sort: e.target.value })}>${Object.entries(sorts).map(([name, [text]]) => html`<option value=${name}>${text}</option>`)}</select></label>
      ${Object.entries(only).map(
        ([d, name]) => html`<button key=${d} class="chip" onClick=${() => setQuery({ [d]: "" })} aria-label=${`No longer only ${d} ${name}`}>${d} <bdi>${visible(name)}</bdi> <span aria-hidden="true">✕</span></button>`,
      )}
      ${Object.keys(only).length === 0 && html`<small>of the last seconds; choose a name to see what is behind it</small>`}
    </div>
    <${Failure} error=${error} />
    ${!value && !error && html`<${Loading} />`}
    ${value && html`<div class="panels tops">${value.tops.map((top, i) => html`<${Top} key=${top.by} title=${dimensions[i][1]} top=${top} sort=${sort} only=${only} />`)}</div>`}
  </section>`;
}

function Top({ title, top, sort, only }) {
  const [text, value, show] = sorts[sort];
  const most = Math.max(...top.rows.map(value), 0);
  const rows = [...top.rows, ...(top.others ? [{ ...top.others, rest: true }] : []), ...(top.hidden ? [{ ...top.hidden, rest: true }] : [])];
  return html`<section class="panel top" aria-label=${title}>
    <table>
      <caption><h3>${title}</h3></caption>
      <thead><tr><th scope="col">name</th><th scope="col" class="number">${sort === "requests" ? "CPU" : "requests"}</th><th scope="col" class="number">${text}</th></tr></thead>
      <tbody>
        ${rows.map(
          (r) => html`<tr key=${r.name}>
            <th scope="row">
              ${r.rest || only[top.by]
                ? html`<bdi class="name">${visible(r.name)}</bdi>`
                : html`<button class="plain name" onClick=${() => setQuery({ [top.by]: r.name }, false)} title=${r.name}><bdi>${visible(r.name)}</bdi></button>`}
              <span class="share" aria-hidden="true"><${Share} of=${most > 0 && !r.rest ? value(r) / most : 0} /></span>
            </th>
            <td class="number">${sort === "requests" ? percent(r.cpuPercent) : perSecond(r.requestsPerSecond)}</td>
            <td class="number">${show(r, top.seconds)}</td>
          </tr>`,
        )}
        ${rows.length === 0 && html`<tr><td colspan="3" class="quiet">Nothing in the last seconds.</td></tr>`}
      </tbody>
    </table>
  </section>`;
}

// Share is a bar; widths are set by script, which the page's policy allows.
const Share = ({ of, kind }) => html`<i class=${kind} ref=${(e) => e && (e.style.width = Math.min(100, Math.max(0, of * 100)).toFixed(1) + "%")}></i>`;

// Levels are the priority levels: how full they are.
function Levels({ recorder: { samples } }) {
  const levels = samples.at(-1)?.levels || [];
  if (!levels.length) return null;
  const before = samples.at(-spanOf - 1) || samples[0];
  return html`<section aria-label="Priority levels">
    <h2>Flow control</h2>
    <div class="scroll">
      <table class="levels">
        <thead><tr><th scope="col">priority level</th><th scope="col">seats</th><th scope="col" class="number">used</th><th scope="col" class="number">of</th><th scope="col" class="number">waiting</th><th scope="col" class="number">refused, last minute</th></tr></thead>
        <tbody>
          ${levels.map((l) => {
            const exempt = l.nominal === 0 && l.name === "exempt";
            const refused = l.refused - (before.levels.find((b) => b.name === l.name)?.refused || 0);
            const fill = exempt ? 0 : l.used / Math.max(l.seats, 1);
            return html`<tr key=${l.name}>
              <th scope="row"><bdi>${visible(l.name)}</bdi></th>
              <td class="wide"><span class="meter" role="meter" aria-label=${"Seats of " + l.name} aria-valuemin="0" aria-valuemax=${exempt ? l.used : l.seats} aria-valuenow=${l.used}><${Share} of=${fill} kind=${fill >= 1 ? "full" : ""} /></span></td>
              <td class="number">${number(l.used)}</td>
              <td class="number">${exempt ? "∞" : number(l.seats)}</td>
              <td class=${"number" + (l.waiting ? " warn" : "")}>${number(l.waiting)}</td>
              <td class=${"number" + (refused > 0 ? " bad" : "")}>${number(Math.max(0, refused))}</td>
            </tr>`;
          })}
        </tbody>
      </table>
    </div>
  </section>`;
}

// Verbs is the latency of the last minute by verb.
function Verbs({ samples }) {
  const rows = samples.length < 2 ? [] : byVerb(samples.at(-1), samples.at(-spanOf - 1) || samples[0]);
  return html`<section class="panel chart" aria-label="Latency by verb">
    <header><h2>Latency by verb, last minute</h2></header>
    <table>
      <caption class="hidden">Latency by verb, last minute</caption>
      <thead><tr><th scope="col">verb</th><th scope="col" class="number">requests</th><th scope="col" class="number">p50</th><th scope="col" class="number">p99</th><th scope="col" class="number">failed</th></tr></thead>
      <tbody>
        ${rows.map((r) => html`<tr key=${r.verb}><th scope="row"><bdi>${visible(r.verb.toLowerCase())}</bdi></th><td class="number">${perSecond(r.rate)}</td><td class="number">${r.long ? "–" : seconds(r.p50)}</td><td class="number">${r.long ? "–" : seconds(r.p99)}</td><td class=${"number" + (r.failed ? " bad" : "")}>${r.failed}</td></tr>`)}
        ${rows.length === 0 && html`<tr><td colspan="5" class="quiet">There were no requests for resources.</td></tr>`}
      </tbody>
    </table>
  </section>`;
}
