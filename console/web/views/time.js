// The past: the server as it was, what changed and when, what differs between two moments,
// and going back.
import { html, useState, useEffect, useRef, useAsync, usePoll, useResources, useStyle, setQuery, Failure, Loading, Link, Dialog, FieldChanges, escapeDirections, ago, bytes, toast } from "../lib/ui.js";
import { get, objectLink, action } from "../lib/api.js";
import { parseMoment, isRevision, clock } from "../lib/moment.js";
import { visible } from "../lib/snippet.js";

const tabs = [
  ["state", "As it was"],
  ["changes", "Changes"],
  ["compare", "Compare"],
  ["undo", "Undo"],
];

export default function Time({ route, features, info }) {
  useStyle("lib/isolate.css");
  useStyle("views/time.css");
  const tab = tabs.some(([name]) => name === route.query.get("tab")) ? route.query.get("tab") : route.query.get("from") || route.query.get("to") ? "compare" : "state";
  const namespace = route.query.get("namespace") || "";
  const [group, resource] = (route.query.get("kind") || "").split("/");
  const known = useResources((r) => r.preferred && r.verbs.includes("list") && r.verbs.includes("get") && r.resource !== "componentstatuses");
  const { value: recent, error } = usePoll(
    async (signal) => (features.history ? get("/debug/kelson/history", { limit: 300, namespace, group, resource }, { signal }) : undefined),
    10000,
    [namespace, group, resource],
  );
  if (!features.history)
    return html`<h1>Time</h1><p>This server keeps no history that could be read. Kelson does: <code>kelson serve --history 24h</code>.</p>`;
  let at = "";
  let wrong;
  try {
    at = parseMoment(route.query.get("at"));
  } catch (err) {
    wrong = err;
  }
  const View = { state: State, changes: Changes, compare: Compare, undo: Undo }[tab];
  const go = (name) => {
    const query = new URLSearchParams(location.search);
    query.set("tab", name);
    return "/time?" + query;
  };
  return html`<div class="time isolate">
    <h1>Time</h1>
    ${error && html`<${Failure} error=${error} />`}
    ${recent && html`<${Slider} kept=${recent.kept} changes=${recent.changes} at=${at} />`}
    <${Failure} error=${wrong} />
    <div class="tools">
      <nav class="tabs" aria-label="Parts of Time">${tabs.map(([name, text]) => html`<${Link} key=${name} to=${go(name)} aria-current=${tab === name ? "page" : undefined}>${text}<//>`)}</nav>
      <${Scope} namespace=${namespace} kind=${route.query.get("kind") || ""} known=${known} withKind=${tab !== "state"} />
    </div>
    ${recent?.hidden?.length > 0 && html`<p class="quiet">Not shown, since you may not list them: ${recent.hidden.join(", ")}</p>`}
    ${recent && !wrong && html`<${View} key=${tab} at=${at} namespace=${namespace} group=${group} resource=${resource} known=${known} route=${route} kept=${recent.kept} newest=${recent.changes} info=${info} />`}
    ${!recent && !error && html`<${Loading} />`}
  </div>`;
}

function Scope({ namespace, kind, known, withKind }) {
  const { value } = useAsync((signal) => get("/api/v1/namespaces", { limit: 500 }, { signal }), []);
  const names = (value?.items || []).map((n) => n.metadata.name);
  return html`<label>Namespace <input list="time-namespaces" value=${namespace} placeholder="all" onChange=${(e) => setQuery({ namespace: e.target.value.trim() })} autocomplete="off" spellcheck="false" /></label>
    <datalist id="time-namespaces">${names.map((n) => html`<option value=${n} />`)}</datalist>
    ${withKind &&
    html`<label>Kind <select value=${kind} onChange=${(e) => setQuery({ kind: e.target.value })}><option value="">all</option>${known.map((r) => html`<option value=${r.group + "/" + r.resource}>${r.resource}${r.group ? "." + r.group : ""}</option>`)}</select></label>`}`;
}

// Slider chooses the moment. Above it is how much has changed when.
function Slider({ kept, changes, at }) {
  const byTime = Boolean(kept.since);
  const low = byTime ? Math.floor(new Date(kept.since).getTime() / 1000) : kept.oldest;
  const high = byTime ? Math.max(low + 1, Math.ceil(Date.now() / 1000)) : Math.max(kept.newest, low + 1);
  const revisionTime = isRevision(at) && changes.find((c) => c.revision <= Number(at))?.time;
  const place = at === "" ? high : byTime ? (isRevision(at) ? (revisionTime ? new Date(revisionTime).getTime() / 1000 : low) : new Date(at).getTime() / 1000) : isRevision(at) ? Number(at) : high;
  const [draft, setDraft] = useState();
  const [text, setText] = useState("");
  const [wrong, setWrong] = useState("");
  const timer = useRef();
  const shown = draft ?? Math.min(high, Math.max(low, place));
  const value = (n) => (n >= high ? "" : byTime ? new Date(n * 1000).toISOString() : String(n));
  const name = (n) => (n >= high ? "now" : byTime ? `${clock(n * 1000)}, ${ago(n * 1000)} ago` : "revision " + n);
  const slide = (e) => {
    const n = Number(e.target.value);
    setDraft(n);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      setDraft();
      setQuery({ at: value(n) });
    }, 300);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  const submit = (e) => {
    e.preventDefault();
    try {
      setQuery({ at: parseMoment(text) });
      setWrong("");
      setText("");
    } catch (err) {
      setWrong(err.message);
    }
  };
  // Changes go by revisions, so that two in one second can be told apart.
  const revision = isRevision(at) ? Number(at) : undefined;
  const isBefore = (c) => (revision !== undefined ? c.revision < revision : at === "" ? true : c.time && new Date(c.time) <= new Date(at));
  const before = at === "" ? changes[1] : changes.find(isBefore);
  const after = changes.findLast((c) => !isBefore(c) && c.revision !== revision);
  const bars = 120;
  const counts = new Array(bars).fill(0);
  for (const c of changes) {
    const n = byTime ? c.time && new Date(c.time).getTime() / 1000 : c.revision;
    if (n >= low) counts[Math.min(bars - 1, Math.floor(((n - low) / (high - low)) * bars))]++;
  }
  const most = Math.max(...counts, 1);
  return html`<section class="panel slider" aria-label="Moment">
    <div class="where">
      <strong role="status">${draft === undefined && isRevision(at) ? `revision ${at}${revisionTime ? ", " + clock(revisionTime) : ""}` : name(shown)}</strong>
      <span class="quiet">${keptText(kept)}</span>
    </div>
    <svg class="density" viewBox="0 0 ${bars} 20" preserveAspectRatio="none" aria-hidden="true">
      ${counts.map((n, i) => n > 0 && html`<rect key=${i} x=${i + 0.1} width="0.8" y=${20 - Math.max(2, (n / most) * 20)} height=${Math.max(2, (n / most) * 20)} />`)}
    </svg>
    <input type="range" min=${low} max=${high} step="1" value=${shown} onInput=${slide} aria-label="Moment of the past" aria-valuetext=${name(shown)} />
    <div class="tools">
      <button disabled=${!before} onClick=${() => setQuery({ at: String(before.revision) })}>◂ Change before</button>
      <button disabled=${at === "" || !after} onClick=${() => setQuery({ at: after.revision >= (changes[0]?.revision || 0) ? "" : String(after.revision) })}>Change after ▸</button>
      <button disabled=${at === ""} onClick=${() => setQuery({ at: "" })}>Now</button>
      <form onSubmit=${submit}><label>Go to <input value=${text} onInput=${(e) => setText(e.target.value)} placeholder="14:05, 10m, 812" autocomplete="off" size="12" /></label></form>
      ${wrong && html`<span class="bad" role="alert">${wrong}</span>`}
    </div>
    ${kept.note && html`<p class="quiet">${kept.note[0].toUpperCase() + kept.note.slice(1)}.</p>`}
  </section>`;
}

const keptText = (k) =>
  `Kept${k.for ? " for " + k.for.replace(/(\D)0s$/, "$1").replace(/h0m$/, "h") : ""}${k.since ? ", since " + clock(k.since) : ""}: revisions ${k.oldest} to ${k.newest}${k.bytes ? ", " + bytes(k.bytes) + (k.maxBytes ? " of " + bytes(k.maxBytes) : "") : ""}`;

const kindOf = (o) => o.resource + (o.group ? "." + o.group : "");
const nameOf = (o) => (o.namespace ? o.namespace + "/" : "") + o.name;

// masked hides the values of secrets, as kelson history does.
const masked = (o) => {
  if (o.group || o.resource !== "secrets") return o.fields || [];
  // A plan comes with its secrets hidden.
  const hide = (v) => (v === undefined || /^\*\*\* /.test(v) ? v : `*** (${JSON.stringify(v).length} bytes)`);
  return (o.fields || []).map((f) => (/^(data|stringData)([.[]|$)/.test(f.path) ? { path: f.path, old: hide(f.old), new: hide(f.new) } : f));
};

const most = 100; // objects of a page

// State is the server as it was: how many objects of each kind, and their table.
function State({ at, namespace, known, route, kept }) {
  const kinds = known.filter((r) => !namespace || r.namespaced);
  const [counts, setCounts] = useState({ key: "", of: new Map() });
  const [all, setAll] = useState(false);
  const key = at + "\n" + namespace;
  useEffect(() => {
    const abort = new AbortController();
    const of = new Map();
    let next = 0;
    const work = async () => {
      while (next < kinds.length && !abort.signal.aborted) {
        const r = kinds[next++];
        try {
          const t = await get("/debug/kelson/at", { at, group: r.group, version: r.version, resource: r.resource, namespace, table: true, limit: most }, { signal: abort.signal });
          of.set(r.group + "/" + r.resource, { n: (t.rows || []).length, more: Boolean(t.metadata?.continue) });
        } catch (error) {
          if (abort.signal.aborted) return;
          of.set(r.group + "/" + r.resource, { error });
        }
        if (next % 6 === 0) setCounts({ key, of: new Map(of) });
      }
    };
    Promise.all(Array.from({ length: 4 }, work)).then(() => abort.signal.aborted || setCounts({ key, of, done: true }));
    return () => abort.abort();
  }, [key, known.length]);
  const chosen = known.find((r) => r.group + "/" + r.resource === route.query.get("kind"));
  const shown = kinds.filter((r) => all || chosen === r || counts.of.get(r.group + "/" + r.resource)?.n > 0);
  const errors = kinds.filter((r) => counts.of.get(r.group + "/" + r.resource)?.error);
  const expired = errors.map((r) => counts.of.get(r.group + "/" + r.resource).error).find((e) => e.code === 410);
  if (expired) return html`<${Failure} error=${expired} />`;
  return html`<div class="state">
    <nav aria-label="Kinds at that moment" aria-busy=${!counts.done}>
      <ul>${shown.map((r) => {
        const c = counts.of.get(r.group + "/" + r.resource);
        return html`<li key=${r.group + "/" + r.resource}>
          <button class="plain" aria-pressed=${chosen === r} onClick=${() => setQuery({ kind: r.group + "/" + r.resource }, false)}><span>${r.resource}${r.group ? html`<small>.${r.group}</small>` : ""}</span><span class="number">${c?.error ? "–" : c ? c.n + (c.more ? "+" : "") : ""}</span></button>
        </li>`;
      })}</ul>
      ${!counts.done && html`<${Loading} what="Counting" />`}
      <label><input type="checkbox" checked=${all} onChange=${(e) => setAll(e.target.checked)} /> kinds without objects</label>
    </nav>
    ${chosen ? html`<${Objects} key=${route.query.get("kind") + key} r=${chosen} at=${at} namespace=${namespace} />` : html`<p class="quiet">Choose a kind to see its objects as they were.</p>`}
  </div>`;
}

function Objects({ r, at, namespace }) {
  const [pages, setPages] = useState([]);
  const [shown, setShown] = useState();
  const question = { at, group: r.group, version: r.version, resource: r.resource, namespace };
  const { value, error } = useAsync((signal) => get("/debug/kelson/at", { ...question, table: true, limit: most }, { signal }), []);
  const [failed, setFailed] = useState();
  const all = value ? [value, ...pages] : [];
  const token = all.at(-1)?.metadata?.continue;
  const more = () => get("/debug/kelson/at", { ...question, table: true, limit: most, continue: token }).then((page) => setPages((p) => [...p, page]), setFailed);
  if (!value) return error ? html`<${Failure} error=${error} />` : html`<${Loading} />`;
  const columns = (value.columnDefinitions || []).map((c, i) => ({ ...c, i })).filter((c) => c.priority === 0 || c.priority === undefined);
  const rows = all.flatMap((p) => p.rows || []);
  return html`<section class="objects" aria-label=${r.resource + " at that moment"}>
    <h2>${r.resource} <small>at revision ${value.metadata?.resourceVersion}</small></h2>
    <div class="scroll"><table>
      <thead><tr>${r.namespaced && !namespace && html`<th scope="col">Namespace</th>`}${columns.map((c) => html`<th scope="col" key=${c.name}>${c.name}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => {
        const m = row.object.metadata;
        return html`<tr key=${m.uid}>
          ${r.namespaced && !namespace && html`<td class="name"><bdi>${visible(m.namespace)}</bdi></td>`}
          ${columns.map((c) => (c.name === "Name" ? html`<td key=${c.name} class="name"><button class="plain link" onClick=${() => setShown(m)}><bdi>${visible(row.cells[c.i])}</bdi></button></td>` : html`<td key=${c.name} class="cell"><bdi>${visible(String(row.cells[c.i] ?? ""))}</bdi></td>`))}
        </tr>`;
      })}</tbody>
    </table></div>
    ${rows.length === 0 && html`<p class="quiet">There were none.</p>`}
    <${Failure} error=${failed} />
    ${token && html`<button onClick=${more}>More</button>`}
    ${shown && html`<${Was} r=${r} at=${at} meta=${shown} close=${() => setShown()} />`}
  </section>`;
}

// Was is an object as it was.
function Was({ r, at, meta, close }) {
  const { value, error } = useAsync((signal) => get("/debug/kelson/at", { at, group: r.group, version: r.version, resource: r.resource, namespace: meta.namespace, name: meta.name }, { signal }), []);
  const text = value && JSON.stringify({ ...value, metadata: { ...value.metadata, managedFields: undefined }, ...(r.group === "" && r.resource === "secrets" && value.data ? { data: Object.fromEntries(Object.keys(value.data).map((k) => [k, "***"])) } : {}) }, null, 2);
  const back = new URLSearchParams({ tab: "undo", at: value?.metadata?.resourceVersion && at === "" ? "" : at, namespace: meta.namespace || "", kind: r.group + "/" + r.resource, name: meta.name });
  return html`<${Dialog} title=${`${r.kind} ${nameOf(meta)} ${at ? (isRevision(at) ? "at revision " + at : "at " + clock(at)) : "now"}`} close=${close}
    actions=${html`<${Link} to=${objectLink(r, meta.namespace, meta.name)} onClick=${close}>As it is now<//>${at && html`<${Link} to=${"/time?" + back} onClick=${close}>Bring this back…<//>`}`}>
    <${Failure} error=${error} />
    ${text ? html`<pre tabindex="0" class="was">${escapeDirections(text)}</pre>` : !error && html`<${Loading} />`}
  <//>`;
}

const verbText = { create: "created", update: "changed", delete: "deleted" };

// Change is one line of what happened, with the fields that changed behind it.
function Change({ c, verbs = verbText, children }) {
  const [open, setOpen] = useState(false);
  const fields = open ? masked(c) : [];
  const has = (c.fields || []).length > 0 || c.error;
  // The spaces are for who copies the line, or hears it.
  const line = html`<span class=${"verb " + c.verb}>${verbs[c.verb] || c.verb}</span>${" "}
    <span class="object"><span class="quiet">${kindOf(c)}</span> <bdi>${visible(nameOf(c))}</bdi></span>${" "}${children}`;
  if (!has) return html`<div class="change leaf">${line}</div>`;
  return html`<details class="change" open=${open} onToggle=${(e) => setOpen(e.currentTarget.open)}>
    <summary>${line}</summary>
    ${open && html`<div class="fields">${c.error ? html`<p class="warn"><bdi>${visible(c.error)}</bdi></p>` : html`<${FieldChanges} fields=${fields.slice(0, 200)} />`}${(c.more || fields.length > 200) && html`<p class="quiet">There are more fields.</p>`}</div>`}
  </details>`;
}

// revisionAt returns the revision of a moment: that of a list at it.
async function revisionAt(at, signal) {
  if (at === "" || isRevision(at)) return at;
  const list = await get("/debug/kelson/at", { at, version: "v1", resource: "namespaces", limit: 1 }, { signal });
  return list.metadata.resourceVersion;
}

// Changes are in order, the newest first, up to the moment.
function Changes({ at, namespace, group, resource, newest }) {
  const [pages, setPages] = useState([]);
  const [failed, setFailed] = useState();
  const key = [at, namespace, group, resource].join("\n");
  const live = at === "";
  const { value, error } = useAsync(async (signal) => get("/debug/kelson/history", { namespace, group, resource, limit: most, continue: live ? "" : await revisionAt(at, signal) }, { signal }), [key, live ? newest[0]?.revision : 0]);
  useEffect(() => setPages([]), [key]);
  if (!value) return error ? html`<${Failure} error=${error} />` : html`<${Loading} />`;
  const seen = new Set();
  const changes = [value, ...pages].flatMap((p) => p.changes).filter((c) => !seen.has(c.revision + kindOf(c) + nameOf(c)) && seen.add(c.revision + kindOf(c) + nameOf(c)));
  const token = (pages.at(-1) || value).continue;
  const older = () => get("/debug/kelson/history", { namespace, group, resource, limit: most, continue: token }).then((p) => setPages((all) => [...all, p]), setFailed);
  return html`<section aria-label="Changes">
    <${Failure} error=${error || failed} />
    <ol class="changes-list">
      ${changes.map(
        (c) => html`<li key=${c.revision + kindOf(c) + nameOf(c)}>
          <span class="when"><time dateTime=${c.time} title=${c.time ? new Date(c.time).toLocaleString() : ""}>${c.time ? (c.estimated ? "~" : "") + clock(c.time) : "–"}</time><button class="plain link" title="Go to this moment" aria-label=${"Go to revision " + c.revision} onClick=${() => setQuery({ at: String(c.revision) }, false)}>${c.revision}</button></span>
          <${Change} c=${c}><span class="by quiet">${(c.managers || []).length ? html`by <bdi>${visible(c.managers.map((m) => m.name + (m.subresource ? "/" + m.subresource : "")).join(", "))}</bdi>` : ""}</span><//>
        </li>`,
      )}
    </ol>
    ${changes.length === 0 && html`<p class="quiet">Nothing changed in the time that is kept.</p>`}
    ${token && html`<button onClick=${older}>Older</button>`}
  </section>`;
}

// Compare shows what differs between two moments.
function Compare({ at, namespace, group, resource, route, kept }) {
  const [wrong, setWrong] = useState("");
  const [pages, setPages] = useState([]);
  const [failed, setFailed] = useState();
  const begin = route.query.get("from") || at || (kept.since ? kept.since : String(kept.oldest));
  const end = route.query.get("to") || "";
  let from, to, bad;
  try {
    [from, to] = [parseMoment(begin), parseMoment(end)];
  } catch (err) {
    bad = err;
  }
  const key = [from, to, namespace, group, resource].join("\n");
  const { value, error, loading } = useAsync(async (signal) => (bad ? undefined : get("/debug/kelson/diff", { from, to, namespace, group, resource, limit: most }, { signal })), [key]);
  useEffect(() => setPages([]), [key]);
  const submit = (e) => {
    e.preventDefault();
    const form = new FormData(e.target);
    try {
      parseMoment(form.get("from"));
      parseMoment(form.get("to"));
      setWrong("");
      setQuery({ from: form.get("from").trim(), to: form.get("to").trim(), tab: "compare" }, false);
    } catch (err) {
      setWrong(err.message);
    }
  };
  const items = value ? [value, ...pages].flatMap((p) => p.items) : [];
  const token = (pages.at(-1) || value)?.continue;
  const more = () => get("/debug/kelson/diff", { from, to, namespace, group, resource, limit: most, continue: token }).then((p) => setPages((all) => [...all, p]), setFailed);
  const count = (verb) => items.filter((i) => i.verb === verb).length;
  return html`<section aria-label="Compare">
    <form class="tools" onSubmit=${submit} key=${begin + end} aria-label="Compare">
      <label>From <input name="from" value=${begin} autocomplete="off" /></label>
      <label>To <input name="to" value=${end} placeholder="now" autocomplete="off" /></label>
      <button>Compare</button>
    </form>
    ${wrong && html`<p class="bad" role="alert">${wrong}</p>`}
    <${Failure} error=${bad || error || failed} />
    ${loading && html`<${Loading} what="Comparing" />`}
    ${value &&
    html`<p role="status">${items.length === 0 ? "There is no difference" : `${count("create")} created, ${count("update")} changed, ${count("delete")} deleted${token ? ", and more" : ""}`} from revision ${value.from} to ${value.to}.</p>
      <ol class="changes-list plain-list">${items.map((c) => html`<li key=${kindOf(c) + nameOf(c)}><${Change} c=${c} /></li>`)}</ol>
      ${token && html`<button onClick=${more}>More</button>`}`}
  </section>`;
}

const willDo = { create: "create", update: "change", delete: "delete", skip: "cannot come back" };

// Undo shows a plan, and does that plan.
function Undo({ at, namespace, group, resource, known, route }) {
  const [plan, setPlan] = useState();
  const [result, setResult] = useState();
  const [busy, setBusy] = useState("");
  const [error, setError] = useState();
  const [sure, setSure] = useState(false);
  const name = route.query.get("name") || "";
  const selector = route.query.get("selector") || "";
  const key = [at, namespace, group, resource, name, selector].join("\n");
  useEffect(() => {
    setPlan();
    setResult();
    setError();
  }, [key]);
  const r = known.find((r) => r.group === group && r.resource === resource);
  const whole = !namespace && !name;
  const what = name ? `${resource} ${nameOf({ namespace, name })}` : `${resource ? "all " + resource : "everything"}${namespace ? " in namespace " + namespace : " in all namespaces, and outside of them"}${selector ? " with labels " + selector : ""}`;
  const run = async (doing, body, then) => {
    setBusy(doing);
    setError();
    try {
      then(await action("undo", body));
    } catch (err) {
      setError(err);
    } finally {
      setBusy("");
    }
  };
  const makePlan = () => run("Planning", { plan: true, group, version: r?.version, resource, namespace, name, selector, to: at, all: whole }, (p) => (setResult(), setPlan(p)));
  const doIt = () => {
    setSure(false);
    run("Undoing", { id: plan.id }, (p) => {
      setPlan();
      setResult(p);
      toast(`${p.done} done, ${p.failed} failed`, p.failed ? "error" : "info");
    });
  };
  const shown = result || plan;
  const count = (action) => shown.steps.filter((s) => s.action === action).length;
  const writes = plan ? plan.steps.filter((s) => s.action !== "skip").length : 0;
  return html`<section aria-label="Undo">
    <div class="tools">
      <label>Name <input value=${name} placeholder="all" disabled=${!resource} onChange=${(e) => setQuery({ name: e.target.value.trim() })} autocomplete="off" spellcheck="false" /></label>
      <label>Labels <input value=${selector} placeholder="app=web" onChange=${(e) => setQuery({ selector: e.target.value.trim() })} autocomplete="off" spellcheck="false" /></label>
    </div>
    ${at === ""
      ? html`<p>Choose a moment above to go back to.</p>`
      : html`<p>Bring <bdi>${visible(what)}</bdi> back to what it was at <strong>${isRevision(at) ? "revision " + at : clock(at)}</strong>. First comes a plan; nothing is written before you say so. Status is left to controllers.</p>
          <div class="tools"><button class="primary" onClick=${makePlan} disabled=${Boolean(busy)}>${plan ? "Plan again" : "Make a plan"}</button>${busy && html`<span role="status">${busy}…</span>`}</div>`}
    <${Failure} error=${error} />
    ${shown &&
    html`<div class="plan" role="region" aria-label=${result ? "What was done" : "Plan"}>
      <p role="status">
        ${result
          ? html`<strong class=${result.failed ? "bad" : "good"}>${result.done} done, ${result.failed} failed.</strong>${result.again ? " Definitions have come back: plan again for their objects." : ""}${result.failed ? " What failed is as it was before. Plan again to see what is left." : ""}`
          : shown.steps.length === 0
            ? "There is nothing to undo."
            : `${count("create")} to create, ${count("update")} to change, ${count("delete")} to delete, ${count("skip")} cannot come back. Now is revision ${plan.from}.`}
      </p>
      ${shown.hidden?.length > 0 && html`<p class="quiet">Not shown, since you may not list them: ${shown.hidden.join(", ")}</p>`}
      <ol class="changes-list plain-list">
        ${shown.steps.slice(0, 1000).map(
          (s) => html`<li key=${kindOf(s) + nameOf(s)}>
            <${Change} c=${{ ...s, verb: s.action, error: undefined }} verbs=${willDo}>
              ${s.result && html` <span class=${s.result === "failed" ? "bad" : "good"}>${s.result}</span>`}
              ${(s.conflicts || []).length > 0 && html` <span class="warn">also undoes changes by <bdi>${visible(s.conflicts.join(", "))}</bdi></span>`}
            <//>
            ${[...(s.error ? [["bad", s.error]] : []), ...(s.notes || []).map((n) => ["quiet", n])].map(([kind, text], i) => html`<p key=${i} class=${kind + " note"}><bdi>${visible(text)}</bdi></p>`)}
          </li>`,
        )}
      </ol>
      ${shown.steps.length > 1000 && html`<p class="quiet">${shown.steps.length - 1000} more steps are not shown, and are part of the plan.</p>`}
      ${plan && writes > 0 && html`<button class="danger" onClick=${() => setSure(true)} disabled=${Boolean(busy)}>Undo this: ${writes} ${writes === 1 ? "object" : "objects"}</button>`}
    </div>`}
    ${sure &&
    html`<${Dialog} title="Undo this?" close=${() => setSure(false)} actions=${html`<button onClick=${() => setSure(false)}>No</button><button class="danger" onClick=${doIt}>Undo</button>`}>
      <p>${count("create")} to create, ${count("update")} to change, ${count("delete")} to delete, with your rights and through admission, each after a dry run.</p>
      <p>Exactly this plan is done. An object that somebody has changed since stays as it is, and is reported.</p>
    <//>`}
  </section>`;
}
