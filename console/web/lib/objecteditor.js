// The tab of an object with its YAML: editing, saving, merging, who has set each line.
import { html, useState, useEffect, useRef, useMemo, Failure, Dialog, Age, toast } from "./ui.js";
import { pathOf, request, get } from "./api.js";
import { dump, parse, owners } from "./yaml.js";
import { merge, merged, DiffView } from "./diff.js";
import { Editor, whenText } from "./editor.js";
import { schemaOf } from "./schema.js";
import { useFill } from "./fill.js";
import { isSecret, shownObject, hidden, isNewer, lastManager, historyQuery, Review } from "./shown.js";

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

// drafts are the edits of objects that the user has left without saving: by uid, in this
// page's memory only.
const drafts = new Map();

// Yaml is the tab with the editor.
export function Yaml({ resource, namespace, name, object, deleted, features, reload, dirty, hiddenTab, isLive }) {
  const draft = useRef(drafts.get(object.metadata.uid)).current;
  const editor = useRef(), box = useRef();
  useFill(box, [hiddenTab], 320);
  const [values, setValues] = useState(Boolean(draft?.values));
  const [managed, setManaged] = useState(false);
  const [who, setWho] = useState(() => innerWidth > 900 && localStorage.getItem("kelson-blame") !== "off");
  const [history, setHistory] = useState();
  const [edited, setEdited] = useState(Boolean(draft));
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState();
  const [review, setReview] = useState(); // {text, after}
  const [conflict, setConflict] = useState(); // {mine, theirs: object}
  // base is the version that the text in the editor began with.
  const [base, setBase] = useState(draft?.base || object);
  const opts = { values, managed };
  const baseDump = useMemo(() => dump(shownObject(resource, base, opts)), [base, values, managed]);
  const text = useRef(draft?.text || baseDump.text);
  const readOnly = deleted || !resource.verbs.includes("update") || (isSecret(resource) && !values);

  const leaving = useRef();
  leaving.current = edited ? { base, values } : undefined;
  useEffect(() => {
    const uid = object.metadata.uid;
    if (draft) toast("Your changes that were not saved are here again.");
    return () => (leaving.current ? drafts.set(uid, { ...leaving.current, text: text.current }) : drafts.delete(uid));
  }, []);
  useEffect(() => {
    dirty.current = edited;
  }, [edited]);
  useEffect(() => {
    const leave = (e) => dirty.current && e.preventDefault();
    window.addEventListener("beforeunload", leave);
    return () => window.removeEventListener("beforeunload", leave);
  }, []);

  // Another's change: taken at once if nothing is edited, offered otherwise.
  const newer = isNewer(object, base);
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
  const put = async (body, dry) => {
    const answer = await request(path, { method: "PUT", type: "application/yaml", body, query: { dryRun: dry ? "All" : undefined, fieldValidation: "Strict", fieldManager: "kelson-console" } });
    return { after: parse(await answer.text()), warning: answer.headers.get("Warning") };
  };
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
      setReview({ text: mine, ...(await put(mine, true)) });
    } catch (e) {
      await failed(e, mine);
    }
    setBusy(false);
  };
  const save = async () => {
    setBusy(true);
    const mine = review.text;
    try {
      const { after: saved } = await put(mine, false);
      setReview();
      setEdited(false);
      setBase(saved);
      text.current = dump(shownObject(resource, saved, opts)).text;
      editor.current.set(text.current);
      toast("Saved.");
      if (!isLive) reload();
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
    <div class="editor-box" ref=${box}><${Editor} text=${text.current} label=${`YAML of ${resource.kind} ${name}`} readOnly=${Boolean(readOnly)} changed=${changed} handle=${editor} schemaOf=${() => schemaOf(resource)} blame=${who ? lastBlame.current : undefined} save=${tryIt} /></div>
    ${isSecret(resource) && html`<${SecretValues} data=${object.data} />`}
    ${review && html`<${Review} title="Save these changes?" resource=${resource} before=${base} after=${review.after} warning=${review.warning} busy=${busy} confirm=${save} close=${() => setReview()} />`}
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
          <dt><bdi>${key}</bdi> <button aria-expanded=${Boolean(shown)} aria-label=${`${shown ? "Hide" : "Decode"} ${key}`} onClick=${() => setOpen((old) => ({ ...old, [key]: !old[key] }))}>${shown ? "Hide" : "Decode"}</button></dt>
          <dd>${shown ? html`${shown.binary && html`<small>${shown.size.toLocaleString()} bytes, not text:</small>`}<pre>${shown.text}</pre>` : html`<span class="quiet">${hidden(data[key])}</span>`}</dd>
        </div>`;
      })}
    </dl>`;
}
