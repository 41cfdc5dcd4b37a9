// One object: its YAML, events, relations, history, and what may be done with it.
import { html, useState, useEffect, useRef, useMemo, useCallback, navigate, setQuery, Link, Failure, Loading, Dialog, Age, ago, toast, FieldChanges } from "../lib/ui.js";
import { findResource, findKind, resources, pathOf, listLink, objectLink, request, raw, get, send, watch, table, ApiError } from "../lib/api.js";
import { dump, parse, owners } from "../lib/yaml.js";
import { merge, merged, DiffView } from "../lib/diff.js";
import { Editor, whenText } from "../lib/editor.js";
import { schemaOf } from "../lib/schema.js";
import { useFill } from "../lib/fill.js";
import { loadStyle } from "../lib/style.js";
import { Relations } from "../lib/relations.js";

await loadStyle("views/object.css");

// isSecret says whether the values of an object are hidden until they are asked for.
const isSecret = (r) => r.group === "" && r.resource === "secrets";
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration";

// shownObject is what of an object is shown: without managedFields, and the values of
// secrets only if they are wanted.
function shownObject(r, object, { values, managed }) {
  if (!object) return object;
  const o = { ...object, metadata: { ...object.metadata } };
  if (!managed) delete o.metadata.managedFields;
  if (isSecret(r) && !values) {
    if (o.data) o.data = Object.fromEntries(Object.entries(o.data).map(([k, v]) => [k, hidden(v)]));
    if (o.metadata.annotations?.[lastApplied]) o.metadata.annotations = { ...o.metadata.annotations, [lastApplied]: "••••••" };
  }
  return o;
}
const hidden = (v) => `•••••• ${Math.floor((String(v).length * 3) / 4) - (/=*$/.exec(String(v))[0].length)} bytes`;

// maskedPair is a pair of objects for a diff: values of a secret are hidden, and those that
// differ say so.
function maskedPair(r, a, b) {
  const x = shownObject(r, a, {}), y = shownObject(r, b, {});
  if (isSecret(r)) {
    for (const key of Object.keys(y?.data || {})) {
      if (a?.data?.[key] !== undefined && a.data[key] !== b.data[key]) {
        x.data[key] += " (before)";
        y.data[key] += " (after)";
      }
    }
  }
  return [x ? dump(x).text : "", y ? dump(y).text : ""];
}

// forDiff removes from an object what every write changes, for a diff that shows the rest.
function forDiff(object) {
  if (!object) return undefined;
  const m = { ...object.metadata };
  for (const f of ["managedFields", "resourceVersion", "generation"]) delete m[f];
  return { ...object, metadata: m };
}

const lastManager = (object) => (object?.metadata?.managedFields || []).reduce((last, e) => (!last || (e.time || "") >= (last.time || "") ? e : last), undefined);

// useObject reads an object and follows it: {object, deleted, error, state, reload}.
function useObject(resource, namespace, name) {
  const [s, set] = useState({ state: "loading" });
  const again = useRef();
  useEffect(() => {
    let gone = false, end, timer, tries = 0;
    const abort = new AbortController(), path = pathOf(resource, namespace, name), collection = pathOf(resource, namespace);
    const update = (change) => gone || set((old) => ({ ...old, ...change }));
    const read = async () => parse(await (await request(path, { signal: abort.signal })).text());
    const load = async () => {
      clearTimeout(timer);
      end?.();
      end = undefined;
      try {
        const object = await read();
        if (gone) return;
        tries = 0;
        update({ object, error: undefined, deleted: undefined, state: "live" });
        follow(object.metadata.resourceVersion);
      } catch (error) {
        if (gone) return;
        if (error instanceof ApiError && error.code < 500 && error.code !== 429) {
          set((old) => (error.code === 404 && old.object ? { ...old, deleted: old.deleted || { at: Date.now() }, state: "deleted" } : { ...old, error, state: "failed" }));
          if (error.code === 404) timer = setTimeout(load, 5000);
          return;
        }
        update({ state: "waiting", away: error });
        timer = setTimeout(load, Math.min(300 * 2 ** tries++, 5000));
      }
    };
    const poll = () => {
      timer = setTimeout(async () => {
        try {
          const object = await read();
          update({ object, deleted: undefined, state: "polled" });
        } catch (error) {
          if (error.code === 404) update({ deleted: { at: Date.now() } });
        }
        if (!gone) poll();
      }, 5000);
    };
    const follow = (resourceVersion) => {
      if (!resource.verbs.includes("watch")) return poll();
      end = watch(collection, { fieldSelector: "metadata.name=" + name, resourceVersion }, {
        event: async (type, object) => {
          if (object.metadata?.name !== name) return;
          if (type === "DELETED") return update({ deleted: { at: Date.now(), object } });
          try {
            const exact = await read();
            update({ object: exact, deleted: undefined });
          } catch {
            // It has gone meanwhile, and an event will say so.
          }
        },
        state: (state) => {
          if (state === "expired") return load();
          if (state === "refused") return update({ state: "polled" }), poll();
          update({ state });
        },
      });
    };
    again.current = load;
    load();
    return () => {
      gone = true;
      clearTimeout(timer);
      abort.abort();
      end?.();
    };
  }, [resource, namespace, name]);
  return { ...s, reload: () => again.current?.() };
}

// blameLines says of every line who owns it, and since when; with history also the revision.
function blameLines(object, paths, history) {
  const find = owners(object), revision = Number(object.metadata?.resourceVersion) || 0;
  const changes = (history?.changes || []).filter((c) => c.revision <= revision);
  const below = (path, of) => path.startsWith(of) && (path.length === of.length || path[of.length] === "." || path[of.length] === "[");
  const touched = new Map();
  const lastChange = (path) => {
    if (!touched.has(path)) touched.set(path, changes.find((c) => c.verb === "create" || (c.fields || []).some((f) => f.new !== undefined && (below(f.path, path) || below(path, f.path)))));
    return touched.get(path);
  };
  let last;
  return paths.map((path) => {
    const entries = find(path), change = history && lastChange(path);
    const names = [...new Set(entries.map((e) => e.manager + (e.subresource ? "/" + e.subresource : "")))];
    const time = change?.time || entries.map((e) => e.time || "").sort().at(-1) || "";
    const line = {
      owners: names,
      when: (change ? change.revision + " · " : history && names.length ? "<" + history.kept.oldest + " · " : "") + whenText(time),
      title: `${path}\n${entries.map((e) => `${e.manager} (${e.operation}${e.subresource ? ", " + e.subresource : ""}) ${e.time || ""}`).join("\n")}${change ? `\nrevision ${change.revision}, ${change.time || ""}` : ""}`,
    };
    line.first = !last || last.when !== line.when || last.owners.join() !== names.join();
    // What the server sets by itself has no owner, and needs no words.
    if (!names.length) line.first = false;
    last = line;
    return line;
  });
}

const historyQuery = (r, namespace, name) => ({ group: r.group, version: r.version, resource: r.resource, namespace, name });

// Review is the dialog before a write: the dry run's result as a diff.
function Review({ title, resource, before, after, busy, error, confirm, close, button = "Save", danger, note }) {
  const [a, b] = maskedPair(resource, forDiff(before), forDiff(after));
  return html`<${Dialog}
    title=${title}
    close=${close}
    actions=${html`<button onClick=${close}>Cancel</button><button class=${danger ? "danger" : "primary"} autofocus disabled=${busy || a === b} onClick=${confirm}>${button}</button>`}
  >
    <p class="quiet">${note || "The server has tried it without saving. This is what would change."}</p>
    <${DiffView} before=${a} after=${b} />
    <${Failure} error=${error} />
  <//>`;
}

// isBookkeeping says whether a part of a merge is what every write changes.
const isBookkeeping = (p) => p.kind === "theirs" && [...p.base, ...p.theirs].every((l) => /^ {2}(generation|resourceVersion): /.test(l));

// Merge is the dialog for two changes of one object.
function Merge({ base, mine, theirs, who, take, close }) {
  const parts = useMemo(() => merge(base, mine, theirs), [base, mine, theirs]);
  const conflicts = parts.filter((p) => p.kind === "conflict");
  const [choices, setChoices] = useState(() => conflicts.map(() => ""));
  const [result, setResult] = useState(false);
  const open = choices.filter((c) => !c).length;
  let n = -1;
  const block = (lines, label) => html`<div class="side"><h4>${label}</h4><pre>${lines.length ? lines.map((l) => (l.length > 2000 ? l.slice(0, 2000) + "…" : l)).join("\n") : html`<em class="quiet">nothing</em>`}</pre></div>`;
  return html`<${Dialog}
    title="Two changes of one object"
    close=${close}
    actions=${html`<button onClick=${close}>Go on without merging</button><button class="primary" disabled=${open > 0} onClick=${() => take(merged(parts, choices))}>${open ? `${open} to decide` : "Take the merged text"}</button>`}
  >
    <p>${who} has changed the object since you began. ${conflicts.length ? `${conflicts.length === 1 ? "One place was" : conflicts.length + " places were"} changed by both; choose for each. Everything else is merged.` : "The changes are at different places, and can be merged."}</p>
    ${parts.map((p, i) => {
      if (p.kind === "same" || isBookkeeping(p)) return null;
      if (p.kind !== "conflict")
        return html`<section class="merge-part" key=${i} aria-label=${p.kind === "theirs" ? "Changed by the other" : p.kind === "mine" ? "Changed by you" : "Changed alike"}>
          <h3>${p.kind === "theirs" ? "Theirs, merged" : p.kind === "mine" ? "Yours, kept" : "Both alike"}</h3>
          <div class="sides">${block(p.base, "Before")}${block(p.kind === "theirs" ? p.theirs : p.mine, "After")}</div>
        </section>`;
      const at = ++n;
      return html`<fieldset class="merge-part conflict" key=${i}>
        <legend>Conflict ${at + 1} of ${conflicts.length}</legend>
        <div class="sides">${block(p.base, "Base")}${block(p.mine, "Yours")}${block(p.theirs, "Theirs")}</div>
        <div class="choices" role="radiogroup" aria-label=${"Choice for conflict " + (at + 1)}>
          ${[["mine", "Yours"], ["theirs", "Theirs"], ["both", "Both, theirs first"]].map(
            ([value, label]) => html`<label key=${value}><input type="radio" name=${"conflict" + at} checked=${choices[at] === value} onChange=${() => setChoices(choices.map((c, k) => (k === at ? value : c)))} /> ${label}</label>`,
          )}
        </div>
      </fieldset>`;
    })}
    <details onToggle=${(e) => setResult(e.target.open)}><summary>The merged text against theirs</summary>${result && html`<${DiffView} before=${theirs} after=${merged(parts, choices)} />`}</details>
  <//>`;
}

// Yaml is the tab with the editor.
function Yaml({ resource, namespace, name, object, deleted, features, reload, dirty, hiddenTab }) {
  const editor = useRef(), box = useRef();
  useFill(box, [hiddenTab], 320);
  const [values, setValues] = useState(false);
  const [managed, setManaged] = useState(false);
  const [who, setWho] = useState(() => innerWidth > 900 && localStorage.getItem("kelson-blame") !== "off");
  const [history, setHistory] = useState();
  const [edited, setEdited] = useState(false);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState();
  const [review, setReview] = useState(); // {text, after}
  const [conflict, setConflict] = useState(); // {mine, theirs: object}
  // base is the version that the text in the editor began with.
  const [base, setBase] = useState(object);
  const opts = { values, managed };
  const baseDump = useMemo(() => dump(shownObject(resource, base, opts)), [base, values, managed]);
  const text = useRef(baseDump.text);
  const readOnly = deleted || !resource.verbs.includes("update") || (isSecret(resource) && !values);

  useEffect(() => {
    dirty.current = edited;
  }, [edited]);
  useEffect(() => {
    const leave = (e) => dirty.current && e.preventDefault();
    window.addEventListener("beforeunload", leave);
    return () => window.removeEventListener("beforeunload", leave);
  }, []);

  // Another's change: taken at once if nothing is edited, offered otherwise.
  const newer = object.metadata.resourceVersion !== base.metadata.resourceVersion;
  useEffect(() => {
    if (newer && !edited) setBase(object);
  }, [object, edited]);
  useEffect(() => {
    if (edited) return;
    text.current = baseDump.text;
    editor.current?.set(baseDump.text);
  }, [baseDump]);
  useEffect(() => {
    if (!who || !features.history) return;
    const abort = new AbortController();
    get("/debug/kelson/history", { ...historyQuery(resource, namespace, name), limit: 1000 }, { signal: abort.signal }).then(setHistory, () => setHistory());
    return () => abort.abort();
  }, [who, base]);
  const blame = useMemo(() => (who && !edited ? blameLines(base, baseDump.paths, history) : undefined), [who, base, baseDump, history, edited]);
  const lastBlame = useRef();
  if (blame || !who) lastBlame.current = blame;

  const changed = (next, byUser) => {
    text.current = next;
    if (!byUser) return;
    setEdited(next !== baseDump.text);
    setError();
  };
  const path = pathOf(resource, namespace, name);
  const put = async (body, dry) => parse(await (await request(path, { method: "PUT", type: "application/yaml", body, query: { dryRun: dry ? "All" : undefined, fieldValidation: "Strict", fieldManager: "kelson-console" } })).text());
  const failed = async (e, mine) => {
    if (e.code === 409 && (e.reason === "Conflict" || /modified/.test(e.message))) {
      try {
        const theirs = parse(await (await request(path)).text());
        setConflict({ mine, theirs });
        return;
      } catch (other) {
        e = other;
      }
    }
    setError(e);
  };
  const tryIt = async () => {
    if (readOnly || busy) return;
    const mine = editor.current.text();
    setBusy(true);
    setError();
    try {
      setReview({ text: mine, after: await put(mine, true) });
    } catch (e) {
      await failed(e, mine);
    }
    setBusy(false);
  };
  const save = async () => {
    setBusy(true);
    const mine = review.text;
    try {
      const saved = await put(mine, false);
      setReview();
      setEdited(false);
      setBase(saved);
      text.current = dump(shownObject(resource, saved, opts)).text;
      editor.current.set(text.current);
      toast("Saved.");
      reload();
    } catch (e) {
      setReview();
      await failed(e, mine);
    }
    setBusy(false);
  };
  const discard = () => {
    setEdited(false);
    setError();
    setBase(object);
    text.current = dump(shownObject(resource, object, opts)).text;
    editor.current.set(text.current);
    editor.current.focus();
  };
  const last = lastManager(object);
  return html`<section class="yaml">
    <div class="tools">
      <button class="primary" disabled=${readOnly || !edited || busy} onClick=${tryIt} aria-keyshortcuts="Control+S">${busy ? "Trying…" : "Review and save"}</button>
      <button disabled=${!edited} onClick=${discard}>Discard my changes</button>
      ${isSecret(resource) && html`<button aria-pressed=${values} disabled=${edited} onClick=${() => setValues(!values)}>${values ? "Hide the values" : "Show the values to edit"}</button>`}
      <span class="push"></span>
      <label><input type="checkbox" checked=${who} onChange=${(e) => (setWho(e.target.checked), localStorage.setItem("kelson-blame", e.target.checked ? "on" : "off"))} /> Who set it</label>
      <label><input type="checkbox" checked=${managed} disabled=${edited} onChange=${(e) => setManaged(e.target.checked)} /> managedFields</label>
    </div>
    ${edited && newer && !deleted &&
    html`<div class="notice" role="alert">
      <span>Changed by <bdi>${last?.manager || "somebody"}</bdi> ${last?.time ? html`<${Age} of=${last.time} /> ago` : ""} while you were editing.</span>
      <button onClick=${() => setConflict({ mine: editor.current.text(), theirs: object })}>Merge</button>
      <button onClick=${discard}>Take theirs</button>
    </div>`}
    <${Failure} error=${error} />
    <div class="editor-box" ref=${box}><${Editor} text=${baseDump.text} label=${`YAML of ${resource.kind} ${name}`} readOnly=${Boolean(readOnly)} changed=${changed} handle=${editor} schemaOf=${() => schemaOf(resource)} blame=${who ? lastBlame.current : undefined} save=${tryIt} /></div>
    ${isSecret(resource) && html`<${SecretValues} data=${object.data} />`}
    ${review && html`<${Review} title="Save these changes?" resource=${resource} before=${base} after=${review.after} busy=${busy} confirm=${save} close=${() => setReview()} />`}
    ${conflict &&
    html`<${Merge}
      base=${baseDump.text}
      mine=${conflict.mine}
      theirs=${dump(shownObject(resource, conflict.theirs, opts)).text}
      who=${html`<bdi>${lastManager(conflict.theirs)?.manager || "Somebody"}</bdi>`}
      close=${() => setConflict()}
      take=${(next) => {
        setBase(conflict.theirs);
        setConflict();
        setEdited(true);
        editor.current.set(next);
        editor.current.focus();
      }}
    />`}
  </section>`;
}

// SecretValues shows values one by one, decoded.
function SecretValues({ data }) {
  const [open, setOpen] = useState({});
  const keys = Object.keys(data || {}).sort();
  if (!keys.length) return null;
  const decode = (value) => {
    const bytes = Uint8Array.from(atob(value), (c) => c.charCodeAt(0));
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
      if (!/[\u0000-\u0008\u000e-\u001f]/.test(text)) return { text: text.length > 20000 ? text.slice(0, 20000) + "…" : text };
    } catch {
      // It is no text.
    }
    return { text: [...bytes.slice(0, 256)].map((b) => b.toString(16).padStart(2, "0")).join(" ").replace(/((?:\S\S ){16})/g, "$1\n") + (bytes.length > 256 ? "\n…" : ""), binary: true, size: bytes.length };
  };
  return html`<h2>Values</h2>
    <dl class="secret-values">
      ${keys.map((key) => {
        const shown = open[key] && decode(data[key]);
        return html`<div key=${key}>
          <dt><bdi>${key}</bdi> <button aria-expanded=${Boolean(shown)} aria-label=${`${shown ? "Hide" : "Show"} the value of ${key}`} onClick=${() => setOpen((old) => ({ ...old, [key]: !old[key] }))}>${shown ? "Hide" : "Decode"}</button></dt>
          <dd>${shown ? html`${shown.binary && html`<small>${shown.size.toLocaleString()} bytes, not text:</small>`}<pre>${shown.text}</pre>` : html`<span class="quiet">${hidden(data[key])}</span>`}</dd>
        </div>`;
      })}
    </dl>`;
}

// Events are those about an object, live.
function Events({ object }) {
  const [s, set] = useState({});
  const uid = object.metadata.uid, namespace = object.metadata.namespace;
  useEffect(() => {
    let gone = false, end, timer, tries = 0;
    const path = namespace ? `/api/v1/namespaces/${encodeURIComponent(namespace)}/events` : "/api/v1/events", query = { fieldSelector: "involvedObject.uid=" + uid };
    const load = async () => {
      end?.();
      try {
        const list = await get(path, { ...query, limit: 500 });
        if (gone) return;
        set({ events: new Map(list.items.map((e) => [e.metadata.uid, e])) });
        end = watch(path, { ...query, resourceVersion: list.metadata.resourceVersion }, {
          event: (type, e) => set((old) => {
            const events = new Map(old.events);
            type === "DELETED" ? events.delete(e.metadata.uid) : events.set(e.metadata.uid, e);
            return { events };
          }),
          state: (state) => state === "expired" && load(),
        });
      } catch (error) {
        if (gone) return;
        set((old) => ({ ...old, error }));
        if (!error.code || error.code >= 500) timer = setTimeout(load, Math.min(500 * 2 ** tries++, 5000));
      }
    };
    load();
    return () => {
      gone = true;
      clearTimeout(timer);
      end?.();
    };
  }, [uid]);
  if (s.error && !s.events) return html`<${Failure} error=${s.error} />`;
  if (!s.events) return html`<${Loading} />`;
  const moment = (e) => e.series?.lastObservedTime || e.lastTimestamp || e.eventTime || e.metadata.creationTimestamp;
  const all = [...s.events.values()].sort((a, b) => Date.parse(moment(b)) - Date.parse(moment(a))).slice(0, 500);
  if (!all.length) return html`<p class="quiet">There are no events about it.</p>`;
  return html`<div class="scroll"><table class="events" aria-label="Events">
    <thead><tr><th scope="col">Last</th><th scope="col">Type</th><th scope="col">Reason</th><th scope="col">Message</th><th scope="col">From</th><th scope="col" class="number">Count</th></tr></thead>
    <tbody>
      ${all.map(
        (e) => html`<tr key=${e.metadata.uid}>
          <td><${Age} of=${moment(e)} /></td>
          <td class=${e.type === "Warning" ? "warn" : ""}>${e.type}</td>
          <td><bdi>${e.reason}</bdi></td>
          <td class="wrap"><bdi>${(e.message || "").slice(0, 4000)}</bdi></td>
          <td><bdi>${e.source?.component || e.reportingComponent || ""}</bdi></td>
          <td class="number">${e.series?.count || e.count || 1}</td>
        </tr>`,
      )}
    </tbody>
  </table></div>`;
}

// History lists the versions that the server keeps, and goes back to one.
function History({ resource, namespace, name, object, deleted, reload }) {
  const [s, set] = useState({});
  const [compare, setCompare] = useState(); // {revision, before, after, back}
  const [error, setError] = useState();
  const [busy, setBusy] = useState(false);
  const query = historyQuery(resource, namespace, name);
  const version = object?.metadata.resourceVersion;
  const load = async (token, signal) => {
    try {
      const page = await get("/debug/kelson/history", { ...query, limit: 50, continue: token }, { signal });
      set((old) => ({ kept: page.kept, changes: token ? [...old.changes, ...(page.changes || [])] : page.changes || [], token: page.continue }));
    } catch (e) {
      if (!signal?.aborted) set((old) => ({ ...old, error: e }));
    }
  };
  useEffect(() => {
    const abort = new AbortController();
    load(undefined, abort.signal);
    return () => abort.abort();
  }, [version, Boolean(deleted)]);
  const at = async (revision) => parse(await (await request("/debug/kelson/at", { query: { ...query, at: revision } })).text());
  const path = pathOf(resource, namespace, name);
  const show = async (c, back) => {
    setError();
    setBusy(true);
    try {
      const old = await at(c.revision);
      if (!back) {
        setCompare({ revision: c.revision, title: `Revision ${c.revision} against now`, before: old, after: object });
      } else {
        // The wanted version with what belongs to the present: uid and resourceVersion.
        const m = { ...old.metadata };
        for (const f of ["managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"]) delete m[f];
        const body = { ...old, metadata: m };
        if (deleted) {
          delete body.status;
          const after = parse(await (await request(pathOf(resource, namespace), { method: "POST", type: "application/json", body: JSON.stringify(body), query: { dryRun: "All", fieldManager: "kelson-console" } })).text());
          setCompare({ revision: c.revision, title: `Create it again as it was at revision ${c.revision}`, before: undefined, after, body, back: "POST" });
        } else {
          const now = parse(await (await request(path)).text());
          m.resourceVersion = now.metadata.resourceVersion;
          m.uid = now.metadata.uid;
          if (now.status !== undefined) body.status = now.status;
          const after = parse(await (await request(path, { method: "PUT", type: "application/json", body: JSON.stringify(body), query: { dryRun: "All", fieldManager: "kelson-console" } })).text());
          setCompare({ revision: c.revision, title: `Go back to revision ${c.revision}`, before: now, after, body, back: "PUT" });
        }
      }
    } catch (e) {
      setError(e);
    }
    setBusy(false);
  };
  const goBack = async () => {
    setBusy(true);
    try {
      await request(compare.back === "POST" ? pathOf(resource, namespace) : path, { method: compare.back, type: "application/json", body: JSON.stringify(compare.body), query: { fieldManager: "kelson-console" } });
      toast(`It is as it was at revision ${compare.revision}.`);
      setCompare();
      reload();
    } catch (e) {
      setCompare();
      setError(e);
    }
    setBusy(false);
  };
  if (s.error && !s.changes) return html`<${Failure} error=${s.error} />`;
  if (!s.changes) return html`<${Loading} />`;
  return html`<section class="history">
    ${s.kept?.note && html`<p class="quiet">${s.kept.note}</p>`}
    <${Failure} error=${error} />
    ${!s.changes.length && html`<p class="quiet">The server keeps no change of it${s.kept?.since ? html` (history begins <${Age} of=${s.kept.since} /> ago)` : ""}.</p>`}
    <ol aria-label="Changes, the newest first">
      ${s.changes.map(
        (c, i) => html`<li key=${c.revision}>
          <header>
            <strong class=${c.verb === "delete" ? "bad" : ""}>${{ create: "Created", update: "Changed", delete: "Deleted" }[c.verb] || c.verb}</strong>
            ${c.managers?.length ? html`<span>by <bdi>${c.managers.map((m) => m.name + (m.subresource ? "/" + m.subresource : "")).join(", ")}</bdi></span>` : ""}
            ${c.time && html`<span class="quiet"><${Age} of=${c.time} /> ago</span>`}
            <span class="quiet">revision ${c.revision}</span>
            <span class="push"></span>
            ${c.verb !== "delete" && !(i === 0 && !deleted) &&
            html`<span class="buttons">${!deleted && html`<button disabled=${busy} aria-label=${`Compare revision ${c.revision} with now`} onClick=${() => show(c, false)}>Compare with now</button>`}
              <button disabled=${busy} aria-label=${`Go back to revision ${c.revision}`} onClick=${() => show(c, true)}>${deleted ? "Create again" : "Go back…"}</button></span>`}
          </header>
          ${c.fields?.length > 0 && html`<${FieldChanges} fields=${c.fields.slice(0, 60)} />`}
          ${c.fields?.length > 60 && html`<p class="quiet">And ${c.fields.length - 60} more fields.</p>`}
        </li>`,
      )}
    </ol>
    ${s.token && html`<button onClick=${() => load(s.token)}>Older changes</button>`}
    ${compare &&
    (compare.back
      ? html`<${Review} title=${compare.title} resource=${resource} before=${compare.before} after=${compare.after} busy=${busy} confirm=${goBack} close=${() => setCompare()} button=${compare.back === "POST" ? "Create again" : "Go back"} />`
      : html`<${Dialog} title=${compare.title} close=${() => setCompare()}><${Diffed} resource=${resource} before=${compare.before} after=${compare.after} /><//>`)}
  </section>`;
}

const Diffed = ({ resource, before, after }) => {
  const [a, b] = maskedPair(resource, forDiff(before), forDiff(after));
  return html`<${DiffView} before=${a} after=${b} />`;
};

// Rights asks for each verb whether the user may.
function Rights({ resource, namespace, name }) {
  const [answers, setAnswers] = useState({});
  const questions = useMemo(
    () => [{ sub: "", verbs: resource.verbs }, ...resource.subresources.map((s) => ({ sub: s.name, verbs: s.verbs }))].flatMap((q) => q.verbs.map((verb) => ({ verb, sub: q.sub, id: q.sub + " " + verb }))).slice(0, 120),
    [resource],
  );
  useEffect(() => {
    const abort = new AbortController();
    let next = 0;
    setAnswers({});
    const work = async () => {
      while (next < questions.length && !abort.signal.aborted) {
        const q = questions[next++];
        try {
          const r = await send("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", { apiVersion: "authorization.k8s.io/v1", kind: "SelfSubjectAccessReview", spec: { resourceAttributes: { verb: q.verb, group: resource.group, version: resource.version, resource: resource.resource, subresource: q.sub, namespace, name: q.verb === "create" && !q.sub ? "" : name } } }, { signal: abort.signal });
          setAnswers((old) => ({ ...old, [q.id]: r.status }));
        } catch (error) {
          if (!abort.signal.aborted) setAnswers((old) => ({ ...old, [q.id]: { error } }));
        }
      }
    };
    for (let i = 0; i < 4; i++) work();
    return () => abort.abort();
  }, [resource, namespace, name]);
  const groups = [...new Set(questions.map((q) => q.sub))];
  return html`<div class="scroll"><table class="rights" aria-label="What I may do">
    <tbody>
      ${groups.map(
        (sub) => html`<tr key=${sub}>
          <th scope="row">${sub ? "/" + sub : resource.kind}</th>
          <td>
            ${questions.filter((q) => q.sub === sub).map((q) => {
              const a = answers[q.id];
              return html`<span key=${q.verb} class=${"right " + (!a ? "" : a.error ? "warn" : a.allowed ? "yes" : "no")} title=${a?.error?.message || a?.reason || a?.evaluationError || ""}>
                <span aria-hidden="true">${!a ? "…" : a.error ? "?" : a.allowed ? "✓" : "✕"}</span> ${q.verb}<span class="hear">${!a ? "" : a.error ? " not known" : a.allowed ? " allowed" : " not allowed"}</span>
              </span>`;
            })}
          </td>
        </tr>`,
      )}
    </tbody>
  </table></div>`;
}

// Remove deletes the object, after a dry run.
function Remove({ resource, namespace, name, object, close }) {
  const [propagation, setPropagation] = useState("");
  const [tried, setTried] = useState();
  const [error, setError] = useState();
  const [busy, setBusy] = useState(false);
  const path = pathOf(resource, namespace, name);
  const options = (dry) => ({ kind: "DeleteOptions", apiVersion: "v1", preconditions: { uid: object.metadata.uid }, ...(propagation ? { propagationPolicy: propagation } : {}), ...(dry ? { dryRun: ["All"] } : {}) });
  useEffect(() => {
    const abort = new AbortController();
    setTried();
    setError();
    send("DELETE", path, options(true), { signal: abort.signal }).then(setTried, (e) => abort.signal.aborted || setError(e));
    return () => abort.abort();
  }, [propagation]);
  const act = async () => {
    setBusy(true);
    try {
      await send("DELETE", path, options(false));
      toast(`${resource.kind} ${name} is deleted.`);
      close();
    } catch (e) {
      setError(e);
      setBusy(false);
    }
  };
  const finalizers = tried?.metadata?.finalizers || object.metadata.finalizers || [];
  return html`<${Dialog} title=${`Delete this ${resource.kind}?`} close=${close} actions=${html`<button onClick=${close}>Cancel</button><button class="danger" disabled=${!tried || busy} onClick=${act}>Delete</button>`}>
    <p><strong class="break"><bdi>${namespace && namespace + "/"}${name}</bdi></strong></p>
    <label>Dependents
      <select value=${propagation} onChange=${(e) => setPropagation(e.target.value)}>
        <option value="">as the kind has it</option>
        <option value="Background">are deleted afterwards (Background)</option>
        <option value="Foreground">are deleted first (Foreground)</option>
        <option value="Orphan">stay (Orphan)</option>
      </select>
    </label>
    <p role="status">${tried ? html`<span class="good">Dry run: the server would delete it.</span>` : error ? "" : "Dry run…"}${finalizers.length ? ` It goes when its finalizers are done: ${finalizers.join(", ")}.` : ""}</p>
    <${Failure} error=${error} />
  <//>`;
}

const tabs = [
  { id: "yaml", name: "YAML" },
  { id: "events", name: "Events" },
  { id: "relations", name: "Relations" },
  { id: "history", name: "History", history: true },
  { id: "rights", name: "What I may do" },
];

function Tabs({ current, all }) {
  const keys = (e) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!step) return;
    e.preventDefault();
    const i = (all.findIndex((t) => t.id === current) + step + all.length) % all.length;
    setQuery({ tab: all[i].id === "yaml" ? "" : all[i].id });
    e.currentTarget.children[i].focus();
  };
  return html`<div class="tabs" role="tablist" aria-label="About the object" onKeyDown=${keys}>
    ${all.map((t) => html`<button key=${t.id} role="tab" id=${"tab-" + t.id} aria-controls="tabpanel" aria-selected=${t.id === current} tabindex=${t.id === current ? 0 : -1} onClick=${() => setQuery({ tab: t.id === "yaml" ? "" : t.id })}>${t.name}</button>`)}
  </div>`;
}

function Shown({ resource, namespace, name, route, features, info }) {
  const { object, deleted, error, state, away, reload } = useObject(resource, namespace, name);
  const [removing, setRemoving] = useState(false);
  const dirty = useRef(false);
  const shownTabs = tabs.filter((t) => !t.history || features.history);
  let tab = route.query.get("tab") || "yaml";
  if (!shownTabs.some((t) => t.id === tab)) tab = "yaml";
  const owner = (object?.metadata.ownerReferences || []).find((o) => o.controller) || object?.metadata.ownerReferences?.[0];
  const lost = !object && error?.code === 404;
  return html`<article class="object">
    <header class="object-head">
      <p class="crumbs">
        <${Link} to=${listLink(resource, "")}>${resource.kind}<//>
        ${namespace && html`<span aria-hidden="true"> / </span><${Link} to=${listLink(resource, namespace)}><bdi>${namespace}</bdi><//>`}
      </p>
      <div class="title-line">
        <h1><bdi>${name}</bdi></h1>
        <span class="push"></span>
        ${object && !deleted && resource.verbs.includes("delete") && html`<button class="delete" onClick=${() => setRemoving(true)}>Delete…</button>`}
      </div>
      ${object &&
      html`<p class="facts">
        <span class="state" data-state=${deleted ? "failed" : state} role="status"><i class="dot"></i> ${deleted ? "Deleted" : { live: "Live", waiting: "The server is away; trying again", polled: "Read every 5 seconds" }[state] || ""}</span>
        <span>created <${Age} of=${object.metadata.creationTimestamp} /> ago</span>
        ${lastManager(object)?.time && html`<span>changed <${Age} of=${lastManager(object).time} /> ago by <bdi>${lastManager(object).manager}</bdi></span>`}
        ${owner && html`<span>owned by <${OwnerLink} owner=${owner} namespace=${namespace} /></span>`}
        ${object.metadata.deletionTimestamp && !deleted && html`<span class="warn">being deleted since <${Age} of=${object.metadata.deletionTimestamp} />${object.metadata.finalizers?.length ? `, waits for ${object.metadata.finalizers.join(", ")}` : ""}</span>`}
      </p>
      ${Object.keys(object.metadata.labels || {}).length > 0 && html`<ul class="labels" aria-label="Labels">${Object.entries(object.metadata.labels).slice(0, 30).map(([k, v]) => html`<li key=${k}><${Link} to=${listLink(resource, namespace) + (namespace ? "&" : "?") + "labelSelector=" + encodeURIComponent(k + "=" + v)}><bdi>${k}</bdi>=<bdi>${v}</bdi><//></li>`)}</ul>`}`}
    </header>
    ${deleted && html`<div class="notice" role="alert"><span>This object was deleted. What you see is how it was.</span>${features.history && html`<button onClick=${() => setQuery({ tab: "history" })}>Its history</button>`}</div>`}
    ${state === "waiting" && away && !object && html`<p class="warn" role="status">The server is away; trying again. ${away.message}</p>`}
    ${error && !object && html`<${Failure} error=${error} again=${reload} />`}
    ${lost && features.history && html`<section><h2>What there was</h2><${History} resource=${resource} namespace=${namespace} name=${name} deleted=${true} reload=${reload} /></section>`}
    ${!object && !error && html`<${Loading} />`}
    ${object &&
    html`<${Tabs} current=${tab} all=${shownTabs} />
      <div id="tabpanel" role="tabpanel" aria-labelledby=${"tab-" + tab}>
        <div hidden=${tab !== "yaml"}><${Yaml} key=${object.metadata.uid} resource=${resource} namespace=${namespace} name=${name} object=${object} deleted=${deleted} features=${features} reload=${reload} dirty=${dirty} hiddenTab=${tab !== "yaml"} /></div>
        ${tab === "events" && html`<${Events} object=${object} />`}
        ${tab === "relations" && html`<${Relations} resource=${resource} object=${object} />`}
        ${tab === "history" && html`<${History} resource=${resource} namespace=${namespace} name=${name} object=${object} deleted=${deleted} reload=${reload} />`}
        ${tab === "rights" && html`<${Rights} resource=${resource} namespace=${namespace} name=${name} />`}
      </div>`}
    ${removing && html`<${Remove} resource=${resource} namespace=${namespace} name=${name} object=${object} close=${() => setRemoving(false)} />`}
  </article>`;
}

function OwnerLink({ owner, namespace }) {
  const [r, setR] = useState();
  useEffect(() => {
    findKind(owner.apiVersion, owner.kind).then(setR, () => {});
  }, [owner.apiVersion, owner.kind]);
  const text = html`${owner.kind} <bdi>${owner.name}</bdi>`;
  return r ? html`<${Link} to=${objectLink(r, r.namespaced ? namespace : "", owner.name)}>${text}<//>` : html`<span>${text}</span>`;
}

export default function View({ route, info, features }) {
  const [, group, version, plural, ns, name] = route.parts;
  const [found, setFound] = useState();
  useEffect(() => {
    let gone = false;
    setFound();
    findResource(group === "core" ? "" : group, version, plural).then((r) => gone || setFound({ r }), (error) => gone || setFound({ error }));
    document.title = `${name} · Kelson console`;
    return () => (gone = true);
  }, [group, version, plural, name]);
  if (!name) return html`<${Failure} error=${{ code: 404, message: "An object's address is /object/GROUP/VERSION/RESOURCE/NAMESPACE/NAME." }} />`;
  if (!found) return html`<${Loading} />`;
  if (found.error) return html`<${Failure} error=${found.error} />`;
  if (!found.r) return html`<${Failure} error=${{ code: 404, message: `The server has no ${plural} in ${group}/${version}.` }} />`;
  return html`<${Shown} key=${route.path} resource=${found.r} namespace=${ns === "-" ? "" : ns} name=${name} route=${route} features=${features} info=${info} />`;
}
