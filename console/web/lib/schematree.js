// Schemas as trees: the fields of a kind with their types, descriptions and rules.
import { html, useState, useStyle, escapeDirections } from "./ui.js";
import { visible } from "./snippet.js";

// typeOf is the type of a schema in a few words.
export function typeOf(s) {
  if (!s || typeof s !== "object") return "any";
  if (s["x-kubernetes-int-or-string"]) return "int or string";
  if (s.type === "array") return "[]" + typeOf(s.items);
  if (s.type === "object" && s.additionalProperties && typeof s.additionalProperties === "object") return "map of " + typeOf(s.additionalProperties);
  if (!s.type) return s.properties ? "object" : "any";
  return s.type + (s.format ? ` (${s.format})` : "");
}

const simple = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"];

// rulesOf lists what a schema demands of a value.
function rulesOf(s) {
  const rules = simple.filter((name) => s[name] !== undefined).map((name) => `${name}: ${s[name]}`);
  if (s.enum) rules.push("one of " + s.enum.map((v) => JSON.stringify(v)).join(", "));
  if (s.default !== undefined) rules.push("default " + JSON.stringify(s.default));
  if (s.nullable) rules.push("may be null");
  if (s["x-kubernetes-preserve-unknown-fields"]) rules.push("keeps unknown fields");
  if (s["x-kubernetes-embedded-resource"]) rules.push("a whole object");
  if (s["x-kubernetes-list-type"]) rules.push("list type " + s["x-kubernetes-list-type"] + (s["x-kubernetes-list-map-keys"] ? " by " + s["x-kubernetes-list-map-keys"].join(", ") : ""));
  if (s["x-kubernetes-map-type"]) rules.push("map type " + s["x-kubernetes-map-type"]);
  for (const [word, name] of [["all of", "allOf"], ["any of", "anyOf"], ["one of", "oneOf"]]) if (s[name]) rules.push(`${word} ${s[name].length} schemas`);
  if (s.not) rules.push("not another schema");
  return rules;
}

// inner is the schema whose fields a reader wants to see: that of the items of a list or of
// the values of a map.
function inner(s) {
  let at = s;
  for (let i = 0; i < 10 && at; i++) {
    if (at.properties) return at;
    at = at.items || (typeof at.additionalProperties === "object" ? at.additionalProperties : undefined);
  }
  return undefined;
}

// Schema shows the fields of a schema; those of a field when it is opened.
export function Schema({ name, schema, required, open = false }) {
  useStyle("lib/schematree.css");
  const [shown, setShown] = useState(open);
  const s = schema || {};
  const fields = inner(s);
  const rules = rulesOf(s);
  const checks = s["x-kubernetes-validations"] || [];
  const has = fields || rules.length || checks.length || s.description;
  const line = html`<code><bdi>${visible(name)}</bdi></code> <span class="type">${typeOf(s)}</span>${required && html` <span class="warn">required</span>`}`;
  if (!has) return html`<div class="field leaf">${line}</div>`;
  return html`<details class="field" open=${shown} onToggle=${(e) => e.target === e.currentTarget && setShown(e.currentTarget.open)}>
    <summary>${line}</summary>
    ${shown &&
    html`<div class="inside">
      ${s.description && html`<p><bdi>${escapeDirections(s.description)}</bdi></p>`}
      ${rules.length > 0 && html`<ul class="rules">${rules.map((r) => html`<li><bdi>${visible(r)}</bdi></li>`)}</ul>`}
      ${checks.map((c, i) => html`<p key=${i} class="check"><code><bdi>${escapeDirections(c.rule)}</bdi></code>${c.message && html` <span class="quiet"><bdi>${escapeDirections(c.message)}</bdi></span>`}</p>`)}
      ${fields && Object.keys(fields.properties).map((field) => html`<${Schema} key=${field} name=${field} schema=${fields.properties[field]} required=${(fields.required || []).includes(field)} />`)}
    </div>`}
  </details>`;
}
