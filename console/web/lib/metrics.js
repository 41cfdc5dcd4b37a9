// Reading the metrics of a server: the text that Prometheus reads.

// parseMetrics returns the samples of the wanted families: {name: [{labels, value}]}.
export function parseMetrics(text, wanted) {
  const out = {};
  for (const name of wanted) out[name] = [];
  for (let start = 0; start < text.length; ) {
    let end = text.indexOf("\n", start);
    if (end < 0) end = text.length;
    const at = start;
    start = end + 1;
    if (at === end || text[at] === "#") continue;
    let n = at;
    for (let c = text.charCodeAt(n); n < end && c !== 123 && c !== 32; c = text.charCodeAt(++n)); // { and space
    const into = out[text.slice(at, n)];
    if (!Array.isArray(into)) continue;
    const labels = {};
    if (text[n] === "{") n = parseLabels(text, n + 1, end, labels);
    const value = parseFloat(text.slice(n, end).trim().replace("Inf", "Infinity"));
    if (!Number.isNaN(value)) into.push({ labels, value });
  }
  return out;
}

// parseLabels reads labels up to the closing brace, and returns where they end.
function parseLabels(text, n, end, labels) {
  while (n < end && text[n] !== "}") {
    const is = text.indexOf("=", n);
    if (is < 0 || is >= end) return end;
    const name = text.slice(n, is).trim();
    let close = is + 2;
    for (let c = text.charCodeAt(close); close < end && c !== 34; c = text.charCodeAt(++close)) if (c === 92) close++; // " and \\
    const value = text.slice(is + 2, close);
    labels[name] = value.includes("\\") ? value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c)) : value;
    n = close;
    for (n++; text[n] === "," || text[n] === " "; n++);
  }
  return n + 1;
}

// sumBy adds up samples by the key that a function gives for their labels; no key leaves a
// sample out.
export function sumBy(samples, key) {
  const sums = new Map();
  for (const { labels, value } of samples || []) {
    const k = key(labels);
    if (k !== undefined) sums.set(k, (sums.get(k) || 0) + value);
  }
  return sums;
}

// histograms adds up the buckets of a histogram by a key: Map of key to Map of bound to
// cumulated count.
export function histograms(samples, key) {
  const out = new Map();
  for (const { labels, value } of samples || []) {
    const k = key(labels);
    if (k === undefined) continue;
    let buckets = out.get(k);
    if (!buckets) out.set(k, (buckets = new Map()));
    const bound = parseFloat(labels.le.replace("Inf", "Infinity"));
    buckets.set(bound, (buckets.get(bound) || 0) + value);
  }
  return out;
}

// between is what came into a histogram since an earlier state of it.
export function between(now, before) {
  const out = new Map();
  for (const [bound, count] of now || []) out.set(bound, Math.max(0, count - (before?.get(bound) || 0)));
  return out;
}

// quantile of a histogram, in its unit; undefined if it is empty. Above the last bound
// nothing is known, and that bound is returned.
export function quantile(buckets, q) {
  const bounds = [...buckets.keys()].sort((a, b) => a - b);
  const total = bounds.length ? buckets.get(bounds.at(-1)) : 0;
  if (!total) return undefined;
  const rank = q * total;
  let below = 0, from = 0;
  for (const bound of bounds) {
    const count = buckets.get(bound);
    if (count >= rank) {
      if (bound === Infinity) return from;
      return from + ((bound - from) * (rank - below)) / Math.max(count - below, 1e-9);
    }
    below = count;
    from = bound;
  }
  return from;
}

// countOf is how many observations a histogram has.
export const countOf = (buckets) => (buckets.size ? buckets.get(Math.max(...buckets.keys())) : 0);
