// The objects of one kind, as the server's own table, live.
import { html, useState, useEffect, useRef, useMemo, navigate, setQuery, Link, Failure, Loading, useAsync, ago, toast } from "../lib/ui.js";
import { resources, listLink, objectLink, get, pathOf } from "../lib/api.js";
import { ObjectList } from "../lib/list.js";
import { Grid } from "../lib/grid.js";
import { useFill } from "../lib/fill.js";
import { loadStyle } from "../lib/style.js";

await loadStyle("views/objects.css");

const groupName = (r) => r.group || "core";
const isAsked = (r, words) => words.every((w) => [r.resource, r.kind.toLowerCase(), groupName(r), r.singular, ...r.shortNames].some((n) => n.includes(w)));

// Lists of one object, which say how many there are: four at a time, and kept for a minute.
const counted = new Map();
let counting = 0;
const waiting = [];
async function count(r, signal) {
  const id = `${r.group}/${r.resource}`, had = counted.get(id);
  if (had && Date.now() - had.at < 60_000) return had.count;
  while (counting >= 4) await new Promise((resolve) => waiting.push(resolve));
  counting++;
  try {
    const list = await get(pathOf(r), { limit: 1 }, { accept: "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json", signal });
    const n = (list.items || []).length + (list.metadata?.remainingItemCount || 0);
    counted.set(id, { count: n, at: Date.now() });
    return n;
  } finally {
    counting--;
    waiting.shift()?.();
  }
}

function Count({ of }) {
  const [n, setN] = useState(counted.get(`${of.group}/${of.resource}`)?.count);
  useEffect(() => {
    const abort = new AbortController();
    count(of, abort.signal).then(setN, () => {});
    return () => abort.abort();
  }, [of]);
  return html`<span class="count">${n === undefined ? "" : n.toLocaleString()}</span>`;
}

// Kinds is the list of kinds by group, with a filter.
function Kinds({ all, current, counts, chosen }) {
  const [text, setText] = useState("");
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const groups = useMemo(() => {
    const by = new Map();
    for (const r of all) {
      if (!r.verbs.includes("list") || !r.preferred || !isAsked(r, words)) continue;
      if (!by.has(groupName(r))) by.set(groupName(r), []);
      by.get(groupName(r)).push(r);
    }
    return [...by];
  }, [all, text]);
  const box = useRef();
  useEffect(() => {
    const link = box.current?.querySelector("[aria-current]");
    if (!link) return;
    const a = link.getBoundingClientRect(), b = box.current.getBoundingClientRect();
    if (a.top < b.top || a.bottom > b.bottom) box.current.scrollTop += a.top - b.top - b.height / 3;
  }, [current]);
  return html`<nav class="kinds" aria-label="Kinds">
    <input type="search" placeholder="Filter kinds" aria-label="Filter kinds" value=${text} onInput=${(e) => setText(e.target.value)} />
    <div class="groups" ref=${box}>
      ${groups.map(
        ([group, list]) => html`<section key=${group}>
          <h2>${group}</h2>
          <ul>
            ${list.map(
              (r) => html`<li key=${r.resource}>
                <${Link} to=${listLink(r)} aria-current=${current && r.group === current.group && r.resource === current.resource ? "page" : undefined} title=${`${r.kind} (${groupName(r)}/${r.version})`} onFocus=${chosen}>
                  <span>${r.kind}</span>${counts && html`<${Count} of=${r} />`}
                <//>
              </li>`,
            )}
          </ul>
        </section>`,
      )}
      ${groups.length === 0 && html`<p class="quiet">No kind has this name.</p>`}
    </div>
  </nav>`;
}

const good = /^(Running|Active|Bound|Ready|True|Complete|Completed|Succeeded|Available|Approved.*|Healthy)$/;
const bad = /^(Failed|Error|CrashLoopBackOff|ImagePullBackOff|ErrImagePull|Lost|NotReady.*|Evicted|OOMKilled|InvalidImageName|Denied|Warning|.*Error|.*BackOff)$/;
const wait = /^(Pending|Terminating|ContainerCreating|PodInitializing|Init:.*|Unknown|Suspended|Released|Progressing|Failing.*)$/;
const toned = /^(status|phase|ready|state|condition|type|available|synced|health)$/i;

const chosenKey = (r) => `kelson-columns-${r.group}/${r.resource}`;

const source = (list, resource) => ({
  length: () => list.view.length,
  at: (i) => list.view[i],
  indexOf: (row) => list.indexOf(row),
  href: (row) => objectLink(resource, row.namespace, row.name),
  text: (row, column) => column.text(row),
  tone: (row, column, text) => (good.test(text) ? "good" : bad.test(text) ? "bad" : wait.test(text) ? "warn" : ""),
});

// columnsFor are the columns that a list can show, those of the server and some more.
function columnsFor(list, resource, namespace) {
  const all = [];
  if (resource.namespaced) {
    all.push({ id: "Namespace", name: "Namespace", text: (r) => r.namespace, value: (r) => r.namespace, byDefault: !namespace });
  }
  for (const c of list.columns || []) {
    const at = c.cell;
    if (c.age) all.push({ id: c.id, name: c.name, description: "When it was created.", text: (r) => (r.created ? ago(r.created) : "–"), value: (r) => -r.created, byDefault: !c.wide, width: 9, number: false });
    else
      all.push({
        id: c.id,
        name: c.name,
        description: c.description,
        isName: c.isName,
        toned: toned.test(c.name),
        number: c.type === "integer" || c.type === "number",
        text: (r) => (r.cells[at] === undefined || r.cells[at] === null ? "" : String(r.cells[at])),
        value: (r) => r.cells[at],
        byDefault: !c.wide,
        wide: c.wide,
      });
  }
  if (!all.some((c) => c.id === "Age")) all.push({ id: "Age", name: "Age", description: "When it was created.", text: (r) => (r.created ? ago(r.created) : "–"), value: (r) => -r.created, wide: true, width: 9 });
  all.push({ id: "Labels", name: "Labels", text: (r) => Object.entries(r.labels || {}).map(([k, v]) => `${k}=${v}`).join(", "), value: (r) => Object.entries(r.labels || {}).join(), wide: true });
  // The name is first: it is what rows are opened by.
  const name = all.findIndex((c) => c.isName);
  if (name > 0) all.unshift(...all.splice(name, 1));
  return all;
}

// widthOf is the width of a column in characters, by the rows that are there.
function widthOf(column, list) {
  if (column.width) return column.width;
  let most = column.isName ? 20 : column.name.length + 4, seen = 0;
  for (const row of list.rows.values()) {
    most = Math.max(most, column.text(row).length + 3);
    if (++seen >= 200) break;
  }
  return Math.min(most, column.isName ? 52 : column.id === "Labels" ? 60 : 34);
}

// Status says how the list is: loading, live, or waiting for the server.
function Status({ list, tick }) {
  const s = list.state, shown = list.view.length;
  const n = (x) => x.toLocaleString();
  let text;
  if (s.complete || !s.expected) text = s.complete && !list.words ? `${n(s.loaded)} ${s.loaded === 1 ? "object" : "objects"}` : `${n(shown)} of ${n(s.loaded)}`;
  else text = list.words ? `${n(shown)} of ${n(s.loaded)} loaded, ${n(s.expected)} in all` : `${n(s.loaded)} of ${n(s.expected)} loaded`;
  const state = s.phase === "waiting" ? "The server is away; trying again" : s.phase === "live" ? (s.unwatched ? (s.loaded <= 2000 ? "Read every 10 seconds: the server refuses the watch" : "Not live: the server refuses the watch") : !list.canWatch ? "Not live: this kind has no watch" : "Live") : s.phase === "loading" ? "Loading" : "";
  if (s.phase === "failed" && !s.loaded) return null;
  return html`<p class="status" data-phase=${s.phase}>
    <span role="status" aria-label="State of the list"><i class="dot"></i> ${state}</span>
    <span class="quiet" aria-label="Number of rows">${s.columns || list.columns ? text : ""}</span>
    ${!s.complete && s.expected > 0 && !s.more && html`<progress value=${s.loaded} max=${s.expected} aria-label="Loading of the list"></progress>`}
    ${s.more && html`<button onClick=${() => list.loadRest()}>Load more</button>`}
  </p>`;
}

function NamespacePicker({ value, choose }) {
  const { value: names } = useAsync(async (signal) => {
    const list = await get("/api/v1/namespaces", { limit: 2000 }, { accept: "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json", signal });
    return list.items.map((n) => n.metadata.name);
  }, []);
  return html`<input
      class="namespace"
      list="namespaces"
      aria-label="Namespace"
      placeholder="All namespaces"
      value=${value}
      spellcheck=${false}
      onChange=${(e) => choose(e.target.value.trim())}
      onFocus=${(e) => e.target.select()}
    /><datalist id="namespaces">${(names || []).map((n) => html`<option key=${n} value=${n} />`)}</datalist>`;
}

// Menu is a button with a panel below, which Escape and a click elsewhere close.
export function Menu({ label, title, children }) {
  const [open, setOpen] = useState(false);
  const ref = useRef();
  useEffect(() => {
    if (!open) return;
    const away = (e) => ref.current?.contains(e.target) || setOpen(false);
    const keys = (e) => e.key === "Escape" && (setOpen(false), ref.current.querySelector("button").focus());
    document.addEventListener("pointerdown", away);
    document.addEventListener("keydown", keys);
    return () => {
      document.removeEventListener("pointerdown", away);
      document.removeEventListener("keydown", keys);
    };
  }, [open]);
  return html`<div class="menu" ref=${ref}>
    <button aria-expanded=${open} aria-haspopup="true" title=${title} onClick=${() => setOpen(!open)}>${label}</button>
    ${open && html`<div class="menu-panel" role="group" aria-label=${title || label}>${children}</div>`}
  </div>`;
}

function List({ resource, route, info }) {
  const q = route.query;
  const namespace = resource.namespaced ? q.get("namespace") || "" : "";
  const labelSelector = q.get("labelSelector") || "", fieldSelector = q.get("fieldSelector") || "", text = q.get("text") || "";
  const sorting = q.get("sort") ? { id: q.get("sort").replace(/^-/, ""), desc: q.get("sort").startsWith("-") } : undefined;
  const asked = q.get("columns") ?? localStorage.getItem(chosenKey(resource)) ?? "";
  const host = useRef(), box = useRef(), filter = useRef(), grid = useRef();
  const [tick, setTick] = useState(0);
  const [selection, setSelection] = useState(0);
  const [Dialogs, setDialogs] = useState(); // what is open: {Component, props}

  const list = useMemo(() => new ObjectList({ resource, namespace, labelSelector, fieldSelector, changed: () => {} }), [resource, namespace, labelSelector, fieldSelector]);
  const now = useRef({});

  // The grid is made once for a list; the list tells it of changes.
  useEffect(() => {
    let timer, last = 0;
    const element = document.createElement("div");
    host.current.replaceChildren(element);
    const made = new Grid(element, {
      label: `${resource.kind} objects`,
      source: source(list, resource),
      open: (row) => navigate(objectLink(resource, row.namespace, row.name)),
      sort: (column) => now.current.sort(column),
      selected: (keys) => setSelection(keys.size),
    });
    grid.current = made;
    list.changed = () => {
      // Keys of rows that are gone are no longer selected.
      if (made.selection.size) {
        let gone = 0;
        for (const key of made.selection) if (!list.rows.has(key)) gone += made.selection.delete(key);
        if (gone) made.showSelection();
      }
      made.refresh();
      const wait = Math.max(0, 150 - (performance.now() - last));
      timer ||= setTimeout(() => {
        timer = undefined;
        last = performance.now();
        setTick((n) => n + 1);
      }, list.columns && !last ? 0 : wait);
    };
    if (text) list.setFilter(text);
    list.start();
    return () => {
      clearTimeout(timer);
      list.changed = () => {};
      list.stop();
      made.destroy();
    };
  }, [list]);

  useEffect(() => {
    const timer = setTimeout(() => (list.text === text ? undefined : ((list.text = text), list.setFilter(text))), list.rows.size > 5000 ? 80 : 0);
    return () => clearTimeout(timer);
  }, [list, text]);

  const all = useMemo(() => columnsFor(list, resource, namespace), [list, list.columns, namespace]);
  const wanted = asked ? asked.split(",") : undefined;
  const columns = useMemo(() => {
    const shown = all.filter((c) => c.isName || (wanted ? wanted.includes(c.id) : c.byDefault));
    return shown.map((c) => ({ ...c, width: widthOf(c, list) }));
  }, [all, asked, list.columns, list.rows.size > 0, list.state.complete]);

  const ready = Boolean(list.columns);
  useEffect(() => {
    if (!ready || grid.current?.destroyed) return;
    const by = sorting && all.find((c) => c.id === sorting.id);
    const wish = by ? JSON.stringify(sorting) : "";
    if ((list.sortedBy || "") !== wish) {
      list.sortedBy = wish;
      list.setSort(by?.value, sorting?.desc);
    }
    grid.current.setColumns(columns, by && sorting);
  }, [list, ready, columns, q.get("sort")]);

  now.current.sort = (column) => setQuery({ sort: sorting?.id !== column.id ? column.id : sorting.desc ? "" : "-" + column.id });

  useFill(box, [list]);

  useEffect(() => {
    const keys = (e) => {
      if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || e.target.closest?.("input, textarea, select, [contenteditable], dialog")) return;
      e.preventDefault();
      filter.current.focus();
      filter.current.select();
    };
    window.addEventListener("keydown", keys);
    return () => window.removeEventListener("keydown", keys);
  }, []);

  const choose = (id, on) => {
    const now = columns.map((c) => c.id).filter((c) => c !== id);
    if (on) now.push(id);
    const text = all.filter((c) => now.includes(c.id)).map((c) => c.id).join(",");
    localStorage.setItem(chosenKey(resource), text);
    setQuery({ columns: text });
  };
  const open = async (name, props) => {
    try {
      const module = await import("../lib/" + { Create: "create", Delete: "bulk", Label: "bulk" }[name] + ".js");
      setDialogs({ Component: module[name], props });
    } catch (e) {
      toast(e.message, "error");
    }
  };
  const selectedRows = () => [...grid.current.selection].map((key) => list.rows.get(key)).filter(Boolean);
  // The grid takes the focus when the dialog, which keeps it, is gone.
  const close = () => (setDialogs(), setTimeout(() => host.current?.firstChild?.focus({ preventScroll: true }), 50));
  const can = (verb) => resource.verbs.includes(verb);
  const failed = list.state.phase === "failed";

  return html`<section class="list" aria-label=${resource.kind}>
    <div class="list-head">
      <div class="tools">
        ${resource.namespaced && html`<${NamespacePicker} value=${namespace} choose=${(n) => setQuery({ namespace: n }, false)} />`}
        <input
          ref=${filter}
          class="text"
          type="search"
          aria-label="Filter rows by text"
          aria-keyshortcuts="/"
          placeholder="Filter rows  ( / )"
          value=${text}
          onInput=${(e) => setQuery({ text: e.target.value })}
          onKeyDown=${(e) => {
            if (e.key === "Enter" || e.key === "ArrowDown") {
              e.preventDefault();
              host.current.firstChild?.focus();
            }
          }}
        />
        <input class="selector" aria-label="Label selector" placeholder="Labels: app=web" value=${labelSelector} spellcheck=${false} onChange=${(e) => setQuery({ labelSelector: e.target.value.trim() }, false)} />
        <input class="selector" aria-label="Field selector" placeholder="Fields: metadata.name=x" value=${fieldSelector} spellcheck=${false} onChange=${(e) => setQuery({ fieldSelector: e.target.value.trim() }, false)} />
        <span class="push"></span>
        <${Menu} label="Columns" title="Choose columns">
          ${all.map(
            (c) => html`<label key=${c.id}><input type="checkbox" checked=${columns.some((s) => s.id === c.id)} disabled=${c.isName} onChange=${(e) => choose(c.id, e.target.checked)} /> ${c.name} ${c.wide && html`<small>wide</small>`}</label>`,
          )}
          <label class="sort-by">Sort by
            <select value=${q.get("sort") || ""} onChange=${(e) => setQuery({ sort: e.target.value })}>
              <option value="">the server's order</option>
              ${columns.flatMap((c) => [html`<option key=${c.id} value=${c.id}>${c.name}</option>`, html`<option key=${"-" + c.id} value=${"-" + c.id}>${c.name}, descending</option>`])}
            </select>
          </label>
          <button onClick=${() => (localStorage.removeItem(chosenKey(resource)), setQuery({ columns: "" }))}>As the server suggests</button>
        <//>
        ${can("create") && html`<button class="primary" onClick=${() => open("Create", { resource, namespace: namespace || info.namespace || "default" })}>Create</button>`}
      </div>
      ${selection > 0
        ? html`<div class="selected" role="toolbar" aria-label="Selected objects">
            <strong>${selection.toLocaleString()} selected</strong>
            ${can("delete") && html`<button onClick=${() => open("Delete", { resource, rows: selectedRows() })}>Delete…</button>`}
            ${can("patch") && html`<button onClick=${() => open("Label", { resource, rows: selectedRows() })}>Label…</button>`}
            <button class="plain" onClick=${() => grid.current.selectAll(false)}>Select nothing</button>
          </div>`
        : html`<${Status} list=${list} tick=${tick} />`}
      ${failed && html`<${Failure} error=${list.state.error} again=${() => (list.set({ phase: "loading", error: undefined }), list.load(0))} />`}
      ${failed && list.state.error.code === 403 && resource.namespaced && !namespace && html`<p class="quiet">You may still be allowed to list one namespace: type its name above.</p>`}
      ${list.state.phase === "waiting" && list.state.error && html`<p class="away" role="alert">${list.state.error.message}</p>`}
    </div>
    <div class="grid-box" ref=${box}>
      <div class="grid-host" ref=${host} hidden=${failed && !list.rows.size}></div>
      ${ready && !failed && list.view.length === 0 && list.state.complete && html`<p class="empty quiet">${list.words ? "No row has this text." : `There are no ${resource.resource}${namespace ? " in this namespace" : ""}${labelSelector || fieldSelector ? " that match" : ""}.`}</p>`}
    </div>
    ${Dialogs && html`<${Dialogs.Component} ...${Dialogs.props} info=${info} close=${close} />`}
  </section>`;
}

export default function View({ route, info }) {
  const { value: all, error, again } = useAsync(() => resources(), []);
  const [, group, version, name] = route.parts;
  const [kinds, setKinds] = useState(false);
  const resource = all && name && all.find((r) => r.group === (group === "core" ? "" : group) && r.version === version && r.resource === name);
  useEffect(() => {
    if (resource) document.title = `${resource.kind} · Kelson console`;
    setKinds(false);
  }, [resource]);
  if (error) return html`<${Failure} error=${error} again=${again} />`;
  if (!all) return html`<${Loading} />`;
  if (!name) {
    return html`<div class="overview">
      <h1>Objects</h1>
      <${Kinds} all=${all} counts=${true} />
    </div>`;
  }
  const versions = resource ? all.filter((r) => r.group === resource.group && r.resource === resource.resource) : [];
  return html`<div class="objects">
    <button class="kinds-button" aria-expanded=${kinds} aria-controls="kinds" onClick=${() => setKinds(!kinds)}>Kinds</button>
    <header class="title">
      <h1>${resource ? resource.kind : name}</h1>
      <span class="quiet">${group === "core" ? "" : group}</span>
      ${versions.length > 1
        ? html`<select aria-label="Version" value=${version} onChange=${(e) => navigate(listLink(versions.find((v) => v.version === e.target.value)) + location.search)}>${versions.map((v) => html`<option key=${v.version} value=${v.version}>${v.version}</option>`)}</select>`
        : html`<span class="quiet">${version}</span>`}
    </header>
    <aside id="kinds" class=${kinds ? "open" : ""} onKeyDown=${(e) => e.key === "Escape" && setKinds(false)}><${Kinds} all=${all} current=${resource} /></aside>
    <div class="content">
      ${!resource
        ? html`<${Failure} error=${{ code: 404, message: `The server has no ${name} in ${group}/${version}.` }} again=${() => resources(true).then(again)} />`
        : resource.verbs.includes("list")
          ? html`<${List} key=${group + "/" + version + "/" + name} resource=${resource} route=${route} info=${info} />`
          : html`<${Failure} error=${{ message: `${resource.kind} objects cannot be listed.` }} />`}
    </div>
  </div>`;
}
