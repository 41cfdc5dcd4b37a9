import { html } from "../lib/ui.js";

export default function View({ route }) {
  return html`<h1>time</h1><p>${route.path}</p>`;
}
