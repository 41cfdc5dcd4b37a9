// The frame of the page: login, navigation, the palette, and the view that the address names.
import { html, render, useState, useEffect, useRef, currentRoute, navigate, Link, Failure, Loading, usePoll, useResources, isAway, toast } from "./lib/ui.js";
import { logIn, logOut, consoleInfo, features, request, resources, listLink, objectLink, table, pathOf } from "./lib/api.js";

// The views. The first part of an address names one; its module is loaded when it is needed,
// and its default export gets {route, info, features}.
const views = [
  { name: "Now", first: "", key: "1", load: () => import("./views/now.js") },
  { name: "Objects", first: "objects", key: "2", load: () => import("./views/objects.js") },
  { name: "Access", first: "access", key: "3", load: () => import("./views/access.js") },
  { name: "APIs", first: "apis", key: "4", load: () => import("./views/apis.js") },
  { name: "Explorer", first: "explorer", key: "5", load: () => import("./views/explorer.js") },
  { name: "Time", first: "time", key: "6", load: () => import("./views/time.js"), kelson: true },
  { name: "Object", first: "object", hidden: true, load: () => import("./views/object.js") },
];

const viewOf = (route) => views.find((v) => v.first === (route.parts[0] || ""));

function useRoute() {
  const [route, setRoute] = useState(currentRoute());
  useEffect(() => {
    const changed = () => setRoute(currentRoute());
    window.addEventListener("popstate", changed);
    window.addEventListener("kelson-route", changed);
    return () => {
      window.removeEventListener("popstate", changed);
      window.removeEventListener("kelson-route", changed);
    };
  }, []);
  return route;
}

// View loads the module of a view and shows it.
function View({ route, info, features }) {
  const view = viewOf(route);
  const [loaded, setLoaded] = useState({});
  useEffect(() => {
    let gone = false;
    document.title = (view ? view.name + " · " : "") + "Kelson console";
    if (view) {
      view.load().then(
        (module) => gone || setLoaded({ view, Component: module.default }),
        (error) => gone || setLoaded({ view, error }),
      );
    }
    return () => (gone = true);
  }, [view]);
  if (!view) return html`<${Failure} error=${{ code: 404, message: "The console has no page " + route.path + "." }} />`;
  if (loaded.view !== view) return html`<${Loading} />`;
  if (loaded.error) return html`<${Failure} error=${loaded.error} />`;
  return html`<${loaded.Component} route=${route} info=${info} features=${features} />`;
}

// Palette goes to a view, a kind, a namespace or an object: "deploy default/web" asks the
// server for names as they are typed.
function Palette({ close }) {
  const [text, setText] = useState("");
  const kinds = useResources((r) => r.preferred && r.verbs.includes("list"));
  const [found, setFound] = useState([]);
  const [chosen, setChosen] = useState(0);
  const dialog = useRef();
  const input = useRef();
  useEffect(() => {
    dialog.current.showModal();
    input.current.focus();
  }, []);
  const [word, rest] = text.trim().toLowerCase().split(/\s+(.*)/);
  const named = (r) => [r.resource, r.singular, r.kind.toLowerCase(), ...r.shortNames, r.resource + "." + r.group];
  const kind = rest !== undefined && kinds.find((r) => named(r).includes(word));
  useEffect(() => {
    setFound([]);
    if (!kind) return;
    let gone = false;
    const [namespace, name] = rest.includes("/") ? rest.split("/", 2) : ["", rest];
    const timer = setTimeout(() => {
      table(pathOf(kind, namespace), { limit: 500 }).then(
        (t) => gone || setFound((t.rows || []).map((row) => row.object.metadata).filter((m) => m.name.includes(name)).slice(0, 20)),
        () => {},
      );
    }, 120);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [kind, rest]);
  const entries = kind
    ? [
        { label: `All ${kind.resource}`, to: listLink(kind) },
        ...found.map((m) => ({ label: (m.namespace ? m.namespace + "/" : "") + m.name, note: kind.kind, to: objectLink(kind, m.namespace, m.name) })),
      ]
    : [
        ...views.filter((v) => !v.hidden).map((v) => ({ label: v.name, note: "view", to: "/" + v.first })),
        ...kinds.map((r) => ({ label: r.resource, note: r.group || "core", also: named(r), to: listLink(r) })),
      ]
        .filter((e) => !word || [e.label.toLowerCase(), ...(e.also || [])].some((n) => n.includes(word)))
        .sort((a, b) => Number(!(a.also || []).includes(word)) - Number(!(b.also || []).includes(word)))
        .slice(0, 30);
  const go = (entry) => {
    if (!entry) return;
    close();
    navigate(entry.to);
  };
  const keys = (e) => {
    if (e.key === "ArrowDown" || e.key === "ArrowUp") {
      e.preventDefault();
      setChosen((n) => (entries.length ? (n + (e.key === "ArrowDown" ? 1 : entries.length - 1)) % entries.length : 0));
    } else if (e.key === "Enter") {
      e.preventDefault();
      go(entries[chosen]);
    }
  };
  return html`<dialog class="palette" ref=${dialog} aria-label="Go to" onCancel=${(e) => (e.preventDefault(), close())}>
    <input
      ref=${input}
      role="combobox"
      aria-expanded="true"
      aria-controls="palette-entries"
      aria-activedescendant=${entries.length ? "palette-" + chosen : undefined}
      placeholder="A view, a kind, or a kind and a name: deploy default/web"
      value=${text}
      onInput=${(e) => (setText(e.target.value), setChosen(0))}
      onKeyDown=${keys}
    />
    <ul id="palette-entries" role="listbox" aria-label="Places">
      ${entries.map(
        (e, i) => html`<li id=${"palette-" + i} key=${e.to} role="option" aria-selected=${i === chosen} onClick=${() => go(e)}>
          <bdi>${e.label}</bdi> <small>${e.note}</small>
        </li>`,
      )}
    </ul>
  </dialog>`;
}

function LogIn({ error, done }) {
  const [problem, setProblem] = useState();
  const submit = async (e) => {
    e.preventDefault();
    try {
      await logIn(new FormData(e.target).get("password"));
      done();
    } catch (err) {
      setProblem(err);
    }
  };
  return html`<main class="login">
    <h1>Kelson console</h1>
    <p>Open the link that <code>kelson console</code> has printed. It is good for one login; run the command again for another.</p>
    <form onSubmit=${submit}>
      <label>Password, if the console has one <input name="password" type="password" autocomplete="current-password" /></label>
      <button>Log in</button>
    </form>
    <${Failure} error=${problem || error} />
  </main>`;
}

// Away says so while the API server does not answer. Views that ask nothing by themselves
// would not notice, and useResources tells no errors.
function Away() {
  const { error } = usePoll((signal) => Promise.all([request("/version", { signal }), resources()]), 5000);
  if (!error || !isAway(error)) return null;
  return html`<div class="failure" role="alert"><strong>The server is away</strong><span>${error instanceof TypeError ? "The console does not answer. If it has ended, run kelson console again." : error.message}</span></div>`;
}

// theme is "light", "dark" or "" for what the system has.
function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  localStorage.setItem("kelson-theme", theme);
}

function Toasts() {
  const [all, setAll] = useState([]);
  useEffect(() => {
    const add = ({ detail }) => {
      const entry = { ...detail, id: Math.random() };
      setAll((old) => [...old.slice(-4), entry]);
      setTimeout(() => setAll((old) => old.filter((t) => t !== entry)), 8000);
    };
    window.addEventListener("kelson-toast", add);
    return () => window.removeEventListener("kelson-toast", add);
  }, []);
  return html`<div class="toasts" role="status" aria-live="polite">${all.map((t) => html`<p key=${t.id} class=${t.kind}>${t.text}</p>`)}</div>`;
}

function App() {
  const route = useRoute();
  const [state, setState] = useState("starting"); // starting, out, in
  const [error, setError] = useState();
  const [info, setInfo] = useState();
  const [can, setCan] = useState();
  const [palette, setPalette] = useState(false);
  const begin = async () => {
    try {
      if (!(await logIn())) return setState("out");
      setInfo(await consoleInfo());
      setState("in");
      resources().catch(() => {}); // most views need it
      setCan(await features());
    } catch (err) {
      setError(err);
      setState((s) => (s === "in" && err.code !== 401 ? s : "out"));
    }
  };
  useEffect(() => {
    begin();
    const out = () => setState("out");
    window.addEventListener("kelson-logged-out", out);
    return () => window.removeEventListener("kelson-logged-out", out);
  }, []);
  // A server that is away at first is asked again what it can tell.
  useEffect(() => {
    if (state !== "in" || can || !error) return;
    const timer = setInterval(() => features().then((f) => (setCan(f), setError()), setError), 2000);
    return () => clearInterval(timer);
  }, [state, can, error]);
  useEffect(() => {
    const keys = (e) => {
      const typing = e.target.closest?.("input, textarea, select, [contenteditable], dialog") || e.composedPath().some((n) => n.classList?.contains("cm-editor"));
      if ((e.ctrlKey || e.metaKey) && e.key === "k") {
        e.preventDefault();
        setPalette(true);
      } else if (!typing && !e.ctrlKey && !e.metaKey && !e.altKey) {
        const view = views.find((v) => v.key === e.key);
        if (view) navigate("/" + view.first);
        else if (e.key === "g") {
          e.preventDefault();
          setPalette(true);
        }
      }
    };
    window.addEventListener("keydown", keys);
    return () => window.removeEventListener("keydown", keys);
  }, []);
  if (state === "starting") return html`<${Loading} />`;
  if (state === "out") return html`<${LogIn} error=${error} done=${() => (setError(), begin())} />`;
  const shown = viewOf(route);
  return html`
    <a class="skip" href="#main">Skip to the content</a>
    <header class="bar">
      <${Link} to="/" class="brand">Kelson<//>
      <nav aria-label="Views">
        ${views
          .filter((v) => !v.hidden && (!v.kelson || !can || can.kelson))
          .map((v) => html`<${Link} key=${v.first} to=${"/" + v.first} aria-current=${v === shown || (v.first === "objects" && shown?.first === "object") ? "page" : undefined}>${v.name}<//>`)}
      </nav>
      <span class="where" title=${info.server}><bdi>${info.context || info.server}</bdi></span>
      <button onClick=${() => setPalette(true)} aria-keyshortcuts="Control+K" title="Go to a kind, a namespace, an object (Ctrl-K)">Go to</button>
      <button onClick=${() => setTheme({ light: "dark", dark: "" }[document.documentElement.dataset.theme || ""] ?? "light")} aria-label="Change between light, dark and the system's colours">◐</button>
      <button onClick=${() => logOut().catch((e) => toast(e.message, "error"))}>Log out</button>
    </header>
    ${error && html`<${Failure} error=${error} again=${begin} />`}
    ${can && html`<${Away} />`}
    <main id="main" tabindex="-1">${can && html`<${View} route=${route} info=${info} features=${can} />`}</main>
    ${palette && html`<${Palette} close=${() => setPalette(false)} />`}
    <${Toasts} />
  `;
}

setTheme(localStorage.getItem("kelson-theme") || "");
viewOf(currentRoute())?.load().catch(() => {}); // while the server is asked
render(html`<${App} />`, document.getElementById("app"));
