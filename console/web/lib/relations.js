// The owners and dependents of an object, as a drawing and as a list.
import { html, useState, useEffect, useMemo, Link, navigate } from "./ui.js";
import { get, send, pathOf, findKind, resources, objectLink } from "./api.js";

const metadataList = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json";
const metadataOnly = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json";

// Bounds of the search, and of what is drawn.
const pageSize = 1000, maxPages = 5, atOnce = 3, maxChildren = 10, maxDepth = 6, maxListed = 500;
const usual = ["replicasets", "pods", "jobs", "controllerrevisions", "endpointslices", "persistentvolumeclaims", "cronjobs", "deployments", "statefulsets", "daemonsets", "services", "configmaps", "secrets"];

const nodeOf = (r, m) => ({ uid: m.uid, kind: r.kind, name: m.name, namespace: m.namespace || "", link: objectLink(r, m.namespace, m.name), owners: m.ownerReferences || [], deleting: Boolean(m.deletionTimestamp) });

// findOwners follows ownerReferences up: a list of chains, the nearest first.
async function findOwners(node, signal, depth = 0, seen = new Set()) {
  if (depth >= maxDepth) return [];
  return Promise.all(
    node.owners.filter((o) => !seen.has(o.uid)).slice(0, 8).map(async (o) => {
      seen.add(o.uid);
      const plain = { uid: o.uid, kind: o.kind, name: o.name, namespace: "", owners: [] };
      try {
        const r = await findKind(o.apiVersion, o.kind);
        if (!r) return { ...plain, missing: "this kind is not served", parents: [] };
        const full = await get(pathOf(r, r.namespaced ? node.namespace : "", o.name), {}, { accept: metadataOnly, signal });
        if (full.metadata.uid !== o.uid) return { ...plain, missing: "another object has this name now", parents: [] };
        const found = nodeOf(r, full.metadata);
        return { ...found, parents: await findOwners(found, signal, depth + 1, seen) };
      } catch (error) {
        return { ...plain, missing: error.code === 404 ? "does not exist" : error.message, parents: [] };
      }
    }),
  );
}

// listRules returns the question whether the user may list a resource, as far as the server
// tells: what it does not know is tried.
async function listRules(namespace, signal) {
  try {
    const review = { apiVersion: "authorization.k8s.io/v1", kind: "SelfSubjectRulesReview", spec: { namespace: namespace || "default" } };
    const { status } = await send("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review, { signal });
    if (status.incomplete) return () => true;
    const has = (list, name) => (list || []).some((x) => x === "*" || x === name);
    const rules = (status.resourceRules || []).filter((r) => has(r.verbs, "list") && !r.resourceNames?.length);
    return (r) => rules.some((rule) => has(rule.apiGroups, r.group) && has(rule.resources, r.resource));
  } catch {
    return () => true;
  }
}

// findDependents looks through lists, and calls tell({children: Map of uid → nodes, looked,
// total, refused, cut}) as it goes.
async function findDependents(resource, object, signal, tell) {
  const namespace = object.metadata.namespace;
  const mayList = await listRules(namespace, signal);
  const listable = (await resources()).filter((r) => r.preferred && r.verbs.includes("list") && r.resource !== "events" && (namespace ? r.namespaced : true));
  const all = listable.filter(mayList);
  const place = (r) => (usual.includes(r.resource) ? usual.indexOf(r.resource) : 99);
  all.sort((a, b) => place(a) - place(b));
  const state = { children: new Map(), looked: 0, total: all.length, refused: [], cut: [], skipped: listable.length - all.length };
  tell({ ...state });
  let next = 0;
  const work = async () => {
    while (next < all.length && !signal.aborted) {
      const r = all[next++];
      try {
        let token;
        for (let page = 0; page < maxPages; page++) {
          const list = await get(pathOf(r, namespace), { limit: pageSize, continue: token }, { accept: metadataList, signal });
          for (const { metadata: m } of list.items || []) {
            for (const o of m.ownerReferences || []) {
              if (!state.children.has(o.uid)) state.children.set(o.uid, []);
              state.children.get(o.uid).push(nodeOf(r, m));
            }
          }
          token = list.metadata?.continue;
          if (!token) break;
        }
        if (token) state.cut.push(r.resource);
      } catch (error) {
        if (signal.aborted) return;
        state.refused.push(`${r.resource}: ${error.message}`);
      }
      state.looked++;
      tell({ ...state });
    }
  };
  await Promise.all(Array.from({ length: atOnce }, work));
}

// layout places the nodes: owners to the left, dependents to the right.
function layout(self, parents, children) {
  const nodes = [], edges = [];
  const width = 216, height = 44, gapX = 56, gapY = 12;
  let row = 0;
  const seen = new Set();
  const down = (node, depth) => {
    seen.add(node.uid);
    const below = depth < maxDepth ? (children.get(node.uid) || []).filter((c) => !seen.has(c.uid)) : [];
    const shown = below.slice(0, maxChildren), at = [];
    for (const c of shown) at.push(down(c, depth + 1));
    if (below.length > shown.length) {
      const more = { more: below.length - shown.length, uid: node.uid + "-more", x: depth + 1, y: row++ };
      nodes.push(more);
      at.push(more);
    }
    const y = at.length ? (at[0].y + at.at(-1).y) / 2 : row++;
    const placed = { ...node, x: depth, y };
    nodes.push(placed);
    for (const c of at) edges.push([placed, c]);
    return placed;
  };
  const me = down({ ...self, self: true }, 0);
  let top = me.y;
  const up = (node, list, depth) => {
    list.forEach((p, i) => {
      const placed = { ...p, x: -depth, y: node.y + (i - (list.length - 1) / 2) };
      top = Math.min(top, placed.y);
      nodes.push(placed);
      edges.push([placed, node]);
      up(placed, p.parents, depth + 1);
    });
  };
  up(me, parents, 1);
  const left = Math.min(...nodes.map((n) => n.x)), high = Math.min(0, top), low = Math.max(...nodes.map((n) => n.y)), right = Math.max(...nodes.map((n) => n.x));
  const px = (n) => ({ left: 8 + (n.x - left) * (width + gapX), top: 8 + (n.y - high) * (height + gapY) });
  // In the order of reading, so that Tab goes that way.
  nodes.sort((a, b) => a.x - b.x || a.y - b.y);
  return { nodes: nodes.map((n) => ({ ...n, ...px(n) })), edges: edges.map(([a, b]) => [px(a), px(b)]), width, height, total: { width: 16 + (right - left) * (width + gapX) + width, height: 16 + (low - high) * (height + gapY) + height } };
}

const short = (text, n) => (text.length > n ? text.slice(0, n - 1) + "…" : text);

function Drawing({ self, parents, children }) {
  const l = useMemo(() => layout(self, parents, children), [self, parents, children]);
  const go = (e, link) => {
    if (e.metaKey || e.ctrlKey || e.shiftKey || e.button) return;
    e.preventDefault();
    navigate(link);
  };
  return html`<div class="graph scroll">
    <svg width=${l.total.width} height=${l.total.height} role="group" aria-label="Owners and dependents, as a drawing">
      ${l.edges.map(([a, b], i) => {
        const x1 = a.left + l.width, y1 = a.top + l.height / 2, x2 = b.left, y2 = b.top + l.height / 2, m = (x1 + x2) / 2;
        return html`<path key=${"e" + i} class="edge" d=${`M${x1} ${y1} C${m} ${y1} ${m} ${y2} ${x2} ${y2}`} />`;
      })}
      ${l.nodes.map((n) => {
        if (n.more) return html`<text key=${n.uid} class="quiet-text" x=${n.left + 12} y=${n.top + 27}>and ${n.more} more, in the list below</text>`;
        const body = html`<title>${n.kind} ${n.namespace ? n.namespace + "/" : ""}${n.name}${n.missing ? ": " + n.missing : ""}</title>
          <rect width=${l.width} height=${l.height} rx="8" />
          <text class="kind" x="12" y="17">${short(n.kind, 30)}${n.missing ? " · " + short(n.missing, 20) : n.deleting ? " · being deleted" : ""}</text>
          <text x="12" y="34">${short(n.name, 28)}</text>`;
        const box = { class: "node" + (n.self ? " self" : "") + (n.missing ? " missing" : ""), transform: `translate(${n.left} ${n.top})` };
        return n.link && !n.self
          ? html`<a key=${n.uid} href=${n.link} ...${box} onClick=${(e) => go(e, n.link)}>${body}</a>`
          : html`<g key=${n.uid} ...${box}>${body}</g>`;
      })}
    </svg>
  </div>`;
}

const Name = ({ node }) => html`<small>${node.kind}</small> ${node.link ? html`<${Link} to=${node.link}><bdi>${node.name}</bdi><//>` : html`<bdi>${node.name}</bdi>`}${node.missing && html` <span class="warn">${node.missing}</span>`}`;

function OwnerList({ parents }) {
  return html`<ul>${parents.map((p) => html`<li key=${p.uid}><${Name} node=${p} />${p.parents.length > 0 && html`<${OwnerList} parents=${p.parents} />`}</li>`)}</ul>`;
}

function DependentList({ uid, children, depth = 0, budget }) {
  const below = depth < maxDepth ? children.get(uid) || [] : [];
  if (!below.length) return null;
  const shown = below.slice(0, Math.max(0, budget.left));
  budget.left -= shown.length;
  return html`<ul>
    ${shown.map((c) => html`<li key=${c.uid}><${Name} node=${c} /><${DependentList} uid=${c.uid} children=${children} depth=${depth + 1} budget=${budget} /></li>`)}
    ${below.length > shown.length && html`<li class="quiet">and ${(below.length - shown.length).toLocaleString()} more</li>`}
  </ul>`;
}

export function Relations({ resource, object }) {
  const uid = object.metadata.uid, isCluster = !object.metadata.namespace;
  const [parents, setParents] = useState([]);
  const [found, setFound] = useState();
  const [wanted, setWanted] = useState(!isCluster);
  const self = useMemo(() => nodeOf(resource, object.metadata), [uid, JSON.stringify(object.metadata.ownerReferences)]);
  useEffect(() => {
    const abort = new AbortController();
    findOwners(self, abort.signal).then((p) => abort.signal.aborted || setParents(p));
    return () => abort.abort();
  }, [self]);
  useEffect(() => {
    if (!wanted) return;
    const abort = new AbortController();
    let timer, last;
    findDependents(resource, object, abort.signal, (s) => {
      last = s;
      // The search adds to its map: the drawing is made anew for another map alone.
      timer ||= setTimeout(() => ((timer = undefined), abort.signal.aborted || setFound({ ...last, children: new Map(last.children) })), 150);
    });
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [uid, wanted]);
  const children = found?.children || new Map();
  const direct = children.get(uid)?.length || 0;
  return html`<section class="relations">
    <p role="status" class="quiet">
      ${parents.length ? `${parents.length} ${parents.length === 1 ? "owner" : "owners"}` : "No owners"}${found ? `, ${direct} direct ${direct === 1 ? "dependent" : "dependents"}` : ""}.
      ${found && found.looked < found.total ? ` Looked through ${found.looked} of ${found.total} kinds.` : ""}
      ${found?.cut.length ? ` Of ${found.cut.join(", ")} only the first ${(pageSize * maxPages).toLocaleString()} were looked at.` : ""}
      ${found?.refused.length ? html` <span title=${found.refused.join("\n")}>${found.refused.length} kinds could not be listed.</span>` : ""}
      ${found?.skipped ? ` ${found.skipped} kinds that you may not list were left out.` : ""}
    </p>
    ${!wanted && html`<p><button onClick=${() => setWanted(true)}>Look for dependents in all namespaces</button></p>`}
    <${Drawing} self=${self} parents=${parents} children=${children} />
    <details>
      <summary>As a list</summary>
      ${parents.length > 0 && html`<h3>Owners</h3><${OwnerList} parents=${parents} />`}
      ${direct > 0 && html`<h3>Dependents</h3><${DependentList} uid=${uid} children=${children} budget=${{ left: maxListed }} />`}
      ${!parents.length && !direct && html`<p class="quiet">There is nothing to list.</p>`}
    </details>
  </section>`;
}
