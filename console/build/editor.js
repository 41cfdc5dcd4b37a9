// An editor of YAML; loaded by the views that edit.
export { EditorState, StateField, StateEffect, RangeSetBuilder, Compartment } from "@codemirror/state";
export {
  EditorView, Decoration, gutter, GutterMarker, hoverTooltip, keymap, lineNumbers, highlightActiveLine, drawSelection, highlightSpecialChars,
} from "@codemirror/view";
export { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
export { yaml } from "@codemirror/lang-yaml";
export {
  syntaxHighlighting, HighlightStyle, defaultHighlightStyle, foldGutter, foldKeymap, codeFolding, indentOnInput, bracketMatching, syntaxTree, foldAll, unfoldAll,
} from "@codemirror/language";
export { tags } from "@lezer/highlight";
export { autocompletion, completionKeymap } from "@codemirror/autocomplete";
export { linter, lintGutter, setDiagnostics } from "@codemirror/lint";
export { searchKeymap, highlightSelectionMatches } from "@codemirror/search";
export { MergeView, unifiedMergeView } from "@codemirror/merge";
