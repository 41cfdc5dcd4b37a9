// What the views are built from.
import { html, useState, useEffect, useLayoutEffect, useRef, useMemo } from "../vendor/preact.js";
import { resources } from "./api.js";
export { html, render, Fragment, createContext, useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useContext, useReducer } from "../vendor/preact.js";

// Addresses. A view gets its route: {parts: ["objects", "core", …], query: URLSearchParams}.
export function currentRoute() {
  const plain = (part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part; // which no view has
    }
  };
  return { path: location.pathname, parts: location.pathname.split("/").filter(Boolean).map(plain), query: new URLSearchParams(location.search) };
}

// navigate goes to an address of the console; replace keeps no step in the browser's history.
export function navigate(address, replace) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  window.dispatchEvent(new Event("kelson-route"));
}

// setQuery changes parameters of the address; an empty value removes one.
export function setQuery(changes, replace = true) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  navigate(location.pathname + (text ? "?" + text : ""), replace);
}

// Link is a link within the console.
export function Link({ to, children, ...rest }) {
  const click = (e) => {
    if (e.defaultPrevented || e.button || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey) return;
    e.preventDefault();
    navigate(to);
  };
  return html`<a href=${to} onClick=${click} ...${rest}>${children}</a>`;
}

// isAway says of an error that nobody has answered, so that asking again may help.
export const isAway = (error) => error.code === 502 || error.code === 503 || error.code === 504 || error instanceof TypeError;

// useAsync runs load(signal) when one of the inputs changes: {value, error, loading, again()}.
// The value before stays until the next one comes. A server that is away is asked again.
export function useAsync(load, inputs) {
  const [state, setState] = useState({ loading: true });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    let timer;
    setState((s) => ({ ...s, loading: true }));
    load(abort.signal).then(
      (value) => abort.signal.aborted || setState({ value, loading: false }),
      (error) => {
        if (abort.signal.aborted) return;
        setState((s) => ({ value: s.value, error, loading: false }));
        if (isAway(error)) timer = setTimeout(() => setRound((n) => n + 1), retryAfter);
      },
    );
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [...inputs, round]);
  return { ...state, again: () => setRound((n) => n + 1) };
}

// retryAfter is after how many milliseconds a server that is away is asked again.
const retryAfter = 3000;

// useResources is what discovery says, or what keep(resource) keeps of it; nothing until the
// server has told it.
export function useResources(keep) {
  const { value } = useAsync(() => resources(), []);
  return useMemo(() => (keep && value ? value.filter(keep) : value || []), [value]);
}

// usePoll calls load(signal) every so many milliseconds while the page is visible. After an
// error it goes on, and tells it beside the last value.
export function usePoll(load, milliseconds, inputs = []) {
  const [state, setState] = useState({ loading: true });
  useEffect(() => {
    const abort = new AbortController();
    let timer;
    const turn = async () => {
      let wait = milliseconds;
      if (!document.hidden) {
        try {
          const value = await load(abort.signal);
          if (!abort.signal.aborted) setState({ value, loading: false });
        } catch (error) {
          if (isAway(error)) wait = Math.min(wait, retryAfter);
          if (!abort.signal.aborted) setState((s) => ({ value: s.value, error, loading: false }));
        }
      }
      if (!abort.signal.aborted) timer = setTimeout(turn, wait);
    };
    turn();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, inputs);
  return state;
}

// escapeDirections shows marks of direction as escapes, since they make text look like
// another. Lines stay lines; for names there is visible of snippet.js.
export const escapeDirections = (text) => String(text ?? "").replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));

// Failure shows an error: what happened, in the server's words, and a button to try again.
export function Failure({ error, again }) {
  if (!error) return null;
  return html`<div class="failure" role="alert">
    <strong>${error.code === 403 ? "Not allowed" : error.code === 404 ? "Not found" : "It did not work"}</strong>
    <span><bdi>${escapeDirections(error.message)}</bdi></span>
    ${again && html`<button onClick=${again}>Try again</button>`}
  </div>`;
}

export const Loading = ({ what = "Loading" }) => html`<p class="loading" role="status">${what}…</p>`;

// ago is the time since a moment, as kubectl prints ages.
export function ago(moment, now = Date.now()) {
  const s = Math.max(0, Math.floor((now - new Date(moment).getTime()) / 1000));
  if (s < 120) return s + "s";
  if (s < 600) return Math.floor(s / 60) + "m" + (s % 60 ? (s % 60) + "s" : "");
  if (s < 3 * 3600) return Math.floor(s / 60) + "m";
  if (s < 8 * 3600) return Math.floor(s / 3600) + "h" + (Math.floor(s / 60) % 60 ? (Math.floor(s / 60) % 60) + "m" : "");
  if (s < 48 * 3600) return Math.floor(s / 3600) + "h";
  if (s < 8 * 86400) return Math.floor(s / 86400) + "d" + (Math.floor(s / 3600) % 24 ? (Math.floor(s / 3600) % 24) + "h" : "");
  if (s < 2 * 365 * 86400) return Math.floor(s / 86400) + "d";
  return Math.floor(s / (365 * 86400)) + "y" + (Math.floor(s / 86400) % 365 ? (Math.floor(s / 86400) % 365) + "d" : "");
}

// Age is an age with the moment as a title.
export const Age = ({ of }) => (of ? html`<time dateTime=${of} title=${new Date(of).toLocaleString()}>${ago(of)}</time>` : html`<span>–</span>`);

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (Math.abs(n) >= 1024 && i < units.length - 1) (n /= 1024), i++;
  return (i === 0 ? n : n.toFixed(n < 10 ? 1 : 0)) + " " + units[i];
}

// Dialog is modal: it keeps the focus, and Escape closes it.
export function Dialog({ title, close, children, actions }) {
  const ref = useRef();
  useEffect(() => {
    const dialog = ref.current;
    const before = document.activeElement;
    dialog.showModal();
    return () => {
      dialog.close();
      before?.focus();
    };
  }, []);
  return html`<dialog ref=${ref} aria-label=${title} onCancel=${(e) => (e.preventDefault(), close())}>
    <header><h2><bdi>${escapeDirections(title)}</bdi></h2><button class="plain" aria-label="Close" onClick=${close}>✕</button></header>
    <div class="body">${children}</div>
    ${actions && html`<footer>${actions}</footer>`}
  </dialog>`;
}

const show = (value) => (value === undefined ? "" : escapeDirections(typeof value === "string" ? value : JSON.stringify(value)));

// FieldChanges shows changes of fields: [{path, old, new}], as the pages of history give them.
export const FieldChanges = ({ fields }) => html`<table class="changes">
  <tbody>
    ${(fields || []).map(
      (f) => html`<tr key=${f.path}>
        <th scope="row"><bdi>${escapeDirections(f.path)}</bdi></th>
        <td>
          ${f.old !== undefined && html`<del aria-label="before">${show(f.old)}</del>`}
          ${f.new !== undefined && html`<ins aria-label="after">${show(f.new)}</ins>`}
        </td>
      </tr>`,
    )}
  </tbody>
</table>`;

// toast says something for some seconds, and to screen readers.
export function toast(text, kind = "info") {
  window.dispatchEvent(new CustomEvent("kelson-toast", { detail: { text, kind } }));
}

// useStyle loads a style sheet of a view, such as "views/now.css", once.
export function useStyle(name) {
  useLayoutEffect(() => {
    const href = "/assets/" + name;
    if (document.head.querySelector(`link[href="${href}"]`)) return;
    const link = document.createElement("link");
    link.rel = "stylesheet";
    link.href = href;
    document.head.append(link);
  }, []);
}
