// Who may do what: the rights of a user as a matrix, why a request is allowed or denied,
// what was denied lately, and who can do a thing.
import { html, useState, useEffect, useRef, useAsync, useResources, useMemo, useStyle, setQuery, Failure, Loading, Dialog, Age, Link } from "../lib/ui.js";
import { ApiError, get, send, resources, objectLink } from "../lib/api.js";
import { groupsOf, mayBy, readPolicy, explain, whoCan } from "../lib/rbac.js";
import { Snippet, visible } from "../lib/snippet.js";

const verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
const short = { deletecollection: "delete all" };

const split = (text) => (text || "").split(",").map((g) => g.trim()).filter(Boolean);

// fits says whether a header can have these values: Latin letters and no control characters.
const fits = (...values) => values.every((v) => /^[\x20-\x7e\xa0-\xff]*$/.test(v) && v.trim() === v);

export default function Access({ route, info, features }) {
  useStyle("lib/isolate.css");
  useStyle("views/access.css");
  const user = route.query.get("user") || "";
  const groups = split(route.query.get("groups"));
  const namespace = route.query.get("namespace") ?? info.namespace;
  const me = useAsync((signal) => send("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", { apiVersion: "authentication.k8s.io/v1", kind: "SelfSubjectReview" }, { signal }), []);
  const self = me.value?.status?.userInfo;
  const who = user ? { name: user, groups: groupsOf(user, groups), named: groups } : self && { name: self.username, groups: self.groups || [], self: true };
  const namespaces = useAsync((signal) => get("/api/v1/namespaces", { limit: 500 }, { signal }), []);
  return html`<div class="access isolate">
    <h1>Access</h1>
    <${Ask} key=${user + "\n" + groups + "\n" + namespace} user=${user} groups=${groups} namespace=${namespace} namespaces=${(namespaces.value?.items || []).map((n) => n.metadata.name)} self=${self} />
    ${who
      ? html`<${Matrix} key=${JSON.stringify([who.name, who.groups, namespace])} who=${who} namespace=${namespace} features=${features} />
          ${features.why ? html`<${Denials} who=${who} />` : html`<p class="quiet">This server does not keep what it has denied. Kelson does.</p>`}`
      : me.error
        ? html`<${Failure} error=${me.error} again=${me.again} />`
        : html`<${Loading} />`}
    <${WhoCan} route=${route} namespace=${namespace} features=${features} />
  </div>`;
}

function Ask({ user, groups, namespace, namespaces, self }) {
  const submit = (e) => {
    e.preventDefault();
    const form = new FormData(e.target);
    const user = form.get("user").trim();
    setQuery({ user, groups: user ? split(form.get("groups")).join(",") : "" }, false);
    const query = new URLSearchParams(location.search);
    query.set("namespace", form.get("namespace").trim()); // empty is all of them
    history.replaceState(null, "", "/access?" + query);
    window.dispatchEvent(new Event("kelson-route"));
  };
  return html`<form class="tools" onSubmit=${submit} aria-label="Whose rights">
    <label>User <input name="user" value=${user} placeholder=${self ? self.username + " (you)" : "you"} autocomplete="off" spellcheck="false" /></label>
    <label>Groups <input name="groups" value=${groups.join(", ")} placeholder="those of the name" title="Separated by commas. Groups that follow from the name are added." autocomplete="off" spellcheck="false" /></label>
    <label>Namespace <input name="namespace" list="access-namespaces" value=${namespace} placeholder="all" autocomplete="off" spellcheck="false" /></label>
    <datalist id="access-namespaces">${namespaces.map((n) => html`<option value=${n} />`)}</datalist>
    <button class="primary">Show</button>
  </form>`;
}

// nowhere is a namespace that nobody has: the rules there are those of the whole cluster.
const nowhere = "kelson-console-no-namespace";

// groupsToSay returns the groups that have to be named to be a user: servers add
// system:authenticated, and the groups of a service account if no others are named.
function groupsToSay(who) {
  if (who.self || (who.name.startsWith("system:serviceaccount:") && !who.named.length)) return [];
  return who.groups.filter((g) => g !== "system:authenticated" && g !== "system:unauthenticated");
}

// canBe says whether a browser can send headers to be the user: one group at most, since it
// joins several with commas.
const canBe = (who) => who.self || (who.name !== "" && groupsToSay(who).length <= 1 && fits(who.name, ...groupsToSay(who)));

// reviewRules asks which rules a user has in a namespace, as that user.
async function reviewRules(who, namespace, signal) {
  const headers = who.self ? {} : { "Impersonate-User": who.name };
  for (const group of groupsToSay(who)) headers["Impersonate-Group"] = group;
  const body = { apiVersion: "authorization.k8s.io/v1", kind: "SelfSubjectRulesReview", spec: { namespace: namespace || nowhere } };
  return (await send("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body, { headers, signal })).status;
}

const access = (q) => ({
  user: q.user,
  groups: q.groups,
  [q.path ? "nonResourceAttributes" : "resourceAttributes"]: q.path ? { path: q.path, verb: q.verb } : { verb: q.verb, group: q.group, version: "*", resource: q.resource, subresource: q.subresource, namespace: q.namespace, name: q.name },
});

// review asks the server about one request.
async function review(q, self, signal) {
  const { user, groups, ...rest } = access(q);
  const kind = self ? "SelfSubjectAccessReview" : "SubjectAccessReview";
  return (await send("POST", `/apis/authorization.k8s.io/v1/${kind.toLowerCase()}s`, { apiVersion: "authorization.k8s.io/v1", kind, spec: self ? rest : { user, groups, ...rest } }, { signal })).status;
}

const atOnce = 8;
const mostReviews = 1500;

// reviewAll asks about each request of the rows, some at a time.
async function reviewAll(who, namespace, rows, answers, signal, progress) {
  const questions = rows.filter((r) => !r.subresource).flatMap((r) => verbs.filter((v) => r.verbs.includes(v)).map((verb) => ({ row: r, q: question(who, r, verb, namespace) })));
  let next = 0;
  const limit = Math.min(questions.length, mostReviews);
  await Promise.all(
    Array.from({ length: atOnce }, async () => {
      while (next < limit) {
        const { row, q } = questions[next++];
        const status = await review(q, who.self, signal);
        answers.set(keyOf(row) + " " + q.verb, status.allowed ? "yes" : "no");
        if (answers.size % 20 === 0 || answers.size === limit) progress(answers.size / limit);
      }
    }),
  );
}

const keyOf = (r) => `${r.group}/${r.resource}/${r.subresource || ""}`;
const question = (who, r, verb, namespace) => ({ user: who.name, groups: who.groups, verb, group: r.group, resource: r.resource, subresource: r.subresource || "", namespace: r.namespaced ? namespace : "", name: "" });

function rowsOf(all) {
  return all
    .filter((r) => r.preferred)
    .flatMap((r) => [r, ...r.subresources.map((s) => ({ ...r, subresource: s.name, verbs: s.verbs }))])
    .sort((a, b) => (a.group !== b.group ? (a.group < b.group ? -1 : 1) : keyOf(a) < keyOf(b) ? -1 : 1));
}

function Matrix({ who, namespace, features }) {
  const [progress, setProgress] = useState(0);
  const [problem, setProblem] = useState();
  const [filter, setFilter] = useState("");
  const [only, setOnly] = useState("");
  const [sub, setSub] = useState(false);
  const [asked, setAsked] = useState();
  const { value, error, again } = useAsync(async (signal) => {
    const rows = rowsOf(await resources());
    let why = "";
    if (canBe(who)) {
      try {
        const [here, everywhere] = await Promise.all([reviewRules(who, namespace, signal), namespace ? reviewRules(who, "", signal) : undefined]);
        const cluster = everywhere || here;
        return { rows, how: "rules", incomplete: here.incomplete, note: here.evaluationError, paths: here.nonResourceRules || [], may: (r, verb) => mayBy((r.namespaced ? here : cluster).resourceRules || [], { verb, group: r.group, resource: r.resource, subresource: r.subresource }) };
      } catch (err) {
        if (err.code !== 403) throw err;
        why = err.message; // then each request is asked about
      }
    }
    const answers = new Map();
    return { rows, how: "reviews", why, answers, paths: [], may: (r, verb) => answers.get(keyOf(r) + " " + verb) };
  }, []);
  useEffect(() => {
    if (!value?.answers) return;
    const abort = new AbortController();
    reviewAll(who, namespace, value.rows, value.answers, abort.signal, setProgress).catch((err) => {
      if (abort.signal.aborted) return;
      setProblem(err);
      abort.abort();
    });
    return () => abort.abort();
  }, [value]);
  if (error) return html`<${Failure} error=${error} again=${again} />`;
  if (!value) return html`<${Loading} what="Asking what is allowed" />`;
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = value.rows.filter((r) => {
    if (r.subresource && (!sub || value.how === "reviews")) return false;
    if (!words.every((w) => keyOf(r).includes(w) || r.kind.toLowerCase().includes(w) || r.shortNames.includes(w))) return false;
    if (!only) return true;
    const some = verbs.some((v) => r.verbs.includes(v) && !["no", undefined].includes(value.may(r, v)));
    return (only === "yes") === some;
  });
  return html`<section aria-label="What is allowed">
    <div class="tools">
      <h2>What <bdi>${visible(who.name)}</bdi> may do ${namespace ? html`in <bdi>${visible(namespace)}</bdi>` : "in all namespaces"}</h2>
      <label class="filter"><span class="hidden">Filter</span><input type="search" placeholder="Filter resources" value=${filter} onInput=${(e) => setFilter(e.target.value)} /></label>
      <label>Show <select value=${only} onChange=${(e) => setOnly(e.target.value)}><option value="">all</option><option value="yes">what is allowed</option><option value="no">what is not</option></select></label>
      ${value.how === "rules" && html`<label><input type="checkbox" checked=${sub} onChange=${(e) => setSub(e.target.checked)} /> subresources</label>`}
    </div>
    <${Failure} error=${problem} />
    ${value.answers && progress < 1 && !problem && html`<p role="status" class="quiet">Asking about each request: ${Math.round(progress * 100)} %</p>`}
    ${value.why && html`<p class="quiet">The server was asked about each request, since its rules could not be listed: <bdi>${visible(value.why)}</bdi></p>`}
    ${problem && value.answers.size === 0 ? "" : html`
    ${value.incomplete && html`<p class="warn">The server could not list all rules${value.note && html`: <bdi>${visible(value.note)}</bdi>`}. A “no” may be a “yes” by another authorizer: choose it to ask.</p>`}
    <p class="quiet legend"><span class="yes">✓</span> allowed · <span class="names">◐</span> for some names · <span class="no">–</span> not allowed. Choose a cell to see why.</p>
    <${Grid} rows=${shown} may=${value.may} who=${who} ask=${(r, verb) => setAsked(question(who, r, verb, namespace))} />`}
    ${value.paths.length > 0 && html`<${Paths} rules=${value.paths} ask=${(path, verb) => setAsked({ user: who.name, groups: who.groups, verb, path })} />`}
    ${asked && html`<${Why} q=${asked} self=${who.self} features=${features} close=${() => setAsked()} />`}
  </section>`;
}

const marks = { unknown: ["…", "may or may not"], yes: ["✓", "may"], names: ["◐", "may for some names"], no: ["–", "may not"] };

// Grid is the matrix. It is one stop of the Tab key; arrows go through its cells.
function Grid({ rows, may, who, ask }) {
  const table = useRef();
  const [at, setAt] = useState([0, 0]);
  const keys = (e) => {
    const moves = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };
    const move = moves[e.key];
    if (!move) return;
    e.preventDefault();
    let [row, column] = at;
    // Cells of verbs that a resource does not have are stepped over.
    for (let i = 0; i < rows.length + verbs.length; i++) {
      row += move[0];
      column += move[1];
      if (row < 0 || column < 0 || row >= rows.length || column >= verbs.length) return;
      const cell = table.current.querySelector(`[data-cell="${row}-${column}"]`);
      if (cell) {
        setAt([row, column]);
        cell.focus();
        return;
      }
    }
  };
  let first = at;
  if (!rows[at[0]]?.verbs.includes(verbs[at[1]])) {
    const row = rows.findIndex((r) => verbs.some((v) => r.verbs.includes(v)));
    first = row < 0 ? at : [row, verbs.findIndex((v) => rows[row].verbs.includes(v))];
  }
  return html`<div class="scroll matrix">
    <table ref=${table} role="grid" aria-label=${"Rights of " + who.name} onKeyDown=${keys}>
      <thead><tr><th scope="col">resource</th>${verbs.map((v) => html`<th scope="col" class="verb">${short[v] || v}</th>`)}</tr></thead>
      <tbody>
        ${rows.map((r, i) => {
          const begins = i === 0 || rows[i - 1].group !== r.group;
          return html`${begins && html`<tr key=${"group " + r.group} class="group"><th scope="rowgroup" colspan=${verbs.length + 1}>${r.group || "core"}</th></tr>`}
            <tr key=${keyOf(r)}>
              <th scope="row" title=${keyOf(r)}>${r.subresource ? html`<span class="quiet">${r.resource}/</span>${r.subresource}` : r.resource}${!r.namespaced && html` <small title="Not in a namespace">cluster</small>`}</th>
              ${verbs.map((verb, j) => {
                if (!r.verbs.includes(verb)) return html`<td key=${verb} class="none" aria-label="has no such verb"></td>`;
                const answer = may(r, verb) || "unknown";
                return html`<td key=${verb}>
                  <button class=${"plain cell " + answer} data-cell=${i + "-" + j} tabindex=${first[0] === i && first[1] === j ? 0 : -1} onFocus=${() => setAt([i, j])} onClick=${() => ask(r, verb)}
                    aria-label=${`${who.name} ${marks[answer][1]} ${verb} ${r.resource}${r.subresource ? "/" + r.subresource : ""}`}>${marks[answer][0]}</button>
                </td>`;
              })}
            </tr>`;
        })}
        ${rows.length === 0 && html`<tr><td colspan=${verbs.length + 1} class="quiet">No resource is like that.</td></tr>`}
      </tbody>
    </table>
  </div>`;
}

function Paths({ rules, ask }) {
  const all = new Map();
  for (const r of rules) for (const path of r.nonResourceURLs || []) all.set(path, [...new Set([...(all.get(path) || []), ...(r.verbs || [])])]);
  return html`<details>
    <summary>Paths that are not resources: ${all.size}</summary>
    <ul class="paths">${[...all].sort().map(([path, can]) => html`<li key=${path}><button class="plain link" onClick=${() => ask(path.replace(/\*$/, ""), can[0] === "*" ? "get" : can[0])}><code><bdi>${visible(path)}</bdi></code></button> <small><bdi>${visible(can.join(", "))}</bdi></small></li>`)}</ul>
  </details>`;
}

const describe = (q) => `${q.verb} ${q.path || q.resource + (q.subresource ? "/" + q.subresource : "") + (q.group ? "." + q.group : "") + (q.name ? " " + q.name : "") + (q.namespace ? " in namespace " + q.namespace : "")}`;

// Why explains one request: by the server if it can, else by its answer and the roles that
// can be read.
function Why({ q: first, self, features, close }) {
  const [name, setName] = useState("");
  const q = { ...first, name };
  const { value, error, loading } = useAsync(
    async (signal) => {
      if (features.why) {
        try {
          return await get("/debug/kelson/why", self ? { ...q, user: "", groups: [] } : q, { signal });
        } catch (err) {
          if (err.code !== 403) throw err; // who may not ask why may ask whether
        }
      }
      const [status, policy] = await Promise.all([review(q, self, signal), readPolicy(q.namespace, signal)]);
      const read = explain(policy, q);
      return { ...read, allowed: status.allowed, reason: status.reason, error: status.evaluationError, suggestion: status.allowed || status.denied ? undefined : read.suggestion, told: features.why ? "You may not ask this server why." : "Kubernetes does not tell why." };
    },
    [JSON.stringify(q)],
  );
  return html`<${Dialog} title=${"May they " + describe(first) + "?"} close=${close}>
    ${!q.path && html`<label class="tools">Name of one object <input value=${name} onChange=${(e) => setName(e.target.value.trim())} placeholder="any" autocomplete="off" spellcheck="false" /></label>`}
    <${Failure} error=${error} />
    ${loading && !value && html`<${Loading} what="Asking" />`}
    ${value && html`<${Answer} answer=${value} />`}
  <//>`;
}

function Named({ of }) {
  if (!of) return null;
  const text = html`${of.kind} <bdi>${visible(of.namespace ? of.namespace + "/" : "")}${visible(of.name)}</bdi>`;
  if (!of.resource) return html`<span>${text}</span>`;
  return html`<${Link} to=${objectLink({ group: "rbac.authorization.k8s.io", version: "v1", resource: of.resource }, of.namespace, of.name)}>${text}<//>`;
}

const ruleText = (g) => {
  const r = g.rule;
  if (!r) return g.policy || "";
  const what = r.nonResourceURLs?.length ? r.nonResourceURLs.join(", ") : (r.resources || []).join(", ") + ((r.apiGroups || []).some(Boolean) ? " of " + r.apiGroups.map((x) => x || "core").join(", ") : "");
  return (r.verbs || []).join(", ") + " " + what + (r.resourceNames?.length ? " named " + r.resourceNames.join(", ") : "");
};

const Grants = ({ title, last, all, cell }) =>
  all?.length > 0 &&
  html`<h3>${title}</h3>
    <div class="scroll"><table>
      <thead><tr><th scope="col">binding</th><th scope="col">role</th><th scope="col">for</th><th scope="col">${last}</th></tr></thead>
      <tbody>${all.map((g, i) => html`<tr key=${i}><td>${g.binding ? html`<${Named} of=${g.binding} />` : "a policy"}</td><td><${Named} of=${g.role} /></td><td><${Named} of=${g.subject && { ...g.subject, resource: "" }} /></td><td>${cell(g)}</td></tr>`)}</tbody>
    </table></div>`;

function Answer({ answer: a }) {
  return html`<div class="answer">
    <p class=${"verdict " + (a.allowed ? "good" : "bad")} role="status"><strong>${a.allowed ? "Yes" : "No"}</strong>: <bdi>${visible(a.question.user || "you")}</bdi> ${a.allowed ? "can" : "cannot"} <bdi>${visible(describe(a.question))}</bdi>.</p>
    ${a.reason && html`<p><bdi>${visible(a.reason)}</bdi></p>`}
    ${a.error && html`<p class="warn"><bdi>${visible(a.error)}</bdi></p>`}
    ${a.authorizers.map(
      (o) => html`<div key=${o.name}>
        <${Grants} title="Allowed by" last="rule" all=${o.grants} cell=${(g) => html`<bdi>${visible(ruleText(g))}</bdi>`} />
        <${Grants} title="Closest" last="lacks" all=${o.near} cell=${(g) => html`<bdi>${visible((g.lacks || []).join(", "))}</bdi>`} />
        <${Grants} title="Bindings without a role" last="lacks" all=${o.dangling} cell=${() => "the role does not exist"} />
        ${(o.paths || []).map((p, i) => html`<p key=${i}>node <bdi>${visible(p.node)}</bdi>${p.objects.map((x) => html` › <bdi>${visible(x.kind)} ${visible(x.namespace ? x.namespace + "/" : "")}${visible(x.name)}</bdi>`)}</p>`)}
        ${o.missing && html`<p>Missing: <bdi>${visible(o.missing)}</bdi>.</p>`}
      </div>`,
    )}
    <details><summary>What each authorizer says</summary>
      <table><tbody>${a.authorizers.map((o) => html`<tr key=${o.name}><th scope="row">${o.name}</th><td>${o.answer}</td><td><bdi>${visible([o.reason, o.error, ...(o.notes || [])].filter(Boolean).join("; "))}</bdi></td></tr>`)}</tbody></table>
    </details>
    ${a.hidden && html`<p class="quiet">There is more to it: roles, bindings or other objects that you may not read.</p>`}
    ${(a.unread || []).map((text, i) => html`<p key=${i} class="quiet">Not read: <bdi>${visible(text)}</bdi></p>`)}
    ${a.told && html`<p class="quiet">The decision is the server's. ${a.told} What is said about roles is read from them by the console, and other authorizers are not known.</p>`}
    ${a.suggestion?.yaml && html`<${Snippet} label="This would allow exactly that" text=${a.suggestion.yaml} />`}
    ${a.suggestion?.policy && html`<${Snippet} label="A line for the file of ABAC policies" text=${a.suggestion.policy} />`}
    ${a.suggestion?.note && html`<p>Note: <bdi>${visible(a.suggestion.note)}</bdi>.</p>`}
  </div>`;
}

function Denials({ who }) {
  const { value, error, again } = useAsync((signal) => get("/debug/kelson/denials", who.self ? {} : { user: who.name }, { signal }), [who.name, who.self]);
  const [shown, setShown] = useState();
  return html`<section aria-label="Last denials">
    <div class="tools"><h2>Denied lately</h2><button onClick=${again}>Look again</button></div>
    <${Failure} error=${error} />
    ${value?.denials.length === 0 && html`<p class="quiet">This server has denied <bdi>${visible(who.name)}</bdi> nothing since it started.</p>`}
    ${value?.denials.length > 0 &&
    html`<div class="scroll"><table>
      <thead><tr><th scope="col">last time</th><th scope="col" class="number">times</th><th scope="col">request</th><th scope="col">now</th></tr></thead>
      <tbody>${value.denials.map(
        (d, i) => html`<tr key=${i}>
          <td><${Age} of=${d.time} /></td>
          <td class="number">${d.count}</td>
          <td class="request"><bdi>${visible(describe(d.question))}</bdi></td>
          <td>${d.now ? html`<button onClick=${() => setShown(d.now)}>${d.now.allowed ? "allowed" : "denied"}: why</button>` : "too long to be kept whole"}</td>
        </tr>`,
      )}</tbody>
    </table></div>`}
    ${shown && html`<${Dialog} title="Why" close=${() => setShown()}><${Answer} answer=${shown} /><//>`}
  </section>`;
}

// WhoCan lists who can make a request.
function WhoCan({ route, namespace, features }) {
  const known = useResources((r) => r.preferred);
  const asked = route.query.get("can") || "";
  const submit = (e) => {
    e.preventDefault();
    const form = new FormData(e.target);
    setQuery({ can: form.get("verb"), resource: form.get("resource").trim(), name: form.get("name").trim(), in: form.get("in").trim() || "*" }, false);
  };
  const [word, sub] = (route.query.get("resource") || "secrets").split("/");
  const found = useMemo(() => known.find((r) => [r.resource, r.singular, r.kind.toLowerCase(), ...r.shortNames, r.resource + "." + r.group].includes(word.toLowerCase())), [known, word]);
  const within = route.query.get("in") === "*" ? "" : route.query.get("in") || namespace;
  const q = asked && { verb: asked, group: found?.group ?? "", resource: found?.resource || word, subresource: sub || "", namespace: found && !found.namespaced ? "" : within, name: route.query.get("name") || "" };
  return html`<section aria-label="Who can">
    <h2>Who can</h2>
    <form class="tools" onSubmit=${submit} key=${route.query.toString()} aria-label="Who can">
      <label><span class="hidden">Verb</span><select name="verb" value=${asked || "get"}>${[...verbs, "impersonate", "bind", "escalate", "approve", "use"].map((v) => html`<option value=${v}>${v}</option>`)}</select></label>
      <label>Resource <input name="resource" list="access-resources" value=${route.query.get("resource") || "secrets"} autocomplete="off" spellcheck="false" /></label>
      <datalist id="access-resources">${known.map((r) => html`<option value=${r.group ? r.resource + "." + r.group : r.resource} />`)}</datalist>
      <label>Name <input name="name" value=${route.query.get("name") || ""} placeholder="any" autocomplete="off" spellcheck="false" /></label>
      <label>Namespace <input name="in" list="access-namespaces" value=${within} placeholder="all" autocomplete="off" spellcheck="false" /></label>
      <button>Who can?</button>
    </form>
    ${q && known.length > 0 && html`<${Holders} q=${q} features=${features} />`}
  </section>`;
}

function Holders({ q, features }) {
  const { value, error, loading } = useAsync(
    async (signal) => {
      try {
        if (features.why) return await get("/debug/kelson/who-can", q, { signal });
      } catch (err) {
        if (err.code !== 403) throw err; // who may read roles can tell from them
      }
      const policy = await readPolicy(q.namespace, signal);
      if (policy.unread.length && !policy.bindings.length) throw new ApiError(403, { message: policy.unread.join("\n") });
      return whoCan(policy, q);
    },
    [JSON.stringify(q)],
  );
  if (!value) return loading ? html`<${Loading} what="Looking through the bindings" />` : html`<${Failure} error=${error} />`;
  return html`<${Failure} error=${error} />
    <p role="status">${value.subjects.length === 0 ? "Nobody whom you may see can" : value.subjects.length === 1 ? "One subject can" : value.subjects.length + " subjects can"} <bdi>${visible(describe(value.question))}</bdi>.</p>
    ${value.subjects.length > 0 &&
    html`<div class="scroll"><table>
      <thead><tr><th scope="col">who</th><th scope="col">by</th><th scope="col">role</th><th scope="col">rule</th></tr></thead>
      <tbody>${value.subjects.map((g, i) => html`<tr key=${i}><td><${Named} of=${g.subject && { ...g.subject, resource: "" }} /></td><td>${g.binding ? html`<${Named} of=${g.binding} />` : html`<bdi>${visible(g.policy)}</bdi>`}</td><td><${Named} of=${g.role} /></td><td class="request"><bdi>${visible(g.rule ? ruleText(g) : "")}</bdi></td></tr>`)}</tbody>
    </table></div>`}
    ${(value.unknown || []).map((text, i) => html`<p key=${i} class="quiet">Not known: <bdi>${visible(text)}</bdi>.</p>`)}
    ${(value.unread || []).map((text, i) => html`<p key=${i} class="quiet">Not read: <bdi>${visible(text)}</bdi></p>`)}
    ${value.truncated && html`<p class="quiet">There are more, which are not shown.</p>`}
    ${value.hidden && html`<p class="quiet">There are others, by bindings or roles that you may not read.</p>`}`;
}
