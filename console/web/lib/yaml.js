// Objects as YAML. The page writes it, so that it knows the field of every line; reading is
// left to the server.

// parse reads JSON; numbers that JavaScript would round keep their digits.
export const parse = (text) =>
  JSON.parse(text, (key, value, context) => (typeof value === "number" && context?.source !== undefined && JSON.rawJSON && String(value) !== context.source ? JSON.rawJSON(context.source) : value));

const isRaw = (v) => typeof JSON.isRawJSON === "function" && JSON.isRawJSON(v);
const isMap = (v) => v !== null && typeof v === "object" && !Array.isArray(v) && !isRaw(v);

// Characters that YAML or a reader's eye takes for something else: line separators, marks of
// direction, and what has no width.
const unsafe = /[\u007f-\u00a0\u00ad\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\uffff]/g;
const quote = (text) => JSON.stringify(text).replace(unsafe, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));

const plain = /^[A-Za-z_/][\w./+@=~()$-]*(?:(?::|, | )[\w./+@=~()$-]+)*$/;
const words = /^(true|false|null|yes|no|on|off|y|n|inf|nan)$/i;

// scalar writes a value on one line: a string that could be read as something else is in
// quotes.
export function scalar(v) {
  if (typeof v !== "string") return v === undefined ? "null" : JSON.stringify(v);
  return v.length < 2000 && plain.test(v) && !words.test(v) ? v : quote(v);
}

const isBlock = (v) => typeof v === "string" && v.includes("\n") && !/^[\s]|^\n|\r|[\u0000-\u0008\u000b-\u001f]/.test(v) && v.search(unsafe) < 0;

// fieldPath adds a name to a path, as the pages of history write paths.
export function fieldPath(path, key) {
  if (!/^[A-Za-z0-9_$-]+$/.test(key)) return `${path}[${JSON.stringify(key)}]`;
  return path ? `${path}.${key}` : key;
}

// listKey is the field that names the items of a list in paths, or "".
export function listKey(list) {
  if (!list.length) return "";
  return ["name", "key", "type", "uid", "ip", "containerPort", "port"].find((key) => list.every((item) => isMap(item) && (typeof item[key] === "string" || typeof item[key] === "number"))) || "";
}

export const itemPath = (path, list, i, key = listKey(list)) => `${path}[${key && isMap(list[i]) ? key + "=" + list[i][key] : i}]`;

const rank = { apiVersion: 0, kind: 1, metadata: 2, spec: 3, data: 4, status: 9 };

// dump writes an object: {text, paths}, where paths has the path of every line.
export function dump(object) {
  const lines = [], paths = [];
  const add = (path, text) => (lines.push(text), paths.push(path));
  const map = (path, indent, m) => {
    const keys = Object.keys(m).sort();
    if (!path) keys.sort((a, b) => (rank[a] ?? 5) - (rank[b] ?? 5) || (a < b ? -1 : 1));
    for (const key of keys) value(fieldPath(path, key), indent, scalar(key) + ":", m[key]);
  };
  const value = (path, indent, prefix, v) => {
    if (isMap(v)) {
      if (!Object.keys(v).length) return add(path, indent + prefix + " {}");
      add(path, indent + prefix);
      map(path, indent + "  ", v);
    } else if (Array.isArray(v)) {
      if (!v.length) return add(path, indent + prefix + " []");
      add(path, indent + prefix);
      list(path, indent, v);
    } else if (isBlock(v)) block(path, indent, prefix, v);
    else add(path, indent + prefix + " " + scalar(v));
  };
  const block = (path, indent, prefix, v) => {
    const end = /\n*$/.exec(v)[0].length;
    add(path, indent + prefix + (prefix ? " " : "") + (end === 0 ? "|-" : end === 1 ? "|" : "|+"));
    const rows = v.split("\n");
    if (end) rows.pop();
    for (const row of rows) add(path, row ? indent + "  " + row : "");
  };
  const list = (path, indent, all) => {
    const key = listKey(all);
    all.forEach((item, i) => {
      const at = itemPath(path, all, i, key), begin = lines.length;
      if (isMap(item) && Object.keys(item).length) map(at, indent + "  ", item);
      else if (Array.isArray(item) && item.length) list(at, indent + "  ", item);
      else if (isBlock(item)) block(at, indent + "  ", "", item);
      else add(at, indent + "  " + (isMap(item) ? "{}" : Array.isArray(item) ? "[]" : scalar(item)));
      lines[begin] = indent + "- " + lines[begin].slice(indent.length + 2);
    });
  };
  map("", "", object);
  return { text: lines.join("\n") + "\n", paths };
}

// owners returns, for paths of an object, the entries of its managedFields that own them:
// find(path) looks at the nearest field above that has some.
export function owners(object) {
  const all = new Map();
  const add = (entry, path, set, v) => {
    const names = Object.keys(set || {});
    if (!names.length) {
      if (path) all.has(path) ? all.get(path).push(entry) : all.set(path, [entry]);
      return;
    }
    for (const name of names) {
      const cut = name.indexOf(":"), kind = cut < 0 ? name : name.slice(0, cut), rest = name.slice(cut + 1);
      if (kind === "." && path) {
        all.has(path) ? all.get(path).push(entry) : all.set(path, [entry]);
      } else if (isMap(v) && kind === "f" && rest in v) add(entry, fieldPath(path, rest), set[name], v[rest]);
      else if (Array.isArray(v)) {
        v.forEach((item, i) => {
          if (isItem(kind, rest, item, i)) add(entry, itemPath(path, v, i), set[name], item);
        });
      }
    }
  };
  for (const entry of object.metadata?.managedFields || []) add(entry, "", entry.fieldsV1, object);
  return (path) => {
    while (path) {
      if (all.has(path)) return all.get(path);
      path = above(path);
    }
    return [];
  };
}

// above is the path of the field or list that a path is in.
export function above(path) {
  if (path.endsWith("]")) {
    const quoted = /\["(?:[^"\\]|\\.)*"\]$/.exec(path);
    return path.slice(0, quoted ? quoted.index : path.lastIndexOf("["));
  }
  return path.slice(0, Math.max(0, path.lastIndexOf(".")));
}

function isItem(kind, rest, item, i) {
  try {
    if (kind === "k") return isMap(item) && Object.entries(JSON.parse(rest)).every(([name, want]) => String(item[name]) === String(want));
    if (kind === "v") return JSON.stringify(item) === JSON.stringify(JSON.parse(rest));
    return kind === "i" && rest === String(i);
  } catch {
    return false;
  }
}

// Where a line of YAML belongs, by its indent. A line may be half written.
const linePattern = /^(\s*)((?:-\s+)*)(-$)?(?:("(?:[^"\\]|\\.)*"|'[^']*'|[^\s#"'{[|>&*!%@`-][^:#]*?|[^\s#"'{[|>&*!%@`:-])\s*:(?=\s|$)\s*(.*))?/;
export function lineParts(text) {
  const m = linePattern.exec(text);
  const dashes = [];
  let at = m[1].length;
  for (const d of m[2].match(/-\s+/g) || []) {
    dashes.push(at);
    at += d.length;
  }
  if (m[3]) {
    dashes.push(at);
    at += 2;
  }
  let key = m[4];
  if (key?.startsWith('"')) {
    try {
      key = JSON.parse(key);
    } catch {
      // It is not finished.
    }
  } else if (key?.startsWith("'")) key = key.slice(1, -1);
  return { blank: !text.trim() || /^\s*#/.test(text), indent: m[1].length, dashes, column: at, key, value: m[5] };
}

// pathAt returns the names above and at a line, with "[]" for an item of a list. lineAt(n)
// is the text of line n, from 1 on. column is where a key begins that is not yet there.
export function pathAt(lineAt, n, column) {
  const line = lineParts(lineAt(n));
  const path = [];
  if (column === undefined && line.key !== undefined) path.unshift(line.key);
  let at = column ?? line.column, inList = false;
  const enter = (dashes) => {
    for (let i = dashes.length - 1; i >= 0; i--) {
      if (dashes[i] >= at) continue;
      path.unshift("[]");
      at = dashes[i];
      inList = true;
    }
  };
  enter(line.dashes);
  for (let i = n - 1; i >= 1 && (at > 0 || inList) && n - i < 20000; i--) {
    const text = lineAt(i);
    if (/^---/.test(text)) break;
    const l = lineParts(text);
    if (l.blank) continue;
    if (inList) {
      if (l.indent < at || (l.indent === at && !l.dashes.length)) {
        if (l.key === undefined || l.column > at) {
          if (!l.dashes.length || l.column > at + 2) continue;
        }
        if (l.key === undefined) continue;
        path.unshift(l.key);
        inList = false;
        at = l.column;
        enter(l.dashes);
      }
    } else if (l.dashes.length && l.column === at) enter(l.dashes);
    else if (l.key !== undefined && l.column < at) {
      path.unshift(l.key);
      at = l.column;
      enter(l.dashes);
    }
  }
  return path;
}

// documents splits a text at its lines of "---", and finds in each what it is.
export function documents(text) {
  const out = [];
  for (const part of text.split(/^---.*$/m)) {
    if (!part.replace(/^\s*#.*$/gm, "").trim()) continue;
    let d;
    try {
      const o = JSON.parse(part);
      d = { apiVersion: o.apiVersion, kind: o.kind, namespace: o.metadata?.namespace, name: o.metadata?.name || o.metadata?.generateName };
    } catch {
      const unquote = (v) => v?.replace(/\s+#.*$/, "").trim().replace(/^(["'])(.*)\1$/, "$2");
      const top = (key) => unquote(new RegExp(`^${key}:[ \\t]*(.+)$`, "m").exec(part)?.[1]);
      const meta = /^metadata:[ \t]*(?:#.*)?\n((?:[ \t]+.*\n?|\s*\n)*)/m.exec(part)?.[1] || "";
      const indent = /^( +)\S/m.exec(meta)?.[1] || "  ";
      const inner = (key) => unquote(new RegExp(`^${indent}${key}:[ \\t]*(.+)$`, "m").exec(meta)?.[1]) ?? new RegExp(`^metadata:\\s*\\{.*\\b${key}:\\s*["']?([^,"'}]+)`, "m").exec(part)?.[1]?.trim();
      d = { apiVersion: top("apiVersion"), kind: top("kind"), namespace: inner("namespace"), name: inner("name") || inner("generateName") };
    }
    out.push({ ...d, text: part });
  }
  return out;
}
