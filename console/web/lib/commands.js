// Requests as commands of a shell: curl and kubectl. They hold no credentials.
import { shellQuote } from "./snippet.js";

// curlOf is the request as a command of curl. The token comes from a variable.
export function curlOf(server, { method, path, headers, body }) {
  const url = server.replace(/\/$/, "") + path;
  const words = ["curl"];
  if (/[[\]{}]/.test(url)) words.push("--globoff");
  if (method === "HEAD") words.push("--head"); // with --request HEAD it would wait for a body
  else if (method !== "GET") words.push("--request " + method);
  words.push('--cacert "$CA"', '--header "Authorization: Bearer $TOKEN"');
  for (const [name, value] of headers) words.push("--header " + shellQuote(`${name}: ${value}`));
  if (body) words.push("--data-raw " + shellQuote(body));
  words.push(shellQuote(url));
  return words.join(" \\\n  ");
}

const types = { "application/merge-patch+json": "merge", "application/strategic-merge-patch+json": "strategic", "application/json-patch+json": "json" };

// partsOf takes the path of an object apart: {group, version, namespace, resource, name,
// subresource}; undefined if it is no such path.
export function partsOf(path) {
  const m = /^\/(?:api\/([^/]+)|apis\/([^/]+)\/([^/]+))(?:\/namespaces\/([^/]+)(?=\/[^/]))?\/([^/]+)(?:\/([^/]+))?(?:\/(.+))?$/.exec(path.split("?")[0]);
  if (!m) return undefined;
  try {
    return { group: m[2] || "", version: m[1] || m[3], namespace: m[4] && decodeURIComponent(m[4]), resource: m[5], name: m[6] && decodeURIComponent(m[6]), subresource: m[7] };
  } catch {
    return undefined;
  }
}

// kubectlOf is the request as a command of kubectl, and what of it kubectl cannot say.
export function kubectlOf(context, { method, path, headers, body, type }) {
  const words = ["kubectl"];
  if (context) words.push("--context=" + shellQuote(context));
  const lost = [];
  for (const [name, value] of headers) {
    const lower = name.toLowerCase();
    if (lower === "impersonate-user") words.push("--as=" + shellQuote(value));
    else if (lower === "impersonate-group") words.push("--as-group=" + shellQuote(value));
    else if (lower === "impersonate-uid") words.push("--as-uid=" + shellQuote(value));
    else if (lower !== "content-type" && !(lower === "accept" && value.startsWith("application/json"))) lost.push(name);
  }
  const raw = (verb, input) => [...(input ? ["printf", "%s", shellQuote(body || ""), "|"] : []), ...words, verb, "--raw", shellQuote(path), ...(input ? ["-f", "-"] : [])].join(" ");
  if (["POST", "PUT", "DELETE"].includes(method) && body && /yaml/.test(type)) return { text: "", note: "kubectl --raw sends JSON alone: write the body as JSON, or use curl." };
  let text;
  const of = partsOf(path);
  switch (method) {
    case "GET":
      text = raw("get");
      break;
    case "POST":
      text = raw("create", true);
      break;
    case "PUT":
      text = raw("replace", true);
      break;
    case "DELETE":
      text = raw("delete", Boolean(body));
      break;
    case "PATCH":
      if (type.startsWith("application/apply-patch")) {
        const query = new URLSearchParams(path.split("?")[1] || "");
        text = ["printf", "%s", shellQuote(body || ""), "|", ...words, "apply", "--server-side", "-f", "-", ...(query.get("fieldManager") ? ["--field-manager=" + shellQuote(query.get("fieldManager"))] : []), ...(query.get("force") === "true" ? ["--force-conflicts"] : []), ...(query.get("dryRun") ? ["--dry-run=server"] : [])].join(" ");
      } else if (of?.name) {
        // What a path has comes after --: a name may look like an option.
        text = [...words, "patch", ...(of.namespace ? ["--namespace=" + shellQuote(of.namespace)] : []), ...(of.subresource ? ["--subresource=" + shellQuote(of.subresource)] : []), "--type", types[type] || "merge", ...(path.includes("dryRun=All") ? ["--dry-run=server"] : []), "--patch=" + shellQuote(body || ""), "--", shellQuote(of.group ? `${of.resource}.${of.version}.${of.group}` : of.resource), shellQuote(of.name)].join(" ");
      }
      break;
  }
  if (!text) return { text: "", note: `kubectl has no command for ${method} of this path.` };
  return { text, note: lost.length ? `kubectl cannot send: ${lost.join(", ")}.` : "" };
}
