import { html } from "../lib/ui.js";

export default function View({ route }) {
  return html`<h1>now</h1><p>${route.path}</p>`;
}
