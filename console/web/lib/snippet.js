// Texts to copy, and objects as YAML.
import { html, useState, useStyle } from "./ui.js";

// Characters that are not seen, or that change how others are seen.
const unseen = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const escaped = (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0");

// visible shows characters of a name that are not seen as escapes, so that no name looks
// like another one.
export const visible = (text) => String(text ?? "").replace(unseen, escaped);

// Snippet is a text with a button that copies it.
export function Snippet({ label, text }) {
  useStyle("lib/snippet.css");
  const [said, setSaid] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch {
      setSaid("Select and copy it: the browser does not let this page");
    }
    setTimeout(() => setSaid(""), 3000);
  };
  return html`<figure class="snippet" aria-label=${label}>
    <figcaption><span>${label}</span><span role="status" class="quiet">${said}</span><button onClick=${copy} aria-label=${"Copy: " + label}>Copy</button></figcaption>
    <pre tabindex="0">${text}</pre>
  </figure>`;
}

// A string that YAML reads as this very string without quotes.
const plain = /^[A-Za-z_/][A-Za-z0-9_./-]*(?:[:@][A-Za-z0-9_./-]+)*$/;
const words = /^(?:true|false|null|yes|no|on|off|y|n)$/i;

// scalar is a value in YAML. JSON's strings are YAML's strings in double quotes; what could
// change how a text looks is escaped.
function scalar(value) {
  if (typeof value !== "string") return JSON.stringify(value) ?? "null";
  if (plain.test(value) && !words.test(value)) return value;
  return visible(JSON.stringify(value));
}

const isEmpty = (value) => value === null || typeof value !== "object" || (Array.isArray(value) ? value.length === 0 : Object.keys(value).length === 0);

function lines(value, indent) {
  const pad = "  ".repeat(indent);
  if (Array.isArray(value)) {
    return value.map((item) => (isEmpty(item) ? `${pad}- ${scalar(item)}` : `${pad}- ${lines(item, indent + 1).trimStart()}`)).join("\n");
  }
  return Object.entries(value)
    .filter(([, v]) => v !== undefined)
    .map(([key, v]) => {
      if (isEmpty(v)) return `${pad}${scalar(key)}: ${scalar(v)}`;
      return `${pad}${scalar(key)}:\n${lines(v, Array.isArray(v) ? indent : indent + 1)}`;
    })
    .join("\n");
}

// toYAML writes objects as YAML documents.
export const toYAML = (...objects) => objects.map((o) => (isEmpty(o) ? scalar(o) : lines(o, 0)) + "\n").join("---\n");

// shellQuote makes one word of a POSIX shell of a text. Characters that a terminal might
// take for commands, or that would not be seen, are written as escapes of $'…'.
export function shellQuote(text) {
  if (/^[A-Za-z0-9_@%+=:,./-]+$/.test(text)) return text;
  if (text.replace(/\n/g, "").search(unseen) < 0) return "'" + text.replaceAll("'", `'\\''`) + "'";
  let out = "";
  for (const c of text) {
    const code = c.codePointAt(0);
    // As numbers, since a shell without $'…' would see the end of the word in \'.
    if (c === "'") out += "\\047";
    else if (c === "\\") out += "\\134";
    else if (c === "\n") out += "\\n";
    else if (c.search(unseen) === 0) {
      // The bytes, since \u is not in every shell.
      out += [...new TextEncoder().encode(String.fromCodePoint(code))].map((b) => "\\" + b.toString(8).padStart(3, "0")).join("");
    } else out += c;
  }
  return "$'" + out + "'";
}
