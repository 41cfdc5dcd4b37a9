// The way to the server: requests, watches and discovery. Everything goes through the
// console, which adds the user's credentials.

const storageKey = "kelson-console-key";

// ApiError is an answer that is not a success. Its message is the server's own.
export class ApiError extends Error {
  constructor(code, status) {
    super(status.message || `The server answered ${code}.`);
    this.code = code;
    this.reason = status.reason || "";
    this.status = status;
  }
}

// loggedOut is an event of window: the keys are missing or no longer good.
function loggedOut() {
  window.dispatchEvent(new Event("kelson-logged-out"));
}

// logIn exchanges the key of the link, which is in the fragment of the address, or a
// password for a session. It reports whether there is one now.
export async function logIn(password) {
  const link = new URLSearchParams(location.hash.slice(1)).get("key");
  if (link) history.replaceState(null, "", location.pathname + location.search);
  if (link || password) {
    const answer = await fetch("/session", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(link ? { key: link } : { password }),
    });
    const said = await answer.json();
    if (!answer.ok) {
      // Who opens the link of their own session once more is logged in.
      if (link && localStorage.getItem(storageKey) !== null && (await own("/console/info")).ok) return true;
      throw new ApiError(answer.status, said);
    }
    localStorage.setItem(storageKey, said.key);
  }
  return localStorage.getItem(storageKey) !== null;
}

export async function logOut() {
  await fetch("/session", { method: "DELETE", headers: { "X-Kelson-Console": localStorage.getItem(storageKey) || "" } });
  localStorage.removeItem(storageKey);
  loggedOut();
}

// sessionKey is the page's key, for workers, which have no storage.
export const sessionKey = () => localStorage.getItem(storageKey) || "";

async function own(path, options = {}) {
  const headers = { ...options.headers, "X-Kelson-Console": localStorage.getItem(storageKey) || "" };
  const answer = await fetch(path, { ...options, headers, redirect: "error" }); // it would take the keys along
  if (answer.status === 401 && answer.headers.get("X-Kelson-Console")) loggedOut(); // the console's own answer
  return answer;
}

async function succeed(answer) {
  if (answer.ok) return answer;
  const text = await answer.text();
  let status = { message: text.slice(0, 2000) };
  try {
    status = JSON.parse(text);
  } catch {
    // Not every answer is a Status.
  }
  throw new ApiError(answer.status, status);
}

// consoleInfo says which server this is, and as whom the console speaks.
export const consoleInfo = async () => (await succeed(await own("/console/info"))).json();

// action calls an action of the command, such as undo.
export async function action(name, body, signal) {
  const answer = await own("/console/" + name, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
  return (await succeed(answer)).json();
}

function withQuery(path, query) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query || {})) {
    if (Array.isArray(value)) value.forEach((v) => params.append(name, v));
    else if (value !== undefined && value !== null && value !== "") params.set(name, value);
  }
  const text = params.toString();
  return text ? path + (path.includes("?") ? "&" : "?") + text : path;
}

// raw sends a request to a path of the API server, and returns the Response whatever its
// code is.
export function raw(path, { method = "GET", query, body, type, accept = "application/json", headers, signal } = {}) {
  const all = { Accept: accept, ...headers };
  if (type) all["Content-Type"] = type;
  return own("/k8s" + withQuery(path, query), { method, body, headers: all, signal });
}

// request is raw that throws an ApiError for what is not a success.
export const request = async (path, options) => succeed(await raw(path, options));

// get returns the JSON of a path.
export const get = async (path, query, options) => (await request(path, { ...options, query })).json();

// send sends JSON, and returns the JSON that is answered.
export const send = async (method, path, body, options = {}) =>
  (await request(path, { type: "application/json", ...options, method, body: body === undefined ? undefined : JSON.stringify(body) })).json();

const tableType = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

// table returns a list as the server's own table. includeObject is None, Metadata or Object.
export const table = (path, query, options) => get(path, { includeObject: "Metadata", ...query }, { ...options, accept: tableType });

// watch follows a list. It calls event(type, object) for each event, connects again by
// itself, and calls state("live" | "waiting" | "expired", error). After "expired" (the
// server no longer has the resourceVersion) it has ended: list again. Returns a function
// that ends it.
export function watch(path, query, { asTable = false, event, state = () => {} }) {
  let ended = false, socket, timer, tries = 0, version = query.resourceVersion;
  const connect = () => {
    const full = withQuery(path, { ...query, resourceVersion: version, watch: 1, allowWatchBookmarks: true, ...(asTable ? { includeObject: query.includeObject || "Metadata" } : {}) });
    const scheme = location.protocol === "https:" ? "wss://" : "ws://";
    socket = new WebSocket(`${scheme}${location.host}/watch?path=${encodeURIComponent(full)}${asTable ? "&table" : ""}`, ["kelson", localStorage.getItem(storageKey) || "none"]);
    // The console accepts a watch before the server has; after a failure it has to last.
    let confirm;
    socket.onopen = () => (tries ? (confirm = setTimeout(() => state("live"), 400)) : state("live"));
    socket.onmessage = ({ data }) => {
      const { type, object } = JSON.parse(data);
      if (type === "ERROR") {
        if (object.code === 410 || object.reason === "Expired") finish("expired", new ApiError(410, object));
        else if (object.code >= 400 && object.code < 500 && object.code !== 429) finish("refused", new ApiError(object.code, object));
        return;
      }
      tries = 0;
      // Tables of a watch have one row, and a version of their own.
      version = object.metadata?.resourceVersion || object.rows?.[0]?.object?.metadata?.resourceVersion || version;
      if (type !== "BOOKMARK") event(type, object);
    };
    socket.onclose = () => {
      clearTimeout(confirm);
      if (ended) return;
      state("waiting");
      timer = setTimeout(connect, Math.min(200 * 2 ** tries++, 5000) * (0.5 + Math.random()));
    };
  };
  const finish = (how, err) => {
    if (ended) return;
    ended = true;
    clearTimeout(timer);
    socket.close();
    if (how) state(how, err);
  };
  connect();
  return () => finish();
}

// A resource is what discovery says of one version of a resource: group ("" for core),
// version, resource, kind, namespaced, verbs, shortNames, categories, singular, preferred
// (it is in the first version of its group that has it), subresources.
let discovered;

// resources returns all that the server has, by group and name. Fresh asks again.
export function resources(fresh) {
  if (!discovered || fresh) {
    const asking = readDiscovery();
    discovered = asking;
    asking.catch(() => {
      if (discovered === asking) discovered = undefined;
    });
  }
  return discovered;
}

const discoveryType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

async function readDiscovery() {
  const [core, groups] = await Promise.all([get("/api", {}, { accept: discoveryType }), get("/apis", {}, { accept: discoveryType })]);
  const all = [];
  for (const g of [...(core.items || []), ...(groups.items || [])]) {
    const seen = new Set();
    for (const v of g.versions || []) {
      for (const r of v.resources || []) {
        all.push({
          group: g.metadata?.name || "",
          version: v.version,
          resource: r.resource,
          kind: r.responseKind?.kind || "",
          namespaced: r.scope === "Namespaced",
          verbs: r.verbs || [],
          shortNames: r.shortNames || [],
          categories: r.categories || [],
          singular: r.singularResource || "",
          preferred: !seen.has(r.resource),
          stale: v.freshness === "Stale",
          subresources: (r.subresources || []).map((s) => ({ name: s.subresource, verbs: s.verbs || [] })),
        });
        seen.add(r.resource);
      }
    }
  }
  return all;
}

// findResource returns the resource with these names, or undefined.
export const findResource = async (group, version, resource) =>
  (await resources()).find((r) => r.group === group && (!version || r.version === version) && r.resource === resource);

// findKind returns the resource of an apiVersion and a kind, or undefined.
export const findKind = async (apiVersion, kind) =>
  (await resources()).find((r) => (r.group ? `${r.group}/${r.version}` : r.version) === apiVersion && r.kind === kind);

// pathOf is the path of a resource, of an object of it, or of a subresource.
export function pathOf(r, namespace, name, subresource) {
  let path = r.group ? `/apis/${r.group}/${r.version}` : `/api/${r.version}`;
  if (r.namespaced && namespace) path += `/namespaces/${encodeURIComponent(namespace)}`;
  path += `/${r.resource}`;
  if (name) path += `/${encodeURIComponent(name)}`;
  if (subresource) path += `/${subresource}`;
  return path;
}

// objectLink is the address of an object's page in the console.
export const objectLink = (r, namespace, name) =>
  `/object/${r.group || "core"}/${r.version}/${r.resource}/${encodeURIComponent(namespace || "-")}/${encodeURIComponent(name)}`;

// listLink is the address of a list in the console.
export const listLink = (r, namespace) => `/objects/${r.group || "core"}/${r.version}/${r.resource}` + (namespace ? `?namespace=${encodeURIComponent(namespace)}` : "");

// features says what the server can tell beyond Kubernetes: the pages below /debug/kelson/
// that exist. A page of Kelson that the user may not read is there all the same; other servers
// refuse such a path as well, to users who may not read any path.
let probed;
export function features() {
  probed ||= (async () => {
    let version; // asked for once, and only if a page is refused
    const isOther = () =>
      (version ||= get("/version").then((v) => !/\+kelson\b/.test(v.gitVersion), (error) => {
        if (error.code === 403) return false;
        throw error;
      }));
    const has = async (page) => {
      const answer = await raw("/debug/kelson/" + page);
      if (answer.status >= 500) await succeed(answer); // it is away, or has too much to do
      const text = await answer.text();
      if (answer.status === 403 && (await isOther())) return false;
      return answer.status !== 404 || text.includes('"details"');
    };
    const [memory, top, history, why] = await Promise.all([has("memory"), has("top"), has("history?limit=1"), has("why?verb=get&path=/livez")]);
    return { kelson: memory || top, memory, top, history, why };
  })();
  probed.catch(() => (probed = undefined));
  return probed;
}
