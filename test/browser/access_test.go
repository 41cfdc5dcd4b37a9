package browser

import (
	"fmt"
	"slices"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
)

// controls are roles of elements that need a name.
var controls = []string{"button", "link", "textbox", "searchbox", "combobox", "checkbox", "radio", "switch", "slider", "spinbutton", "listbox", "option", "image", "img", "menuitem", "tab", "dialog", "grid", "progressbar", "meter"}

// accessible checks what can be checked without a person: names of controls, headings, ids,
// and the contrast of text.
func (tab *tab) accessible() {
	tab.t.Helper()
	nodes := call(tab, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes
	for _, node := range nodes {
		if role := text(node.Role); !node.Ignored && slices.Contains(controls, role) && text(node.Name) == "" {
			what := eval[string](tab, "location.pathname")
			tab.t.Errorf("%s: a %s has no name (node %d)", what, role, node.BackendDOMNodeID)
		}
	}
	for _, problem := range eval[[]string](tab, pageChecks) {
		tab.t.Errorf("%s: %s", eval[string](tab, "location.pathname"), problem)
	}
}

// pageChecks returns sentences about what is wrong. A text needs a contrast of 4.5 to what
// is behind it, and of 3 if it is large.
const pageChecks = `(() => {
  const problems = new Set();
  const ids = new Set();
  for (const e of document.querySelectorAll("[id]")) {
    if (ids.has(e.id)) problems.add("two elements have the id " + e.id);
    ids.add(e.id);
  }
  if (document.querySelectorAll("h1").length !== 1) problems.add(document.querySelectorAll("h1").length + " elements h1");
  if (!document.documentElement.lang) problems.add("no language");
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const over = (top, below) => [0, 1, 2].map((i) => (top[i] * top[3] + below[i] * (255 - top[3])) / 255).concat(255);
  const light = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => ((v /= 255), v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => {
    const layers = [];
    for (; e; e = e.parentElement) {
      const c = rgba(getComputedStyle(e).backgroundColor);
      layers.push(c);
      if (c[3] === 255) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 255]);
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n = 0; walk.nextNode() && n < 3000; n++) {
    const e = walk.currentNode.parentElement;
    const said = walk.currentNode.data.trim();
    if (!said || e.closest(":disabled, [aria-disabled=true], noscript, option, .cm-editor, svg") || !e.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const style = getComputedStyle(e);
    const back = behind(e);
    const [a, b] = [light(over(rgba(style.color), back)), light(back)];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && parseInt(style.fontWeight) >= 700);
    if (contrast < (large ? 3 : 4.5)) problems.add("contrast " + contrast.toFixed(2) + " of " + JSON.stringify(said.slice(0, 40)) + " in " + e.tagName + "." + e.className);
  }
  return [...problems].slice(0, 20);
})()`

// variableChecks does the same for the colours of the themes, whether they are used or not.
const variableChecks = `(() => {
  const problems = [];
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const probe = document.body.appendChild(document.createElement("i"));
  const light = (name) => {
    probe.style.color = "var(" + name + ")";
    canvas.fillStyle = getComputedStyle(probe).color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => ((v /= 255), v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  for (const [text, back] of [["--on-accent", "--accent"], ["--back", "--bad"], ["--text", "--added"], ["--text", "--removed"],
    ...["--text", "--quiet", "--accent", "--good", "--warn", "--bad"].flatMap((c) => [[c, "--back"], [c, "--panel"]])]) {
    const [a, b] = [light(text), light(back)];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) problems.push(text + " on " + back + ": " + contrast.toFixed(2));
  }
  probe.remove();
  return problems;
})()`

func TestColoursOfThemesHaveContrast(t *testing.T) {
	t.Parallel()
	c := open(t, server(t).Config(), nil)
	tab := newTab(t)
	tab.logIn(c)
	for _, theme := range []string{"light", "dark"} {
		eval[any](tab, fmt.Sprintf("document.documentElement.dataset.theme = %q", theme))
		for _, problem := range eval[[]string](tab, variableChecks) {
			t.Errorf("%s: %s, want 4.5 at least", theme, problem)
		}
	}
}
