// What of an object is shown, and how two versions of it are compared before a write.
import { html, Failure, Dialog } from "./ui.js";
import { dump } from "./yaml.js";
import { DiffView } from "./diff.js";

// isSecret says whether the values of an object are hidden until they are asked for.
export const isSecret = (r) => r.group === "" && r.resource === "secrets";
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration";

// shownObject is what of an object is shown: without managedFields, and the values of
// secrets only if they are wanted.
export function shownObject(r, object, { values, managed }) {
  if (!object) return object;
  const o = { ...object, metadata: { ...object.metadata } };
  if (!managed) delete o.metadata.managedFields;
  if (isSecret(r) && !values) {
    if (o.data) o.data = Object.fromEntries(Object.entries(o.data).map(([k, v]) => [k, hidden(v)]));
    if (o.metadata.annotations?.[lastApplied]) o.metadata.annotations = { ...o.metadata.annotations, [lastApplied]: "••••••" };
  }
  return o;
}
export const hidden = (v) => `•••••• ${Math.floor((String(v).length * 3) / 4) - (/=*$/.exec(String(v))[0].length)} bytes`;

// maskedPair is a pair of objects for a diff: values of a secret are hidden, and those that
// differ say so.
function maskedPair(r, a, b) {
  const x = shownObject(r, a, {}), y = shownObject(r, b, {});
  if (isSecret(r)) {
    for (const key of Object.keys(y?.data || {})) {
      if (a?.data?.[key] !== undefined && a.data[key] !== b.data[key]) {
        x.data[key] += " (before)";
        y.data[key] += " (after)";
      }
    }
  }
  return [x ? dump(x).text : "", y ? dump(y).text : ""];
}

// forDiff removes from an object what every write changes, for a diff that shows the rest.
export function forDiff(object) {
  if (!object) return undefined;
  const m = { ...object.metadata };
  for (const f of ["managedFields", "resourceVersion", "generation"]) delete m[f];
  return { ...object, metadata: m };
}

// isNewer compares versions of an object; they are numbers as far as anybody knows.
export function isNewer(a, b) {
  const x = a.metadata.resourceVersion, y = b.metadata.resourceVersion;
  return x !== y && !(Number(x) < Number(y));
}

export const lastManager = (object) => (object?.metadata?.managedFields || []).reduce((last, e) => (!last || (e.time || "") >= (last.time || "") ? e : last), undefined);

// historyQuery names an object for the pages of history.
export const historyQuery = (r, namespace, name) => ({ group: r.group, version: r.version, resource: r.resource, namespace, name });

// Review is the dialog before a write: the dry run's result as a diff.
export function Review({ title, resource, before, after, warning, busy, error, confirm, close, button = "Save", danger, note }) {
  const [a, b] = maskedPair(resource, forDiff(before), forDiff(after));
  return html`<${Dialog}
    title=${title}
    close=${close}
    actions=${html`<button onClick=${close}>Cancel</button><button class=${danger ? "danger" : "primary"} autofocus disabled=${busy || a === b} onClick=${confirm}>${button}</button>`}
  >
    <p class="quiet">${note || "The server has tried it without saving. This is what would change."}</p>
    ${warning && html`<p class="warn" role="note">${warning.replace(/\b299 \S+ /g, "")}</p>`}
    <${DiffView} before=${a} after=${b} />
    <${Failure} error=${error} />
  <//>`;
}

// Diffed shows what differs between two objects.
export const Diffed = ({ resource, before, after }) => {
  const [a, b] = maskedPair(resource, forDiff(before), forDiff(after));
  return html`<${DiffView} before=${a} after=${b} />`;
};
