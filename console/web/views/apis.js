// The APIs of the server: groups with their use and health, definitions with their schemas,
// admission, and what clients should not do.
import { html, useState, useAsync, useMemo, useStyle, Failure, Loading, Age, Link, bytes } from "../lib/ui.js";
import { get, request, resources, listLink, objectLink } from "../lib/api.js";
import { parseMetrics, sumBy } from "../lib/metrics.js";
import { Schema } from "../lib/schematree.js";
import { visible } from "../lib/snippet.js";

const tabs = [
  ["groups", "Groups"],
  ["definitions", "Definitions"],
  ["admission", "Admission"],
  ["findings", "Findings", "top"],
];

const wanted = [
  "apiserver_request_total",
  "apiserver_requested_deprecated_apis",
  "process_start_time_seconds",
  "apiserver_admission_webhook_admission_duration_seconds_sum",
  "apiserver_admission_webhook_admission_duration_seconds_count",
  "apiserver_admission_webhook_rejection_count",
  "apiserver_admission_webhook_fail_open_count",
  "apiserver_validating_admission_policy_check_duration_seconds_sum",
  "apiserver_validating_admission_policy_check_duration_seconds_count",
  "apiserver_validating_admission_policy_check_total",
  "apiserver_mutating_admission_policy_check_duration_seconds_sum",
  "apiserver_mutating_admission_policy_check_duration_seconds_count",
  "apiserver_mutating_admission_policy_check_total",
];

// listAll reads a list in pages, a bounded number of them.
async function listAll(path, signal) {
  const items = [];
  let token = "";
  for (let i = 0; i < 20; i++) {
    const list = await get(path, { limit: 250, continue: token }, { signal });
    items.push(...(list.items || []));
    token = list.metadata?.continue;
    if (!token) break;
  }
  return items;
}

const took = (s) => (s === undefined || Number.isNaN(s) ? "–" : s >= 1 ? s.toFixed(1) + " s" : s >= 0.001 ? (s * 1000).toFixed(1) + " ms" : Math.round(s * 1e6) + " µs");
const crd = { group: "apiextensions.k8s.io", version: "v1", resource: "customresourcedefinitions" };
const condition = (o, type) => (o.status?.conditions || []).find((c) => c.type === type);

export default function APIs({ route, features }) {
  useStyle("lib/isolate.css");
  useStyle("views/apis.css");
  const tab = tabs.some(([name]) => name === route.query.get("tab")) ? route.query.get("tab") : "groups";
  const metrics = useAsync(async (signal) => parseMetrics(await (await request("/metrics", { accept: "text/plain", signal })).text(), wanted), []);
  const findings = useAsync(async (signal) => (features.top ? get("/debug/kelson/findings", {}, { signal }) : undefined), []);
  const View = { groups: Groups, definitions: Definitions, admission: Admission, findings: Findings }[tab];
  return html`<div class="apis isolate">
    <h1>APIs</h1>
    <nav class="tabs" aria-label="Parts of APIs">
      ${tabs.filter(([, , feature]) => !feature || features[feature]).map(([name, text]) => html`<${Link} key=${name} to=${"/apis?tab=" + name} aria-current=${tab === name ? "page" : undefined}>${text}<//>`)}
    </nav>
    <${View} route=${route} features=${features} metrics=${metrics} findings=${findings} />
  </div>`;
}

const Filter = ({ value, set, what }) => html`<label class="filter"><span class="hidden">Filter</span><input type="search" placeholder=${"Filter " + what} value=${value} onInput=${(e) => set(e.target.value)} /></label>`;

// deprecatedOf maps "group/version/resource" to what is known of its use.
function deprecatedOf(metrics, findings) {
  const all = new Map();
  const of = (key) => all.get(key) || (all.set(key, { users: [], times: 0 }), all.get(key));
  for (const { labels: l } of metrics?.apiserver_requested_deprecated_apis || []) of(`${l.group}/${l.version}/${l.resource}`).removed = l.removed_release;
  for (const f of findings?.deprecated || []) {
    // resource.version.group, or resource.version in the core group
    const [resource, version, ...group] = f.resource.split(".");
    const entry = of(`${group.join(".")}/${version}/${resource}`);
    entry.users.push(f);
    entry.times += f.times;
  }
  return all;
}

function Groups({ metrics, findings }) {
  const [filter, setFilter] = useState("");
  const known = useAsync(() => resources(true), []);
  const services = useAsync((signal) => listAll("/apis/apiregistration.k8s.io/v1/apiservices", signal), []);
  const used = useMemo(() => metrics.value && sumBy(metrics.value.apiserver_request_total, (l) => `${l.group}/${l.version}/${l.resource}`), [metrics.value]);
  const deprecated = useMemo(() => deprecatedOf(metrics.value, findings.value), [metrics.value, findings.value]);
  const since = metrics.value?.process_start_time_seconds[0]?.value;
  if (known.error) return html`<${Failure} error=${known.error} again=${known.again} />`;
  if (!known.value) return html`<${Loading} />`;
  const groups = new Map();
  for (const r of known.value) {
    if (!groups.has(r.group)) groups.set(r.group, { name: r.group, versions: [], resources: [] });
    const g = groups.get(r.group);
    if (!g.versions.includes(r.version)) g.versions.push(r.version);
    g.resources.push(r);
  }
  const health = new Map((services.value || []).map((s) => [`${s.spec.group || ""}/${s.spec.version}`, s]));
  for (const s of services.value || []) {
    const name = s.spec.group || "";
    if (!groups.has(name)) groups.set(name, { name, versions: [], resources: [] });
    if (!groups.get(name).versions.includes(s.spec.version)) groups.get(name).versions.push(s.spec.version);
  }
  const words = filter.toLowerCase();
  const shown = [...groups.values()].filter((g) => !words || (g.name || "core").includes(words) || g.resources.some((r) => r.resource.includes(words) || r.kind.toLowerCase().includes(words)));
  return html`<section aria-label="Groups">
    <div class="tools"><${Filter} value=${filter} set=${setFilter} what="groups and resources" />${since && html`<small>Requests since the server started, <${Age} of=${new Date(since * 1000).toISOString()} /> ago</small>`}</div>
    ${metrics.error && html`<p class="quiet">How much they are used is in the metrics, which you cannot read: ${metrics.error.message}</p>`}
    ${services.error && html`<p class="quiet">Their health is in APIServices, which you cannot read: ${services.error.message}</p>`}
    ${shown.map((g) => html`<${Group} key=${g.name} group=${g} used=${used} deprecated=${deprecated} health=${health} open=${words !== "" && shown.length < 4} />`)}
    ${shown.length === 0 && html`<p class="quiet">No group is like that.</p>`}
  </section>`;
}

function Group({ group: g, used, deprecated, health, open }) {
  const [shown, setShown] = useState(false);
  const count = (r) => used?.get(`${r.group}/${r.version}/${r.resource}`) || 0;
  const total = g.resources.reduce((n, r) => n + count(r), 0);
  const old = [...deprecated.keys()].filter((key) => key.startsWith(g.name + "/"));
  const services = g.versions.map((v) => health.get(`${g.name}/${v}`)).filter(Boolean);
  const down = services.filter((s) => condition(s, "Available")?.status !== "True");
  const remote = services.find((s) => s.spec.service);
  return html`<details class="group panel" open=${shown || open} onToggle=${(e) => e.target === e.currentTarget && setShown(e.currentTarget.open)}>
    <summary>
      <strong><bdi>${visible(g.name || "core")}</bdi></strong>
      <span class="versions">${g.versions.map((v) => html`<span key=${v} class="badge">${v}</span>`)}</span>
      ${down.length > 0 && html`<span class="badge bad">not available</span>`}
      ${remote && html`<span class="badge">by <bdi>${visible(remote.spec.service.namespace)}/${visible(remote.spec.service.name)}</bdi></span>`}
      ${old.length > 0 && html`<span class="badge warn">deprecated in use</span>`}
      <span class="end quiet">${g.resources.length} ${g.resources.length === 1 ? "resource" : "resources"}${used ? ` · ${total.toLocaleString("en")} ${total === 1 ? "request" : "requests"}` : ""}</span>
    </summary>
    ${(shown || open) &&
    html`<div class="inside">
      ${down.map((s) => html`<p key=${s.metadata.name} class="bad"><${Link} to=${objectLink({ group: "apiregistration.k8s.io", version: "v1", resource: "apiservices" }, "", s.metadata.name)}><bdi>${visible(s.metadata.name)}</bdi><//>: <bdi>${visible(condition(s, "Available")?.message || "not known to be available")}</bdi></p>`)}
      ${g.resources.length > 0 &&
      html`<div class="scroll"><table>
        <thead><tr><th scope="col">resource</th><th scope="col">version</th><th scope="col">kind</th><th scope="col">scope</th><th scope="col">verbs</th><th scope="col" class="number">requests</th></tr></thead>
        <tbody>${g.resources.map((r) => {
          const was = deprecated.get(`${r.group}/${r.version}/${r.resource}`);
          return html`<tr key=${r.version + r.resource}>
            <td>${r.verbs.includes("list") ? html`<${Link} to=${listLink(r)}>${r.resource}<//>` : r.resource}${r.shortNames.length > 0 && html` <small>${r.shortNames.join(", ")}</small>`}</td>
            <td>${r.version}${r.stale ? html` <span class="warn">stale</span>` : ""}${was ? html` <span class="warn">deprecated${was.removed ? ", gone in " + was.removed : ""}</span>` : ""}</td>
            <td>${r.kind}</td>
            <td>${r.namespaced ? "namespace" : "cluster"}</td>
            <td class="verbs">${r.verbs.join(" ")}</td>
            <td class="number">${used ? count(r).toLocaleString("en") : "–"}</td>
          </tr>`;
        })}</tbody>
      </table></div>`}
      ${old.flatMap((key) => deprecated.get(key).users).map((f, i) => html`<p key=${i} class="warn"><bdi>${visible(f.user)}</bdi> with <bdi>${visible(f.agent)}</bdi> has used ${f.resource} ${f.times} ${f.times === 1 ? "time" : "times"}, last <${Age} of=${f.last} /> ago. <span class="quiet"><bdi>${visible(f.note)}</bdi></span></p>`)}
    </div>`}
  </details>`;
}

function Definitions({ route, findings }) {
  const [filter, setFilter] = useState(route.query.get("name") || "");
  const { value, error, again } = useAsync((signal) => listAll("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", signal), []);
  if (!value) return error ? html`<${Failure} error=${error} again=${again} />` : html`<${Loading} />`;
  const shown = value.filter((d) => !filter || d.metadata.name.includes(filter.toLowerCase()) || d.spec.names.kind.toLowerCase().includes(filter.toLowerCase()));
  const unused = new Set(findings.value?.unusedDefinitions || []);
  return html`<section aria-label="Definitions">
    <div class="tools"><${Filter} value=${filter} set=${setFilter} what="definitions" /><small>${value.length === 1 ? "one CustomResourceDefinition" : value.length + " CustomResourceDefinitions"}</small></div>
    ${shown.slice(0, 300).map((d) => html`<${Definition} key=${d.metadata.name} d=${d} unused=${unused.has(d.metadata.name)} open=${shown.length === 1} />`)}
    ${shown.length > 300 && html`<p class="quiet">${shown.length - 300} more: filter them.</p>`}
    ${shown.length === 0 && html`<p class="quiet">${value.length ? "No definition is like that." : "The server has none: what it serves is built in, or from other servers."}</p>`}
  </section>`;
}

function Definition({ d, unused, open }) {
  const [shown, setShown] = useState(open);
  const [version, setVersion] = useState((d.spec.versions.find((v) => v.storage) || d.spec.versions[0]).name);
  const stored = d.status?.storedVersions || [];
  const storage = d.spec.versions.find((v) => v.storage)?.name;
  const old = stored.filter((v) => v !== storage);
  const troubles = (d.status?.conditions || []).filter((c) => (["Established", "NamesAccepted"].includes(c.type) && c.status !== "True") || (["NonStructuralSchema", "Terminating"].includes(c.type) && c.status === "True"));
  const chosen = d.spec.versions.find((v) => v.name === version);
  const hook = d.spec.conversion?.webhook?.clientConfig;
  return html`<details class="group panel" open=${shown} onToggle=${(e) => e.target === e.currentTarget && setShown(e.currentTarget.open)}>
    <summary>
      <strong><bdi>${visible(d.spec.names.kind)}</bdi></strong> <span class="quiet"><bdi>${visible(d.metadata.name)}</bdi></span>
      <span class="versions">${d.spec.versions.map((v) => html`<span key=${v.name} class=${"badge" + (v.served ? "" : " off") + (v.deprecated ? " warn" : "")} title=${[v.served ? "served" : "not served", v.storage && "stored", v.deprecated && "deprecated"].filter(Boolean).join(", ")}>${v.name}${v.storage ? " ●" : ""}</span>`)}</span>
      ${troubles.map((c) => html`<span key=${c.type} class="badge bad">${c.status === "True" ? c.type : "not " + c.type}</span>`)}
      ${unused && html`<span class="badge" title="Nobody has used it since the server started">unused</span>`}
      ${old.length > 0 && html`<span class="badge warn">stored as ${old.join(", ")} too</span>`}
    </summary>
    ${shown &&
    html`<div class="inside">
      <dl>
        <dt>Objects</dt><dd><${Link} to=${listLink({ group: d.spec.group, version: storage, resource: d.spec.names.plural })}><bdi>${visible(d.spec.names.plural)}</bdi><//>, ${d.spec.scope === "Namespaced" ? "in namespaces" : "of the cluster"}</dd>
        <dt>Stored</dt><dd>now as ${storage}; objects may be stored as ${stored.join(", ") || "–"}</dd>
        <dt>Conversion</dt><dd>${d.spec.conversion?.strategy || "None"}${hook ? html` by <bdi>${visible(hook.url || `${hook.service?.namespace}/${hook.service?.name}${hook.service?.path || ""}`)}</bdi>` : ""}</dd>
        <dt>State</dt><dd>${(d.status?.conditions || []).map((c) => html`<span key=${c.type} class=${troubles.includes(c) ? "bad" : ""} title=${c.message}>${c.type} ${c.status} </span>`)}</dd>
        <dt>Definition</dt><dd><${Link} to=${objectLink(crd, "", d.metadata.name)}><bdi>${visible(d.metadata.name)}</bdi><//></dd>
      </dl>
      ${troubles.map((c) => html`<p key=${c.type} class="bad"><bdi>${visible(c.message)}</bdi></p>`)}
      <div class="tools">
        <h2>Schema</h2>
        <label>of version <select value=${version} onChange=${(e) => setVersion(e.target.value)}>${d.spec.versions.map((v) => html`<option value=${v.name}>${v.name}</option>`)}</select></label>
        ${chosen.deprecated && html`<span class="warn">${chosen.deprecationWarning || "deprecated"}</span>`}
        ${chosen.subresources && html`<small>subresources: ${Object.keys(chosen.subresources).join(", ")}</small>`}
      </div>
      ${chosen.schema?.openAPIV3Schema ? html`<${Schema} key=${version} name=${d.spec.names.kind} schema=${chosen.schema.openAPIV3Schema} open=${true} />` : html`<p class="quiet">This version has no schema.</p>`}
    </div>`}
  </details>`;
}

const rulesText = (rules) => (rules || []).map((r) => `${(r.operations || []).join(", ").toLowerCase()} ${(r.resources || []).join(", ")}${(r.apiGroups || []).some(Boolean) ? " of " + r.apiGroups.map((g) => g || "core").join(", ") : ""}`).join("; ");

function Admission({ metrics, findings }) {
  const base = "/apis/admissionregistration.k8s.io/v1/";
  const read = (name) => useAsync(async (signal) => ((await resources()).some((r) => r.group === "admissionregistration.k8s.io" && r.version === "v1" && r.resource === name) ? listAll(base + name, signal) : []), []);
  const mutating = read("mutatingwebhookconfigurations");
  const validating = read("validatingwebhookconfigurations");
  const policies = { validating: read("validatingadmissionpolicies"), mutating: read("mutatingadmissionpolicies") };
  const bindings = { validating: read("validatingadmissionpolicybindings"), mutating: read("mutatingadmissionpolicybindings") };
  const m = metrics.value;
  const number = (name, labels) => (m?.[name] || []).filter((s) => Object.entries(labels).every(([k, v]) => s.labels[k] === v)).reduce((n, s) => n + s.value, 0);
  const webhook = (name, type) => {
    const found = (findings.value?.webhooks || []).find((w) => w.name === name && w.type === type);
    if (found) return found;
    if (!m) return undefined;
    const requests = number("apiserver_admission_webhook_admission_duration_seconds_count", { name, type });
    const total = number("apiserver_admission_webhook_admission_duration_seconds_sum", { name, type });
    const rejections = (m.apiserver_admission_webhook_rejection_count || []).filter((s) => s.labels.name === name && s.labels.type === type);
    const sum = (is) => rejections.filter((s) => (s.labels.error_type === "no_error") === is).reduce((n, s) => n + s.value, 0);
    const failedOpen = number("apiserver_admission_webhook_fail_open_count", { name, type });
    return { requests, totalSeconds: total, meanSeconds: requests ? total / requests : undefined, rejected: sum(true), failed: sum(false) + failedOpen, failedOpen };
  };
  const hooks = [
    ...(mutating.value || []).flatMap((c) => (c.webhooks || []).map((w) => ({ c, w, type: "admit", resource: "mutatingwebhookconfigurations" }))),
    ...(validating.value || []).flatMap((c) => (c.webhooks || []).map((w) => ({ c, w, type: "validating", resource: "validatingwebhookconfigurations" }))),
  ].map((h) => ({ ...h, use: webhook(h.w.name, h.type) }));
  hooks.sort((a, b) => (b.use?.totalSeconds || 0) - (a.use?.totalSeconds || 0));
  const link = (resource, name) => objectLink({ group: "admissionregistration.k8s.io", version: "v1", resource }, "", name);
  const all = ["validating", "mutating"].flatMap((kind) => (policies[kind].value || []).map((p) => ({ kind, p, bound: (bindings[kind].value || []).filter((b) => b.spec?.policyName === p.metadata.name) })));
  const policy = (kind, name) => {
    if (!m) return undefined;
    const total = number(`apiserver_${kind}_admission_policy_check_duration_seconds_sum`, { policy: name });
    const count = number(`apiserver_${kind}_admission_policy_check_duration_seconds_count`, { policy: name });
    const by = (...actions) => (m[`apiserver_${kind}_admission_policy_check_total`] || []).filter((s) => s.labels.policy === name && actions.includes(s.labels.enforcement_action)).reduce((n, s) => n + s.value, 0);
    return { count, mean: count ? total / count : undefined, denied: by("deny") };
  };
  const errors = [...new Map([mutating, validating, policies.validating, policies.mutating].filter((a) => a.error).map((a) => [a.error.message, a.error])).values()];
  return html`<section aria-label="Admission">
    ${errors.map((e) => html`<${Failure} key=${e.message} error=${e} />`)}
    ${metrics.error && !findings.value && html`<p class="quiet">Times and failures are in the metrics, which you cannot read: ${metrics.error.message}</p>`}
    <h2>Webhooks</h2>
    ${!mutating.value && !mutating.error && html`<${Loading} />`}
    ${hooks.length === 0 && mutating.value && validating.value && html`<p class="quiet">There are none.</p>`}
    ${hooks.length > 0 &&
    html`<div class="scroll"><table>
      <thead><tr><th scope="col">webhook</th><th scope="col">kind</th><th scope="col">for</th><th scope="col">if it fails</th><th scope="col" class="number">calls</th><th scope="col" class="number">mean</th><th scope="col" class="number">rejected</th><th scope="col" class="number">failed</th><th scope="col" class="number">let through</th></tr></thead>
      <tbody>${hooks.map(
        ({ c, w, type, resource, use }) => html`<tr key=${resource + c.metadata.name + w.name}>
          <td class="name"><bdi>${visible(w.name)}</bdi><br /><small>in <${Link} to=${link(resource, c.metadata.name)}><bdi>${visible(c.metadata.name)}</bdi><//></small></td>
          <td>${type === "admit" ? "mutating" : "validating"}</td>
          <td class="what"><bdi>${visible(rulesText(w.rules))}</bdi></td>
          <td>${w.failurePolicy === "Ignore" ? "let through" : "refused"}<br /><small>after ${w.timeoutSeconds || 10} s</small></td>
          <td class="number">${use?.requests ?? "–"}</td>
          <td class=${"number" + (use?.meanSeconds > 1 ? " warn" : "")}>${took(use?.meanSeconds)}</td>
          <td class="number">${use?.rejected ?? "–"}</td>
          <td class=${"number" + (use?.failed ? " bad" : "")}>${use?.failed ?? "–"}</td>
          <td class=${"number" + (use?.failedOpen ? " warn" : "")}>${use?.failedOpen ?? "–"}</td>
        </tr>`,
      )}</tbody>
    </table></div>`}
    <h2>Policies</h2>
    ${all.length === 0 && policies.validating.value && html`<p class="quiet">There are none.</p>`}
    ${all.length > 0 &&
    html`<div class="scroll"><table>
      <thead><tr><th scope="col">policy</th><th scope="col">kind</th><th scope="col">for</th><th scope="col">bound by</th><th scope="col" class="number">checks</th><th scope="col" class="number">mean</th><th scope="col" class="number">denied</th></tr></thead>
      <tbody>${all.map(({ kind, p, bound }) => {
        const use = policy(kind, p.metadata.name);
        const warnings = p.status?.typeChecking?.expressionWarnings || [];
        return html`<tr key=${kind + p.metadata.name}>
          <td class="name"><${Link} to=${link(kind + "admissionpolicies", p.metadata.name)}><bdi>${visible(p.metadata.name)}</bdi><//>${warnings.map((w, i) => html`<br key=${i} /><small class="warn"><bdi>${visible(w.fieldRef)}: ${visible(w.warning)}</bdi></small>`)}</td>
          <td>${kind}</td>
          <td class="what"><bdi>${visible(rulesText(p.spec?.matchConstraints?.resourceRules))}</bdi></td>
          <td class="what">${bound.length ? bound.map((b) => html`<span key=${b.metadata.name}><${Link} to=${link(kind + "admissionpolicybindings", b.metadata.name)}><bdi>${visible(b.metadata.name)}</bdi><//> <small>${(b.spec.validationActions || []).join(", ")}</small> </span>`) : html`<span class="warn">nothing: it does nothing</span>`}</td>
          <td class="number">${use ? use.count : "–"}</td>
          <td class="number">${took(use?.mean)}</td>
          <td class="number">${use ? use.denied : "–"}</td>
        </tr>`;
      })}</tbody>
    </table></div>`}
  </section>`;
}

function Findings({ features, findings: { value, error, again } }) {
  if (!features.top) return html`<p class="quiet">This server keeps no findings. Kelson does: who uses deprecated versions, lists without pages, and which objects are the largest.</p>`;
  if (!value) return error ? html`<${Failure} error=${error} again=${again} />` : html`<${Loading} />`;
  const clients = (title, text, all) => html`<section aria-label=${title}>
    <h2>${title}</h2>
    <p class="quiet">${text}</p>
    ${all.length === 0
      ? html`<p class="good">None since the server started.</p>`
      : html`<div class="scroll"><table>
          <thead><tr><th scope="col">user</th><th scope="col">client</th><th scope="col">resource</th><th scope="col">namespace</th><th scope="col" class="number">times</th><th scope="col" class="number">bytes</th><th scope="col">last</th><th scope="col">note</th></tr></thead>
          <tbody>${all.map((f, i) => html`<tr key=${i}><td class="name"><bdi>${visible(f.user)}</bdi></td><td class="name"><bdi>${visible(f.agent)}</bdi></td><td><bdi>${visible(f.resource)}</bdi></td><td><bdi>${visible(f.namespace || "")}</bdi></td><td class="number">${f.times}</td><td class="number">${bytes(f.bytesOut || 0)}</td><td><${Age} of=${f.last} /></td><td class="what"><bdi>${visible(f.note || "")}</bdi></td></tr>`)}</tbody>
        </table></div>`}
  </section>`;
  const sizes = (title, all, named) => html`<section class="panel" aria-label=${title}>
    <h2>${title}</h2>
    <table><tbody>${all.slice(0, 15).map((s, i) => html`<tr key=${i}><td class="name"><bdi>${visible(s.resource)}${visible(named ? " " + s.name : "")}</bdi>${s.namespace && html`<br /><small>in <bdi>${visible(s.namespace)}</bdi></small>`}</td><td class="number">${named ? "" : s.objects}</td><td class="number">${bytes(s.bytes)}</td></tr>`)}</tbody></table>
  </section>`;
  return html`<div aria-label="Findings" role="region">
    <div class="tools"><small>What this server has seen since <${Age} of=${value.since} /> ago.</small><button onClick=${again}>Look again</button></div>
    ${clients("Deprecated versions", "Clients that use versions which will be removed.", value.deprecated)}
    ${clients("Large lists without pages", "Lists of 64 KiB and more without a limit: they cost memory and processor time.", value.unpagedLists)}
    ${clients("Restarted watches", "Watches that end soon and begin again, three times and more.", value.restartedWatches)}
    ${value.unusedDefinitions.length > 0 && html`<section aria-label="Unused definitions"><h2>Unused definitions</h2><p><bdi>${visible(value.unusedDefinitions.join(", "))}</bdi></p></section>`}
    <div class="panels">${sizes("Largest kinds", value.largestKinds)}${sizes("Largest objects", value.largestObjects, true)}</div>
  </div>`;
}
