// What the server says about the fields of its kinds, from OpenAPI v3, a group at a time.
import { get } from "./api.js";

let index;
const groups = new Map();

async function groupSchemas(r) {
  index ||= get("/openapi/v3").catch((error) => {
    index = undefined;
    throw error;
  });
  const place = (r.group ? `apis/${r.group}/` : "api/") + r.version;
  const path = (await index).paths?.[place]?.serverRelativeURL;
  if (!path) return {};
  if (!groups.has(path)) {
    const loading = get(path).then((doc) => doc.components?.schemas || {});
    loading.catch(() => groups.delete(path));
    groups.set(path, loading);
  }
  return groups.get(path);
}

// Schema is the schema of one kind.
class Schema {
  constructor(all, root) {
    this.all = all;
    this.root = root;
  }

  // resolve follows references. What is said beside one counts before what it says.
  resolve(s, depth = 0) {
    if (!s || depth > 8) return s;
    const ref = s.$ref || (s.allOf?.length === 1 && s.allOf[0].$ref);
    if (!ref) return s;
    const { $ref, allOf, ...own } = s;
    return { ...this.resolve(this.all[ref.replace("#/components/schemas/", "")], depth + 1), ...own };
  }

  // at returns the schema of a path: names of fields, and "[]" for an item of a list.
  at(path) {
    let s = this.resolve(this.root);
    for (const name of path) {
      if (!s) return undefined;
      s = name === "[]" ? this.resolve(s.items) : this.resolve(s.properties?.[name] || (typeof s.additionalProperties === "object" ? s.additionalProperties : undefined));
    }
    return s;
  }
}

// schemaOf returns the Schema of a resource, or undefined if the server has none.
export async function schemaOf(r) {
  const all = await groupSchemas(r);
  const root = Object.values(all).find((s) => (s["x-kubernetes-group-version-kind"] || []).some((k) => (k.group || "") === r.group && k.version === r.version && k.kind === r.kind));
  return root && new Schema(all, root);
}

// typeOf is the type of a schema in words.
export function typeOf(s) {
  if (!s) return "";
  if (s["x-kubernetes-int-or-string"] || s.oneOf?.some((o) => o.type === "integer") || s.format === "int-or-string") return "integer or string";
  if (s.type === "array") return "list of " + (typeOf(s.items) || "objects");
  if (s.type === "object" && typeof s.additionalProperties === "object") return "map of " + (typeOf(s.additionalProperties) || "objects");
  return (s.type || (s.$ref || s.allOf || s.properties ? "object" : "")) + (s.format && s.format !== "int-or-string" ? ` (${s.format})` : "");
}
