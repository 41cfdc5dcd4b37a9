import { html } from "../lib/ui.js";

export default function View({ route }) {
  return html`<h1>object</h1><p>${route.path}</p>`;
}
