// Roles and bindings, read by the rules of RBAC: for servers that do not explain decisions
// themselves. Answers have the form of the page /debug/kelson/why.
import { get } from "./api.js";
import { toYAML } from "./snippet.js";

const api = "/apis/rbac.authorization.k8s.io/v1";
const most = 20; // pages of 500 of a list

// groupsOf returns the groups of a user: those that are named, and those that a server adds
// for the name.
export function groupsOf(user, named = []) {
  const account = /^system:serviceaccount:([^:]+):[^:]+$/.exec(user);
  const added =
    user === "system:anonymous"
      ? ["system:unauthenticated"]
      : [...(account ? ["system:serviceaccounts", "system:serviceaccounts:" + account[1]] : user.startsWith("system:node:") ? ["system:nodes"] : []), "system:authenticated"];
  return [...new Set([...named, ...added])];
}

const any = (list, ...values) => (list || []).some((v) => v === "*" || values.includes(v));

// lacks returns what of a request a rule does not have; nothing if it allows the request.
// A request is {verb, group, resource, subresource, name} or {verb, path}.
export function lacks(rule, q) {
  const missing = [];
  if (!any(rule.verbs, q.verb)) missing.push(`verb "${q.verb}"`);
  if (q.path !== undefined && q.path !== "") {
    if (!(rule.nonResourceURLs || []).some((u) => u === "*" || u === q.path || (u.endsWith("*") && q.path.startsWith(u.slice(0, -1))))) missing.push(`path "${q.path}"`);
    return missing;
  }
  const full = q.subresource ? q.resource + "/" + q.subresource : q.resource;
  if (!any(rule.apiGroups, q.group || "")) missing.push(q.group ? `API group "${q.group}"` : "the core API group");
  if (!any(rule.resources, full, ...(q.subresource ? ["*/" + q.subresource] : []))) missing.push(`resource "${full}"`);
  if (rule.resourceNames?.length && !rule.resourceNames.includes(q.name || "")) missing.push(q.name ? `name "${q.name}"` : "all names");
  return missing;
}

// mayBy says what rules allow: "yes", "names" if only for some names, or "no".
export function mayBy(rules, q) {
  let names = false;
  for (const rule of rules) {
    const missing = lacks(rule, q);
    if (missing.length === 0) return "yes";
    if (missing.length === 1 && rule.resourceNames?.length && missing[0] === "all names") names = true;
  }
  return names ? "names" : "no";
}

async function listAll(path, signal) {
  const items = [];
  let token = "";
  for (let page = 0; page < most; page++) {
    const list = await get(path, { limit: 500, continue: token }, { signal });
    items.push(...(list.items || []));
    token = list.metadata?.continue;
    if (!token) return { items };
  }
  return { items, more: true };
}

// readPolicy reads the roles and bindings that matter in a namespace, and says which could
// not be read: {bindings, roles, unread, more}.
export async function readPolicy(namespace, signal) {
  const kinds = [
    ["ClusterRole", `${api}/clusterroles`],
    ["ClusterRoleBinding", `${api}/clusterrolebindings`],
    ...(namespace ? [["Role", `${api}/namespaces/${encodeURIComponent(namespace)}/roles`], ["RoleBinding", `${api}/namespaces/${encodeURIComponent(namespace)}/rolebindings`]] : []),
  ];
  const policy = { bindings: [], roles: new Map(), unread: [], more: false };
  await Promise.all(
    kinds.map(async ([kind, path]) => {
      try {
        const { items, more } = await listAll(path, signal);
        policy.more ||= Boolean(more);
        for (const o of items) {
          if (kind.endsWith("Binding")) policy.bindings.push({ ...o, kind });
          else policy.roles.set(kind + "/" + o.metadata.name, { ...o, kind });
        }
      } catch (error) {
        if (signal?.aborted) throw error;
        policy.unread.push(error.message);
      }
    }),
  );
  policy.bindings.sort((a, b) => (a.kind + a.metadata.name < b.kind + b.metadata.name ? -1 : 1));
  return policy;
}

const object = (o, resource) => ({ group: "rbac.authorization.k8s.io", resource, kind: o.kind, namespace: o.metadata.namespace, name: o.metadata.name });

function isFor(subject, binding, user, groups) {
  switch (subject.kind) {
    case "User":
      return subject.name === user;
    case "Group":
      return groups.includes(subject.name);
    case "ServiceAccount":
      return user === `system:serviceaccount:${subject.namespace || binding.metadata.namespace}:${subject.name}`;
  }
  return false;
}

// grantsOf returns what each rule of each binding gives, for subjects that are wanted.
function* grantsOf(policy, q, wanted) {
  for (const binding of policy.bindings) {
    // Bindings of a namespace say nothing about requests outside of it.
    if (binding.kind === "RoleBinding" && !q.namespace) continue;
    for (const subject of binding.subjects || []) {
      if (!wanted(subject, binding)) continue;
      const ref = binding.roleRef;
      const role = policy.roles.get(ref.kind + "/" + ref.name);
      const named = { binding: object(binding, binding.kind.toLowerCase() + "s"), role: { kind: ref.kind, name: ref.name, resource: ref.kind.toLowerCase() + "s", namespace: ref.kind === "Role" ? binding.metadata.namespace : undefined }, subject };
      if (!role) yield { ...named, missing: true };
      for (const rule of role?.rules || []) yield { ...named, rule, lacks: lacks(rule, q) };
    }
  }
}

// explain says why a user may make a request by the roles that could be read, or what is
// closest to it and what would allow it.
export function explain(policy, q) {
  const groups = q.groups || [];
  const all = [...grantsOf(policy, q, (subject, binding) => isFor(subject, binding, q.user, groups))];
  const grants = all.filter((g) => g.rule && g.lacks.length === 0).slice(0, 5);
  const near = all.filter((g) => g.rule && g.lacks.length > 0 && g.lacks.length <= (q.path ? 1 : 2)).sort((a, b) => a.lacks.length - b.lacks.length);
  const fewest = near[0]?.lacks.length;
  return {
    question: q,
    allowed: grants.length > 0,
    authorizers: [{ name: "RBAC, as read by the console", answer: grants.length ? "allow" : "no opinion", grants: grants.map(({ lacks: _, ...g }) => g), near: near.filter((g) => g.lacks.length === fewest).slice(0, 5), dangling: all.filter((g) => g.missing).slice(0, 5) }],
    suggestion: grants.length ? undefined : suggest(q),
    unread: policy.unread,
  };
}

// whoCan lists who may make a request by the roles that could be read.
export function whoCan(policy, q) {
  const subjects = [];
  for (const g of grantsOf(policy, q, () => true)) {
    if (!g.rule || g.lacks.length) continue;
    if (subjects.length === 500) return { question: q, subjects, truncated: true, unread: policy.unread };
    subjects.push({ authorizer: "rbac", ...g });
  }
  return { question: q, subjects, unread: policy.unread, unknown: ["other authorizers than RBAC may allow it to others"] };
}

// A name for objects that is the same for the same question.
function nameFor(q) {
  const words = [q.user, q.verb, q.path || q.resource, q.subresource].filter(Boolean).join("-");
  let hash = 0x811c9dc5;
  for (const c of JSON.stringify([q.user, q.verb, q.group, q.resource, q.subresource, q.namespace, q.name, q.path])) hash = Math.imul(hash ^ c.codePointAt(0), 0x01000193) >>> 0;
  return words.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 200) + "-" + hash.toString(16).padStart(8, "0");
}

// suggest returns a role and a binding that allow exactly a request.
function suggest(q) {
  const name = nameFor(q);
  const apiGroup = "rbac.authorization.k8s.io";
  const kind = q.namespace ? "Role" : "ClusterRole";
  const metadata = { name, namespace: q.namespace || undefined };
  const isNamed = q.name && q.verb !== "create" && q.verb !== "deletecollection";
  const rule = q.path
    ? { nonResourceURLs: [q.path], verbs: [q.verb] }
    : { apiGroups: [q.group || ""], resources: [q.subresource ? q.resource + "/" + q.subresource : q.resource], resourceNames: isNamed ? [q.name] : undefined, verbs: [q.verb] };
  const account = /^system:serviceaccount:([^:]+):([^:]+)$/.exec(q.user);
  const subject = account ? { kind: "ServiceAccount", namespace: account[1], name: account[2] } : { apiGroup, kind: "User", name: q.user };
  return {
    yaml: toYAML(
      { apiVersion: apiGroup + "/v1", kind, metadata, rules: [rule] },
      { apiVersion: apiGroup + "/v1", kind: kind + "Binding", metadata, roleRef: { apiGroup, kind, name }, subjects: [subject] },
    ),
  };
}
