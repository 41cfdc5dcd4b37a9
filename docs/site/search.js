// Finds the sections that have all words of a question, those in headings first.
const up = new URL(document.querySelector("script[data-up]").dataset.up || "./", location.href);
const input = document.getElementById("search");
const found = document.getElementById("found");
const chapters = document.getElementById("chapters");
let sections;

async function search() {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) {
    found.hidden = true;
    chapters.hidden = false;
    return;
  }
  sections ??= (await (await fetch(new URL("search.json", up))).json()).map((s) => ({ ...s, all: [s.title, s.heading, s.text].join(" ").toLowerCase(), head: (s.title + " " + (s.heading || "")).toLowerCase() }));
  const score = (s) => words.reduce((sum, w) => sum + (s.head.includes(w) ? 10 : 0) + Math.min(s.all.split(w).length - 1, 5), 0);
  const best = sections.filter((s) => words.every((w) => s.all.includes(w))).sort((a, b) => score(b) - score(a)).slice(0, 30);
  found.replaceChildren(
    ...best.map((s) => {
      const item = document.createElement("li");
      const link = document.createElement("a");
      link.href = new URL(s.page + (s.anchor ? "#" + s.anchor : ""), up);
      link.textContent = s.heading && s.heading !== s.title ? `${s.title}: ${s.heading}` : s.title;
      const at = Math.max(0, s.text.toLowerCase().indexOf(words[0]) - 40);
      const excerpt = document.createElement("small");
      excerpt.textContent = s.text.slice(at, at + 140);
      item.append(link, excerpt);
      return item;
    }),
  );
  if (!best.length) found.append(Object.assign(document.createElement("li"), { textContent: "Nothing has all of these words." }));
  found.hidden = false;
  chapters.hidden = true;
}

input.addEventListener("input", search);
input.form.addEventListener("submit", (e) => {
  e.preventDefault();
  found.querySelector("a")?.click();
});
document.addEventListener("keydown", (e) => {
  if (e.key === "/" && document.activeElement !== input) {
    e.preventDefault();
    input.focus();
  }
});
