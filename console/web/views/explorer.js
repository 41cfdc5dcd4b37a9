// Requests by hand: what is sent is chosen here, and shown as curl and as kubectl.
import { html, useState, useEffect, useRef, useStyle, useResources, setQuery, Dialog, escapeDirections, bytes } from "../lib/ui.js";
import { raw, pathOf, table } from "../lib/api.js";
import { Snippet, visible } from "../lib/snippet.js";
import { curlOf, kubectlOf, partsOf } from "../lib/commands.js";

const methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
const accepts = [
  ["application/json", "JSON"],
  ["application/yaml", "YAML"],
  ["application/json;as=Table;v=v1;g=meta.k8s.io", "table"],
  ["application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "metadata of a list"],
  ["application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "metadata of an object"],
  ["text/plain", "text"],
  ["*/*", "anything"],
];
const types = {
  POST: ["application/json", "application/yaml"],
  PUT: ["application/json", "application/yaml"],
  DELETE: ["application/json", "application/yaml"],
  PATCH: ["application/merge-patch+json", "application/strategic-merge-patch+json", "application/json-patch+json", "application/apply-patch+yaml"],
};
// Headers that may be added. Credentials are not among them: the console has those.
const safeHeaders = ["Impersonate-User", "Impersonate-Group", "Impersonate-Uid", "If-None-Match", "Audit-ID", "Kubectl-Command", "X-Request-Id"];

const mostShown = 256 << 10; // characters of an answer
const mostRead = 32 << 20; // bytes of an answer

// Requests of this visit; they are not stored, since their bodies may be secret.
let recent = [];

// fullPath checks a path and adds the query.
function fullPath({ path, query, dryRun }) {
  const p = path.trim();
  if (!p.startsWith("/")) throw new Error("A path begins with a slash, such as /api/v1/pods.");
  const url = new URL(location.origin + "/k8s" + p);
  if (url.origin !== location.origin || !url.pathname.startsWith("/k8s/") || url.hash) throw new Error("This is not a path of the API server.");
  const params = new URLSearchParams(query.trim().replace(/^\?/, ""));
  for (const [name, value] of params) url.searchParams.append(name, value);
  if (dryRun && !url.searchParams.has("dryRun")) url.searchParams.set("dryRun", "All");
  return url.pathname.slice("/k8s".length) + url.search;
}

const hasBody = (method) => method in types;

export default function Explorer({ route, info }) {
  useStyle("lib/isolate.css");
  useStyle("views/explorer.css");
  const [ask, setAsk] = useState(() => {
    const method = methods.includes(route.query.get("method")) ? route.query.get("method") : "GET";
    const [path, query] = (route.query.get("path") || "/api/v1/namespaces").split(/\?(.*)/s);
    return { method, path, query: query || "", accept: accepts[0][0], type: types[method]?.[0] || "application/json", headers: [], body: "", dryRun: true };
  });
  const [answer, setAnswer] = useState();
  const [sure, setSure] = useState(false);
  const [problem, setProblem] = useState("");
  const running = useRef();
  const form = useRef();
  const change = (changes) => {
    setProblem("");
    setAsk((a) => {
      const next = { ...a, ...changes };
      if (changes.method && hasBody(next.method) && !types[next.method].includes(next.type)) next.type = types[next.method][0];
      return next;
    });
  };
  useEffect(() => () => running.current?.abort(), []);
  const headers = [["Accept", ask.accept], ...(hasBody(ask.method) && ask.body ? [["Content-Type", ask.type]] : []), ...ask.headers.filter(([name, value]) => name && value)];
  let path, wrong;
  try {
    path = fullPath({ ...ask, dryRun: ask.dryRun && hasBody(ask.method) });
  } catch (err) {
    wrong = err.message;
  }
  const isWrite = hasBody(ask.method);
  const go = async () => {
    if (wrong) return setProblem(wrong);
    setSure(false);
    setProblem("");
    running.current?.abort();
    const abort = new AbortController();
    running.current = abort;
    setQuery({ method: ask.method === "GET" ? "" : ask.method, path }, true);
    recent = [{ ...ask, at: Date.now() }, ...recent.filter((r) => r.method + r.path + r.query + r.body !== ask.method + ask.path + ask.query + ask.body)].slice(0, 12);
    const began = performance.now();
    const show = (more) => running.current === abort && setAnswer((a) => ({ ...a, ...more, ms: performance.now() - began }));
    setAnswer({ running: true, text: "", size: 0, ms: 0, method: ask.method, path });
    try {
      const response = await raw(path, { method: ask.method, accept: ask.accept, headers: Object.fromEntries(headers), body: isWrite && ask.body ? ask.body : undefined, signal: abort.signal });
      show({ code: response.status, statusText: response.statusText, headers: [...response.headers], type: response.headers.get("Content-Type") || "" });
      let size = 0, text = "", shown = 0, last = 0;
      const reader = response.body?.getReader();
      const decoder = new TextDecoder();
      while (reader) {
        const { done, value } = await reader.read();
        if (done) break;
        size += value.length;
        if (text.length < 4 * mostShown) text += decoder.decode(value, { stream: true });
        if (size > mostRead) {
          show({ cut: true });
          abort.abort();
          break;
        }
        const now = performance.now();
        if (now - last > 200 || shown === 0) {
          last = now;
          shown = size;
          show({ size, text });
        }
      }
      show({ size, text, running: false, whole: text.length < 4 * mostShown });
    } catch (error) {
      if (abort.signal.aborted) show({ running: false, stopped: true });
      else show({ running: false, error });
    }
  };
  const submit = (e) => {
    e.preventDefault();
    if (ask.method === "DELETE" && !ask.dryRun && !wrong) setSure(true);
    else go();
  };
  const keys = (e) => {
    if ((e.ctrlKey || e.metaKey) && e.key === "Enter") {
      e.preventDefault();
      form.current.requestSubmit();
    }
  };
  const kubectl = path && kubectlOf(info.context, { method: ask.method, path, headers, body: ask.body, type: ask.type });
  return html`<div class="explorer isolate">
    <h1>Explorer</h1>
    <form ref=${form} onSubmit=${submit} onKeyDown=${keys} aria-label="Request">
      <div class="line">
        <label><span class="hidden">Method</span><select value=${ask.method} onChange=${(e) => change({ method: e.target.value })}>${methods.map((m) => html`<option value=${m}>${m}</option>`)}</select></label>
        <${Path} value=${ask.path} set=${(path) => change({ path })} namespace=${info.namespace} />
        <button class=${isWrite && !ask.dryRun ? (ask.method === "DELETE" ? "danger" : "primary") : "primary"} title="Ctrl-Enter">${isWrite ? (ask.dryRun ? "Try" : "Send " + ask.method) : "Send"}</button>
      </div>
      <div class="line">
        <label class="grow">Query <input value=${ask.query} onInput=${(e) => change({ query: e.target.value })} placeholder="limit=10&labelSelector=app=web" autocomplete="off" spellcheck="false" /></label>
        <label>Answer as <select value=${ask.accept} onChange=${(e) => change({ accept: e.target.value })}>${accepts.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select></label>
        ${isWrite && html`<label title="The server does everything but the write"><input type="checkbox" checked=${ask.dryRun} onChange=${(e) => change({ dryRun: e.target.checked })} /> dry run</label>`}
        <label><span class="hidden">Add a header</span><select value="" onChange=${(e) => (e.target.value && change({ headers: [...ask.headers, [e.target.value, ""]] }), (e.target.value = ""))}><option value="">Add a header…</option>${safeHeaders.map((h) => html`<option value=${h}>${h}</option>`)}</select></label>
      </div>
      ${ask.headers.map(
        ([name, value], i) => html`<div class="line" key=${i}>
          <label class="grow">${name} <input value=${value} onInput=${(e) => change({ headers: ask.headers.map((h, j) => (j === i ? [name, e.target.value] : h)) })} autocomplete="off" spellcheck="false" /></label>
          <button type="button" aria-label=${"Remove the header " + name} onClick=${() => change({ headers: ask.headers.filter((_, j) => j !== i) })}>✕</button>
        </div>`,
      )}
      ${isWrite &&
      html`<div class="body">
        <label>Body as <select value=${ask.type} onChange=${(e) => change({ type: e.target.value })}>${types[ask.method].map((t) => html`<option value=${t}>${t}</option>`)}</select></label>
        <textarea aria-label="Body" rows="10" value=${ask.body} onInput=${(e) => change({ body: e.target.value })} spellcheck="false" autocomplete="off"></textarea>
      </div>`}
      ${problem && html`<p class="bad" role="alert">${problem}</p>`}
    </form>
    ${answer && html`<${Answer} answer=${answer} stop=${() => running.current?.abort()} />`}
    ${path &&
    html`<section aria-label="As a command">
      <h2>The same as a command</h2>
      ${kubectl.text && html`<${Snippet} label="kubectl" text=${kubectl.text} />`}
      ${kubectl.note && html`<p class="quiet">${kubectl.note}</p>`}
      <${Snippet} label="curl; set TOKEN and CA before" text=${curlOf(info.server, { method: ask.method, path, headers, body: isWrite ? ask.body : "" })} />
    </section>`}
    ${recent.length > 1 &&
    html`<section aria-label="Requests before">
      <h2>Before</h2>
      <ul class="recent">${recent.slice(1).map((r) => html`<li key=${r.at}><button class="plain link" onClick=${() => setAsk(r)}><code>${r.method} <bdi>${visible(r.path)}${visible(r.query ? "?" + r.query : "")}</bdi></code></button></li>`)}</ul>
    </section>`}
    ${sure &&
    html`<${Dialog} title="Delete?" close=${() => setSure(false)} actions=${html`<button onClick=${() => setSure(false)}>No</button><button class="danger" onClick=${go}>Delete</button>`}>
      <p>${partsOf(path)?.name ? "This deletes:" : "This deletes everything that the path and the query name:"}</p>
      <p><code class="long"><bdi>${visible(path)}</bdi></code></p>
    <//>`}
  </div>`;
}

// Path completes paths: what discovery knows, and names of objects of the list that is
// typed.
function Path({ value, set, namespace }) {
  const known = useResources();
  const [names, setNames] = useState([]);
  const under = value.slice(0, value.lastIndexOf("/"));
  useEffect(() => {
    setNames([]);
    const of = partsOf(under);
    const r = of && !of.name && known.find((r) => r.group === of.group && r.version === of.version && r.resource === of.resource && r.verbs.includes("list") && (of.namespace || !r.namespaced));
    if (!r) return;
    const abort = new AbortController();
    const timer = setTimeout(() => {
      table(pathOf(r, of.namespace), { limit: 200 }, { signal: abort.signal }).then(
        (t) => setNames((t.rows || []).map((row) => pathOf(r, of.namespace, row.object.metadata.name))),
        () => {}, // nothing to complete
      );
    }, 250);
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [under, known]);
  const paths = [...new Set(known.flatMap((r) => (r.namespaced ? [pathOf(r), pathOf(r, namespace)] : [pathOf(r)]))), "/version", "/healthz", "/readyz", "/livez", "/metrics", "/openapi/v3", "/apis", "/api"];
  return html`<label class="grow"><span class="hidden">Path</span><input class="path" name="path" list="explorer-paths" value=${value} onInput=${(e) => set(e.target.value)} autocomplete="off" spellcheck="false" /></label>
    <datalist id="explorer-paths">${[...names, ...paths].map((p) => html`<option value=${p} />`)}</datalist>`;
}

// pretty formats JSON for reading.
function pretty({ text, type, whole, running }) {
  if (running || !whole || !/json/.test(type || "") || text.length > 2 * mostShown) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function Answer({ answer: a, stop }) {
  const text = pretty(a);
  const kind = a.error || a.code >= 400 ? "bad" : a.code ? "good" : "quiet";
  return html`<section class="answer-box" aria-label="Answer">
    <div class="tools">
      <h2>Answer</h2>
      <strong class=${kind} role="status">${a.error ? a.error.message : a.code ? `${a.code} ${a.statusText}` : a.stopped ? "stopped" : "waiting"}</strong>
      <span class="quiet">${Math.round(a.ms)} ms · ${bytes(a.size)}</span>
      ${a.running && html`<button onClick=${stop}>Stop</button>`}
      ${a.stopped && a.code && html`<span class="warn">${a.cut ? "It is longer than " + bytes(mostRead) + ", and was cut." : "Stopped."}</span>`}
    </div>
    ${a.headers && html`<details><summary>Headers: ${a.headers.length}</summary><table><tbody>${a.headers.map(([name, value], i) => html`<tr key=${i}><th scope="row">${name}</th><td><bdi>${visible(value)}</bdi></td></tr>`)}</tbody></table></details>`}
    ${text && html`<pre class="content" tabindex="0" aria-label="Body of the answer">${escapeDirections(text.slice(0, mostShown))}</pre>`}
    ${text.length > mostShown && html`<p class="quiet">Only the first ${bytes(mostShown)} are shown. Use limit, or the commands below.</p>`}
  </section>`;
}
