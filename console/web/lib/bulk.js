// Changes of many objects: a dry run of each first, then, if the user wants, the change.
import { html, useState, useEffect, useRef, Dialog } from "./ui.js";
import { pathOf, send } from "./api.js";

const atOnce = 8;
const maxShown = 200;

// run calls act(row, signal) for every row, some at once, and tells of results as they come.
async function run(rows, act, signal, tell) {
  const results = new Map();
  let next = 0, timer;
  const say = () => (timer = undefined, signal.aborted || tell(new Map(results)));
  await Promise.all(
    Array.from({ length: Math.min(atOnce, rows.length) }, async () => {
      while (next < rows.length && !signal.aborted) {
        const row = rows[next++];
        try {
          results.set(row.key, { done: await act(row, signal) });
        } catch (error) {
          results.set(row.key, { error });
        }
        timer ||= setTimeout(say, 100);
      }
    }),
  );
  clearTimeout(timer);
  say();
}

function Results({ rows, results, words }) {
  const refused = rows.filter((r) => results.get(r.key)?.error), fine = rows.filter((r) => results.get(r.key)?.done);
  const shown = [...refused, ...fine].slice(0, maxShown);
  return html`<div class="scroll bulk-results" tabindex="0" role="region" aria-label="Results">
    <table>
      <thead><tr><th scope="col">Object</th><th scope="col">${words.column}</th></tr></thead>
      <tbody>
        ${shown.map((r) => {
          const { done, error } = results.get(r.key);
          return html`<tr key=${r.key}>
            <th scope="row"><bdi>${r.namespace && r.namespace + "/"}${r.name}</bdi></th>
            <td class=${error ? "bad" : "good"}>${error ? html`<strong>Refused: </strong>${error.message}` : done}</td>
          </tr>`;
        })}
      </tbody>
    </table>
    ${refused.length + fine.length > shown.length && html`<p class="quiet">And ${(refused.length + fine.length - shown.length).toLocaleString()} more that are fine.</p>`}
  </div>`;
}

// Bulk is the dialog: try is act with a dry run. The dry run begins when ready.
function Bulk({ title, rows, close, ready, inputs, tryIt, doIt, words, children, danger }) {
  const [phase, setPhase] = useState("idle"); // idle, trying, tried, doing, done
  const [results, setResults] = useState(new Map());
  const abort = useRef();
  const start = async (next, done, act, list) => {
    abort.current?.abort();
    const own = (abort.current = new AbortController());
    setResults(new Map());
    setPhase(next);
    await run(list, act, own.signal, setResults);
    if (!own.signal.aborted) setPhase(done);
  };
  useEffect(() => {
    if (!ready) {
      abort.current?.abort();
      setPhase("idle");
      return;
    }
    const timer = setTimeout(() => start("trying", "tried", tryIt, rows), 250);
    return () => clearTimeout(timer);
  }, [ready, ...inputs]);
  useEffect(() => () => abort.current?.abort(), []);
  const fine = rows.filter((r) => results.get(r.key)?.done), refused = rows.filter((r) => results.get(r.key)?.error);
  const [tried, setTried] = useState([]);
  useEffect(() => {
    if (phase === "tried") setTried(fine);
  }, [phase]);
  const total = phase === "doing" || phase === "done" ? tried.length : rows.length;
  return html`<${Dialog}
    title=${title}
    close=${close}
    actions=${html`
      <button onClick=${close}>${phase === "done" ? "Close" : "Cancel"}</button>
      ${phase !== "done" && html`<button class=${danger ? "danger" : "primary"} disabled=${phase !== "tried" || !fine.length} onClick=${() => start("doing", "done", doIt, fine)}>${words.button} ${phase === "tried" ? fine.length.toLocaleString() : ""}</button>`}
    `}
  >
    ${children}
    ${phase !== "idle" &&
    html`<p role="status" class="bulk-status">
        ${{ trying: "Dry run", tried: "Dry run", doing: words.doing, done: "Done" }[phase]}: ${fine.length.toLocaleString()} ${phase === "doing" || phase === "done" ? words.done : words.would}${refused.length ? html`, <span class="bad">${refused.length.toLocaleString()} refused</span>` : ""} of ${total.toLocaleString()}.
        ${(phase === "trying" || phase === "doing") && html` <progress value=${results.size} max=${total}></progress>`}
      </p>
      <${Results} rows=${rows} results=${results} words=${{ column: phase === "doing" || phase === "done" ? "Result" : "What would happen" }} />`}
  <//>`;
}

// Propagation is the choice of what happens to dependents.
export const Propagation = ({ value, choose }) => html`<label>Dependents
  <select value=${value} onChange=${(e) => choose(e.target.value)}>
    <option value="">as the kind has it</option>
    <option value="Background">are deleted afterwards (Background)</option>
    <option value="Foreground">are deleted first (Foreground)</option>
    <option value="Orphan">stay (Orphan)</option>
  </select>
</label>`;

export function Delete({ resource, rows, close }) {
  const [propagation, setPropagation] = useState("");
  const act = (dry) => async (row, signal) => {
    const options = { kind: "DeleteOptions", apiVersion: "v1", preconditions: { uid: row.uid }, ...(propagation ? { propagationPolicy: propagation } : {}), ...(dry ? { dryRun: ["All"] } : {}) };
    const answer = await send("DELETE", pathOf(resource, row.namespace, row.name), options, { signal });
    const finalizers = answer.metadata?.finalizers?.length ? `, after its finalizers: ${answer.metadata.finalizers.join(", ")}` : "";
    return (dry ? "would be deleted" : answer.metadata?.deletionTimestamp && finalizers ? "is being deleted" : "deleted") + finalizers;
  };
  return html`<${Bulk} title=${`Delete ${rows.length.toLocaleString()} ${resource.kind} ${rows.length === 1 ? "object" : "objects"}`} rows=${rows} close=${close} ready=${true} inputs=${[propagation]} tryIt=${act(true)} doIt=${act(false)} danger words=${{ button: "Delete", would: "would be deleted", doing: "Deleting", done: "deleted" }}>
    <${Propagation} value=${propagation} choose=${setPropagation} />
  <//>`;
}

export function Label({ resource, rows, close }) {
  const [key, setKey] = useState("");
  const [value, setValue] = useState("");
  const [remove, setRemove] = useState(false);
  const act = (dry) => async (row, signal) => {
    const before = row.labels?.[key];
    const answer = await send("PATCH", pathOf(resource, row.namespace, row.name), { metadata: { labels: { [key]: remove ? null : value } } }, { type: "application/merge-patch+json", query: { dryRun: dry ? "All" : undefined, fieldManager: "kelson-console" }, signal });
    const after = answer.metadata?.labels?.[key], show = (v) => (v === undefined ? "no label" : JSON.stringify(v));
    return before === after ? `stays ${show(after)}` : `${show(before)} → ${show(after)}`;
  };
  return html`<${Bulk} title=${`Label ${rows.length.toLocaleString()} ${resource.kind} ${rows.length === 1 ? "object" : "objects"}`} rows=${rows} close=${close} ready=${key.length > 0} inputs=${[key, value, remove]} tryIt=${act(true)} doIt=${act(false)} words=${{ button: "Label", would: "would be labelled", doing: "Labelling", done: "labelled" }}>
    <div class="tools">
      <label>Key <input value=${key} spellcheck=${false} autofocus onInput=${(e) => setKey(e.target.value.trim())} /></label>
      <label>Value <input value=${value} spellcheck=${false} disabled=${remove} onInput=${(e) => setValue(e.target.value)} /></label>
      <label><input type="checkbox" checked=${remove} onChange=${(e) => setRemove(e.target.checked)} /> Remove the label</label>
    </div>
  <//>`;
}
