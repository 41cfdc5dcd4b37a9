// Creates objects from YAML: a dry run, then the objects.
import { html, useState, useRef, Dialog, Link } from "./ui.js";
import { findKind, pathOf, objectLink, request } from "./api.js";
import { documents } from "./yaml.js";
import { Editor } from "./editor.js";
import { schemaOf } from "./schema.js";
import { loadStyle } from "./style.js";

await loadStyle("lib/create.css");

const maxDocuments = 200;

// documentAt returns the document of a text that a position is in.
export function documentAt(text, pos) {
  let at = 0;
  for (const part of text.split(/^(?=---)/m)) {
    at += part.length;
    if (pos <= at) return documents(part)[0];
  }
}

export const schemaAt = async (text, pos) => {
  const d = documentAt(text, pos), r = d?.apiVersion && d.kind && (await findKind(d.apiVersion, d.kind));
  return r && schemaOf(r);
};

function sketch(r, namespace) {
  const lines = [`apiVersion: ${r.group ? r.group + "/" : ""}${r.version}`, `kind: ${r.kind}`, "metadata:", "  name: "];
  if (r.namespaced) lines.push(`  namespace: ${namespace}`);
  return lines.join("\n") + "\n";
}

export function Create({ resource, namespace, close }) {
  const editor = useRef();
  const [results, setResults] = useState();
  const [tried, setTried] = useState(); // the text that the dry run was of
  const [busy, setBusy] = useState(false);
  const first = useRef(sketch(resource, namespace)).current;
  const act = async (dry) => {
    setBusy(true);
    const text = editor.current.text(), all = documents(text).slice(0, maxDocuments), out = [];
    setResults([]);
    for (const d of all) {
      const result = { ...d };
      try {
        if (!d.apiVersion || !d.kind) throw new Error("A document needs apiVersion and kind.");
        const r = await findKind(d.apiVersion, d.kind);
        if (!r) throw new Error(`The server has no ${d.kind} in ${d.apiVersion}.`);
        const ns = r.namespaced ? d.namespace || namespace : "";
        const answer = await request(pathOf(r, ns), { method: "POST", type: "application/yaml", body: d.text, query: { dryRun: dry ? "All" : undefined, fieldValidation: "Strict", fieldManager: "kelson-console" } });
        const made = await answer.json();
        Object.assign(result, { made: made.metadata, link: objectLink(r, made.metadata.namespace, made.metadata.name), warning: answer.headers.get("Warning") });
      } catch (error) {
        // A namespace that an earlier document makes is not there in a dry run.
        const made = dry && out.some((o) => o.kind === "Namespace" && !o.error && o.name === d.namespace);
        if (made && error.code === 404) result.waits = d.namespace;
        else result.error = error;
      }
      out.push(result);
      setResults([...out]);
    }
    if (!all.length) setResults([{ error: { message: "There is no document." } }]);
    setTried(dry && all.length && out.every((r) => !r.error) ? text : undefined);
    setBusy(false);
    if (!dry && out.every((r) => !r.error)) setTried("done");
  };
  const done = tried === "done";
  return html`<${Dialog}
    title="Create objects"
    close=${close}
    actions=${html`
      <button onClick=${close}>${done ? "Close" : "Cancel"}</button>
      ${!done && html`<button disabled=${busy} onClick=${() => act(true)}>Dry run</button>`}
      ${!done && html`<button class="primary" disabled=${busy || !tried} title=${tried ? "" : "A dry run comes first"} onClick=${() => act(false)}>Create</button>`}
    `}
  >
    <p class="quiet">YAML or JSON; several documents are separated by <code>---</code>. Control-Space completes fields.</p>
    <div class="create-editor"><${Editor} autofocus text=${first} cursor=${first.indexOf("  name: ") + 8} label="YAML of the new objects" handle=${editor} schemaOf=${schemaAt} changed=${() => tried && !done && setTried()} save=${() => act(true)} /></div>
    <ul class="create-results" role="status" aria-label="Results">
      ${(results || []).map(
        (r, i) => html`<li key=${i} class=${r.error ? "bad" : ""}>
          <strong><bdi>${r.kind || "Document"} ${r.made?.name || r.name || ""}</bdi></strong>
          ${r.error ? html` <span>${r.error.message}</span>` : r.waits ? html` <span class="quiet">can be tried when its namespace is there</span>` : done ? html` created: <${Link} to=${r.link}><bdi>${r.made.name}</bdi><//>` : html` <span class="good">would be created${r.made.namespace ? html` in <bdi>${r.made.namespace}</bdi>` : ""}</span>`}
          ${r.warning && html`<span class="warn"> ${r.warning.replace(/\b299 - /g, "")}</span>`}
        </li>`,
      )}
    </ul>
  <//>`;
}
