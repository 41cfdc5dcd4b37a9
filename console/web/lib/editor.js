// An editor of YAML with folding, what the schema says about fields, and who has set each
// line. CodeMirror is loaded with the first one. It is in a shadow root, where its styles
// are constructed sheets, which the policy of the page allows.
import { html, useEffect, useRef, ago } from "./ui.js";
import { pathAt, lineParts, scalar } from "./yaml.js";
import { diff } from "./diff.js";
import { typeOf } from "./schema.js";

const element = (tag, className, text) => {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
};

// hueOf gives a name a colour.
export function hueOf(name) {
  let h = 7;
  for (const c of name) h = (h * 31 + c.codePointAt(0)) % 3600;
  return h / 10;
}

function build(cm) {
  const { EditorView, HighlightStyle, tags, GutterMarker, StateEffect, StateField, RangeSetBuilder, gutter } = cm;
  const theme = EditorView.theme({
    "&": { height: "100%", backgroundColor: "var(--back)", color: "var(--text)", fontSize: "13px" },
    "&.cm-focused": { outline: "none" },
    ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.5" },
    ".cm-content": { caretColor: "var(--text)" },
    ".cm-cursor": { borderLeftColor: "var(--text)" },
    ".cm-gutters": { backgroundColor: "var(--panel)", color: "var(--quiet)", borderRight: "1px solid var(--line)" },
    ".cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--accent) 6%, transparent)" },
    ".cm-activeLineGutter": { backgroundColor: "transparent" },
    "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { background: "color-mix(in srgb, var(--accent) 25%, transparent) !important" },
    ".cm-foldPlaceholder": { background: "var(--panel)", border: "1px solid var(--line)", color: "var(--quiet)", padding: "0 .4em" },
    ".cm-specialChar": { color: "var(--bad)" },
    ".cm-tooltip": { background: "var(--back)", color: "var(--text)", border: "1px solid var(--line)", borderRadius: "6px", boxShadow: "0 6px 24px rgb(0 0 0 / .18)" },
    ".cm-tooltip-autocomplete > ul > li": { padding: "2px 8px" },
    ".cm-tooltip-autocomplete > ul > li[aria-selected]": { background: "var(--accent)", color: "var(--on-accent)" },
    ".cm-completionDetail": { fontStyle: "normal", opacity: ".7", marginLeft: "1em" },
    ".cm-completionInfo": { maxWidth: "24rem", whiteSpace: "pre-wrap", padding: ".5rem .7rem", font: "13px/1.4 system-ui, sans-serif" },
    ".cm-doc": { maxWidth: "32rem", padding: ".5rem .7rem", font: "13px/1.45 system-ui, sans-serif", maxHeight: "16rem", overflow: "auto", whiteSpace: "pre-wrap" },
    ".cm-doc b": { fontFamily: "var(--mono)" },
    ".cm-doc .type": { color: "var(--quiet)", marginLeft: ".6em" },
    ".cm-blame": { minWidth: "13em", maxWidth: "17em" },
    ".cm-blame .cm-gutterElement": { display: "flex", overflow: "hidden", padding: "0 .5em 0 0" },
    ".cm-who": { borderLeft: "3px solid", padding: "0 .5em", flex: "1", display: "flex", justifyContent: "space-between", gap: ".8em", whiteSpace: "nowrap", overflow: "hidden", fontSize: "11.5px", lineHeight: "inherit" },
    ".cm-who span:first-child": { overflow: "hidden", textOverflow: "ellipsis", color: "var(--text)", unicodeBidi: "isolate" },
    ".cm-panels": { background: "var(--panel)", color: "var(--text)", borderColor: "var(--line)" },
    ".cm-panel input, .cm-panel button": { background: "var(--back)", color: "var(--text)", border: "1px solid var(--line)", backgroundImage: "none", borderRadius: "4px" },
    ".cm-searchMatch": { background: "color-mix(in srgb, var(--warn) 35%, transparent)" },
  });
  const colours = HighlightStyle.define([
    { tag: [tags.definition(tags.propertyName), tags.propertyName], color: "var(--accent)" },
    { tag: [tags.string, tags.special(tags.string)], color: "var(--good)" },
    { tag: [tags.number, tags.bool, tags.null, tags.keyword, tags.typeName, tags.labelName], color: "var(--warn)" },
    { tag: tags.comment, color: "var(--quiet)", fontStyle: "italic" },
    { tag: [tags.punctuation, tags.separator, tags.meta], color: "var(--quiet)" },
  ]);

  class Who extends GutterMarker {
    constructor(line) {
      super();
      this.line = line;
    }
    eq(other) {
      return JSON.stringify(other.line) === JSON.stringify(this.line);
    }
    toDOM() {
      const { owners, when, first, title } = this.line, e = element("div", "cm-who");
      e.style.borderLeftColor = owners.length ? `oklch(0.65 0.12 ${hueOf(owners[0])})` : "transparent";
      if (first) {
        e.append(element("span", "", owners.join(", ") || "–"), element("span", "", when));
        e.title = title;
      }
      return e;
    }
  }
  const setBlame = StateEffect.define();
  const blameField = StateField.define({
    create: () => undefined,
    update: (set, tr) => {
      for (const e of tr.effects) if (e.is(setBlame)) return e.value;
      return set && tr.docChanged ? set.map(tr.changes) : set;
    },
  });
  const blameGutter = [blameField, gutter({ class: "cm-blame", markers: (view) => view.state.field(blameField) || [] })];
  const blameSet = (state, lines) => {
    const b = new RangeSetBuilder();
    lines.forEach((line, i) => i < state.doc.lines && b.add(state.doc.line(i + 1).from, state.doc.line(i + 1).from, new Who(line)));
    return b.finish();
  };
  return { theme, colours, setBlame, blameGutter, blameSet };
}

let loaded;
const load = () => (loaded ||= import("../vendor/editor.js").then((cm) => ({ cm, own: build(cm) })));

// describe shows what a schema says of a field.
function describe(name, s, required) {
  const e = element("div", "cm-doc"), head = element("div");
  head.append(element("b", "", name), element("span", "type", typeOf(s) + (required ? ", required" : "")));
  e.append(head);
  if (s.enum) e.append(element("div", "", "One of " + s.enum.map(scalar).join(", ")));
  if (s.default !== undefined && JSON.stringify(s.default) !== "{}") e.append(element("div", "", "Default: " + JSON.stringify(s.default)));
  if (s.description) e.append(element("div", "", s.description));
  return e;
}

// Editor shows text. handle.current gets {text(), set(text), focus()}. schemaAt(line texts)
// resolves to the schema of the document, blame is [{owners, when, first, title}] by lines.
export function Editor({ text, label, cursor, autofocus, readOnly = false, changed, schemaOf, blame, handle, save }) {
  const host = useRef();
  const now = useRef({});
  Object.assign(now.current, { changed, schemaOf, save });
  useEffect(() => {
    let view, gone = false;
    const root = host.current.shadowRoot || host.current.attachShadow({ mode: "open" });
    const state = { text, blame, readOnly };
    now.current.pending = state;
    load().then(({ cm, own }) => {
      if (gone) return;
      const lock = new cm.Compartment();
      now.current.lock = lock;
      now.current.cm = cm;
      now.current.own = own;
      const lockOf = (on) => [cm.EditorState.readOnly.of(on), cm.EditorView.contentAttributes.of({ "aria-readonly": String(on) })];
      now.current.lockOf = lockOf;
      const lineAt = (doc) => (n) => doc.line(n).text;
      const gutterOn = new cm.Compartment();
      now.current.gutterOn = gutterOn;
      const hover = cm.hoverTooltip(async (view, pos) => {
        const line = view.state.doc.lineAt(pos), parts = lineParts(line.text);
        if (parts.key === undefined || pos < line.from + parts.column || pos > line.from + parts.column + parts.key.length + 1) return null;
        const schema = await now.current.schemaOf?.(view.state.doc.toString(), pos).catch(() => {});
        const path = pathAt(lineAt(view.state.doc), line.number), s = schema?.at(path);
        if (!s) return null;
        return { pos: line.from + parts.column, end: line.to, above: true, create: () => ({ dom: describe(path.join("."), s, schema.at(path.slice(0, -1))?.required?.includes(parts.key)) }) };
      }, { hoverTime: 350 });
      const complete = async (context) => {
        const { doc } = context.state, line = doc.lineAt(context.pos), before = line.text.slice(0, context.pos - line.from);
        const schema = await now.current.schemaOf?.(doc.toString(), context.pos).catch(() => {});
        if (!schema || context.aborted) return null;
        const value = /^(\s*(?:- )*)([\w$./-]+):\s+(\S*)$/.exec(before);
        if (value) {
          const s = schema.at(pathAt(lineAt(doc), line.number));
          const options = s?.enum?.map(scalar) || (s?.type === "boolean" ? ["true", "false"] : []);
          return options.length ? { from: context.pos - value[3].length, options: options.map((label) => ({ label, type: "enum" })) } : null;
        }
        const key = /^(\s*(?:- )*)([\w$-]*)$/.exec(before);
        if (!key || (!context.explicit && !key[2])) return null;
        const above = pathAt(lineAt(doc), line.number, key[1].length), s = schema.at(above);
        if (!s?.properties) return null;
        return {
          from: context.pos - key[2].length,
          validFor: /^[\w$-]*$/,
          options: Object.entries(s.properties).map(([name, p]) => {
            const full = schema.resolve(p);
            return { label: name, type: "property", detail: typeOf(full), boost: s.required?.includes(name) ? 1 : 0, apply: name + (full.type === "object" || full.properties || full.type === "array" ? ":" : ": "), info: () => describe(name, { ...full, ...p }, s.required?.includes(name)) };
          }),
        };
      };
      view = new cm.EditorView({
        root,
        parent: root,
        state: cm.EditorState.create({
          doc: state.text,
          selection: cursor === undefined ? undefined : { anchor: cursor },
          extensions: [
            gutterOn.of(state.blame ? own.blameGutter : []),
            cm.lineNumbers(),
            cm.foldGutter(),
            cm.codeFolding(),
            cm.highlightSpecialChars(),
            cm.history(),
            cm.drawSelection(),
            cm.indentOnInput(),
            cm.bracketMatching(),
            cm.highlightActiveLine(),
            cm.highlightSelectionMatches(),
            cm.yaml(),
            cm.syntaxHighlighting(own.colours),
            own.theme,
            hover,
            cm.autocompletion({ override: [complete], activateOnTyping: true, icons: false }),
            // Tab leaves the editor, so that it is no trap; Control-S saves.
            cm.keymap.of([{ key: "Mod-s", preventDefault: true, run: () => (now.current.save?.(), true) }, ...cm.completionKeymap, ...cm.searchKeymap, ...cm.foldKeymap, ...cm.historyKeymap, ...cm.defaultKeymap]),
            cm.EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0", spellcheck: "false", autocapitalize: "off", "data-gramm": "false" }),
            lock.of(lockOf(state.readOnly)),
            cm.EditorState.tabSize.of(2),
            cm.EditorView.updateListener.of((u) => u.docChanged && now.current.changed?.(u.state.doc.toString(), u.transactions.some((t) => t.isUserEvent("input") || t.isUserEvent("delete") || t.isUserEvent("undo") || t.isUserEvent("redo") || t.isUserEvent("move")))),
          ],
        }),
      });
      now.current.view = view;
      if (autofocus) view.focus();
      if (state.blame) view.dispatch({ effects: own.setBlame.of(own.blameSet(view.state, state.blame)) });
    });
    const set = (next) => {
      if (!view) return void (state.text = next);
      const old = view.state.doc.toString();
      if (old === next) return;
      // Only what differs changes, so that folds, the selection and the scroll position stay.
      const a = old.split("\n"), b = next.split("\n"), starts = [0];
      for (const line of a) starts.push(starts.at(-1) + line.length + 1);
      const changes = diff(a, b).map((h) => {
        const lines = b.slice(h.b, h.bEnd), atEnd = h.aEnd === a.length;
        if (!atEnd) return { from: starts[h.a], to: starts[h.aEnd], insert: lines.map((l) => l + "\n").join("") };
        return h.a === a.length ? { from: old.length, insert: lines.map((l) => "\n" + l).join("") } : { from: starts[h.a], to: old.length, insert: lines.join("\n") };
      });
      view.dispatch({ changes });
    };
    if (handle) handle.current = { text: () => (view ? view.state.doc.toString() : state.text), set, focus: () => view?.focus(), view: () => view };
    return () => {
      gone = true;
      view?.destroy();
    };
  }, []);
  useEffect(() => {
    const { view, lock, lockOf, pending } = now.current;
    if (view) view.dispatch({ effects: lock.reconfigure(lockOf(readOnly)) });
    else if (pending) pending.readOnly = readOnly;
  }, [readOnly]);
  useEffect(() => {
    const { view, own, gutterOn, pending } = now.current;
    if (!view) {
      if (pending) pending.blame = blame;
      return;
    }
    view.dispatch({ effects: gutterOn.reconfigure(blame ? own.blameGutter : []) });
    if (blame) view.dispatch({ effects: own.setBlame.of(own.blameSet(view.state, blame)) });
  }, [blame]);
  return html`<div class="editor" ref=${host}></div>`;
}

export const whenText = (moment) => (moment ? ago(moment) : "");
