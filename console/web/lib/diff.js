// Differences of texts by lines, merging of two changes of one text, and their views.
import { html, useState } from "./ui.js";
import { loadStyle } from "./style.js";

await loadStyle("lib/diff.css");

// maxDistance is how many lines may differ before a text counts as rewritten.
const maxDistance = 1500;

// diff returns where two arrays of lines differ: [{a, aEnd, b, bEnd}], in order.
export function diff(a, b) {
  let begin = 0, end = 0;
  while (begin < a.length && begin < b.length && a[begin] === b[begin]) begin++;
  while (end < a.length - begin && end < b.length - begin && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const n = a.length - begin - end, m = b.length - begin - end;
  if (!n && !m) return [];
  if (!n || !m) return [{ a: begin, aEnd: begin + n, b: begin, bEnd: begin + m }];
  // The shortest way of deletions and insertions, after Myers.
  const most = Math.min(n + m, maxDistance), size = 2 * most + 2;
  let v = new Int32Array(size + 1);
  const trace = [];
  let found = -1;
  search: for (let d = 0; d <= most; d++) {
    trace.push(v.slice(most - d, most + d + 2));
    for (let k = -d; k <= d; k += 2) {
      let x = k === -d || (k !== d && v[most + k - 1] < v[most + k + 1]) ? v[most + k + 1] : v[most + k - 1] + 1;
      let y = x - k;
      while (x < n && y < m && a[begin + x] === b[begin + y]) x++, y++;
      v[most + k] = x;
      if (x >= n && y >= m) {
        found = d;
        break search;
      }
    }
  }
  if (found < 0) return [{ a: begin, aEnd: begin + n, b: begin, bEnd: begin + m }];
  const steps = [];
  let x = n, y = m;
  for (let d = found; d > 0; d--) {
    const old = trace[d], at = (k) => old[k + d] ?? 0, k = x - y;
    const down = k === -d || (k !== d && at(k - 1) < at(k + 1));
    const before = down ? k + 1 : k - 1, fromX = at(before), fromY = fromX - before;
    steps.push(down ? { a: fromX, aEnd: fromX, b: fromY, bEnd: fromY + 1 } : { a: fromX, aEnd: fromX + 1, b: fromY, bEnd: fromY });
    x = fromX;
    y = fromY;
  }
  const out = [];
  for (const s of steps.reverse()) {
    const step = { a: s.a + begin, aEnd: s.aEnd + begin, b: s.b + begin, bEnd: s.bEnd + begin }, last = out.at(-1);
    if (last && last.aEnd === step.a && last.bEnd === step.b) {
      last.aEnd = step.aEnd;
      last.bEnd = step.bEnd;
    } else out.push(step);
  }
  return out;
}

const linesOf = (text) => {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines;
};

// merge puts two changes of a text together: parts in order, each {kind, base, mine,
// theirs} with arrays of lines. kind is "same", "mine" and "theirs" for what one has
// changed, "both" for what both have changed alike, and "conflict".
export function merge(base, mine, theirs) {
  const o = linesOf(base), a = linesOf(mine), b = linesOf(theirs);
  const left = diff(o, a), right = diff(o, b), parts = [];
  let at = 0, shiftA = 0, shiftB = 0, i = 0, j = 0;
  const same = (until) => {
    if (until > at) parts.push({ kind: "same", base: o.slice(at, until), mine: o.slice(at, until), theirs: o.slice(at, until) });
    at = until;
  };
  while (i < left.length || j < right.length) {
    const first = Math.min(left[i]?.a ?? Infinity, right[j]?.a ?? Infinity);
    same(first);
    let end = first;
    const fromA = first + shiftA, fromB = first + shiftB;
    let usedA = false, usedB = false;
    for (let grown = true; grown; ) {
      grown = false;
      while (i < left.length && (left[i].a < end || left[i].a === first || (left[i].a === end && usedB))) {
        end = Math.max(end, left[i].aEnd);
        shiftA += left[i].bEnd - left[i].b - (left[i].aEnd - left[i].a);
        i++;
        grown = usedA = true;
      }
      while (j < right.length && (right[j].a < end || right[j].a === first || (right[j].a === end && usedA))) {
        end = Math.max(end, right[j].aEnd);
        shiftB += right[j].bEnd - right[j].b - (right[j].aEnd - right[j].a);
        j++;
        grown = usedB = true;
      }
    }
    const part = { base: o.slice(first, end), mine: a.slice(fromA, end + shiftA), theirs: b.slice(fromB, end + shiftB) };
    const alike = part.mine.join("\n") === part.theirs.join("\n");
    parts.push({ kind: alike ? "both" : usedA && usedB ? "conflict" : usedA ? "mine" : "theirs", ...part });
    at = end;
  }
  same(o.length);
  return parts;
}

// merged is the text of parts; choices has "mine", "theirs" or "both" for each conflict.
export function merged(parts, choices = []) {
  const out = [];
  let n = 0;
  for (const p of parts) {
    let choice = p.kind === "theirs" ? "theirs" : "mine";
    if (p.kind === "conflict") choice = choices[n++] || "mine";
    if (choice === "both") out.push(...p.theirs, ...p.mine);
    else out.push(...p[choice]);
  }
  return out.join("\n") + "\n";
}

const maxShown = 400;

// Line shows a line, of which what differs from the other side is marked; of a very long
// line only what is around the difference.
function Line({ text, other }) {
  let begin = 0, end = 0;
  if (other !== undefined) {
    const most = Math.min(text.length, other.length);
    while (begin < most && text[begin] === other[begin]) begin++;
    while (end < most - begin && text[text.length - 1 - end] === other[other.length - 1 - end]) end++;
  }
  let before = text.slice(0, begin), middle = text.slice(begin, text.length - end), after = text.slice(text.length - end);
  if (text.length > maxShown) {
    if (before.length > 120) before = before.slice(0, 40) + " … " + before.slice(-60);
    if (middle.length > maxShown) middle = middle.slice(0, maxShown) + ` … (${middle.length.toLocaleString()} characters)`;
    if (after.length > 120) after = after.slice(0, 60) + " …";
  }
  if (other === undefined || begin + end === 0) return html`<span>${other === undefined && text.length > maxShown ? text.slice(0, maxShown) + ` … (${text.length.toLocaleString()} characters)` : before + middle + after}</span>`;
  return html`<span>${before}${middle && html`<mark>${middle}</mark>`}${after}</span>`;
}

// DiffView shows what differs between two texts, with some lines around.
export function DiffView({ before, after, context = 3, label = "Changes" }) {
  const [open, setOpen] = useState(() => new Set());
  const a = linesOf(before), b = linesOf(after), hunks = diff(a, b);
  if (!hunks.length) return html`<p class="quiet" role="note">Nothing would change.</p>`;
  const rows = [];
  let at = 0, delta = 0;
  const same = (from, to) => {
    for (let i = from; i < to; i++) rows.push(html`<tr key=${"s" + i}><td class="no">${i + 1}</td><td class="no">${i + 1 + delta}</td><td class="sign"></td><td class="text"><${Line} text=${a[i]} /></td></tr>`);
  };
  const gap = (from, to) => {
    if (to - from <= 0) return;
    if (open.has(from)) same(from, to);
    else
      rows.push(html`<tr key=${"g" + from} class="gap"><td colspan="4"><button class="plain" onClick=${() => setOpen(new Set([...open, from]))}>${(to - from).toLocaleString()} unchanged ${to - from === 1 ? "line" : "lines"}</button></td></tr>`);
  };
  hunks.forEach((h, n) => {
    const until = Math.max(at, h.a - context);
    const keep = n === 0 ? 0 : Math.min(at + context, h.a);
    if (n === 0) gap(0, until);
    else if (until > keep) {
      same(at, keep);
      gap(keep, until);
    } else same(at, until);
    same(Math.max(at, until), h.a);
    const pairs = h.aEnd - h.a === h.bEnd - h.b;
    for (let i = h.a; i < h.aEnd; i++) rows.push(html`<tr key=${"d" + i} class="del"><td class="no">${i + 1}</td><td class="no"></td><td class="sign" aria-label="removed">−</td><td class="text"><${Line} text=${a[i]} other=${pairs ? b[h.b + i - h.a] : undefined} /></td></tr>`);
    for (let i = h.b; i < h.bEnd; i++) rows.push(html`<tr key=${"i" + i} class="ins"><td class="no"></td><td class="no">${i + 1}</td><td class="sign" aria-label="added">+</td><td class="text"><${Line} text=${b[i]} other=${pairs ? a[h.a + i - h.b] : undefined} /></td></tr>`);
    at = h.aEnd;
    delta = h.bEnd - h.aEnd;
  });
  same(at, Math.min(a.length, at + context));
  gap(Math.min(a.length, at + context), a.length);
  return html`<div class="diff scroll" tabindex="0" role="region" aria-label=${label}><table><tbody>${rows}</tbody></table></div>`;
}
