// One object: its YAML, events, relations, history, and what may be done with it.
import { html, useState, useEffect, useRef, setQuery, Link, Failure, Loading, Dialog, Age, toast } from "../lib/ui.js";
import { findResource, findKind, pathOf, listLink, objectLink, send } from "../lib/api.js";
import { useObject } from "../lib/useobject.js";
import { Yaml } from "../lib/objecteditor.js";
import { History } from "../lib/objecthistory.js";
import { Events, Rights } from "../lib/objectabout.js";
import { Relations } from "../lib/relations.js";
import { Propagation } from "../lib/bulk.js";
import { lastManager } from "../lib/shown.js";
import { loadStyle } from "../lib/style.js";

await loadStyle("views/object.css");

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
    <${Propagation} value=${propagation} choose=${setPropagation} />
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
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || tick((n) => n + 1), 5000);
    return () => clearInterval(timer);
  }, []);
  const dirty = useRef(false);
  let tab = route.query.get("tab") || "yaml";
  // Without a history its tab is there only for those who have its address.
  const shownTabs = tabs.filter((t) => !t.history || features.history || tab === t.id);
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
        <div hidden=${tab !== "yaml"}><${Yaml} key=${object.metadata.uid} resource=${resource} namespace=${namespace} name=${name} object=${object} deleted=${deleted} features=${features} reload=${reload} dirty=${dirty} hiddenTab=${tab !== "yaml"} isLive=${state === "live"} /></div>
        ${tab === "events" && html`<${Events} object=${object} />`}
        ${tab === "relations" && html`<${Relations} resource=${resource} object=${object} />`}
        ${tab === "history" && !features.history && html`<p>This server keeps no history that could be read. Kelson does: <code>kelson serve --history 24h</code>.</p>`}
        ${tab === "history" && features.history && html`<${History} resource=${resource} namespace=${namespace} name=${name} object=${object} deleted=${deleted} reload=${reload} />`}
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
