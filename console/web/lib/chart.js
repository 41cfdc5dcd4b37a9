// Charts of numbers over time, with their numbers as a table: the chart is for the eye, the
// table for everybody.
import uPlot from "../vendor/chart.js";
import { html, useRef, useEffect, useStyle } from "./ui.js";

// Colours are those of the theme. A canvas needs them as they are now, so an element is
// asked, and asked again when the theme changes.
const known = new Map();
const drawn = new Set();
let probe;

function colour(name) {
  if (!known.has(name)) {
    if (!probe) {
      probe = document.createElement("i");
      probe.hidden = true;
      document.body.append(probe);
    }
    probe.style.color = `var(${name})`;
    known.set(name, getComputedStyle(probe).color);
  }
  return known.get(name);
}

function themeChanged() {
  known.clear();
  for (const plot of drawn) plot.redraw(false, true);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);
new MutationObserver(themeChanged).observe(document.documentElement, { attributeFilter: ["data-theme"] });

// seriesColour is the CSS variable of the colour of the n-th series.
export const seriesColour = (n) => `--series-${(n % 6) + 1}`;

const font = "11px system-ui, sans-serif";

function plot(element, series, format) {
  const axis = { stroke: () => colour("--quiet"), font, grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false } };
  return new uPlot(
    {
      width: Math.max(element.clientWidth, 60),
      height: 110,
      padding: [6, 14, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 5 } },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [
        { ...axis, size: 22, space: 70, grid: { show: false } },
        { ...axis, size: 52, space: 34, values: (_, all) => all.map((v) => format(v)) },
      ],
      series: [{}, ...series.map((s, i) => ({ label: s.name, stroke: () => colour(seriesColour(i)), width: 1.5, points: { show: false }, spanGaps: false }))],
    },
    [[], ...series.map(() => [])],
    element,
  );
}

// Chart shows series over time: times are seconds since 1970, and each series is {name,
// values, format?}. Below is a table with what each is now and was at most. Title is what it
// is about, headline the number that counts most.
export function Chart({ title, times, series, format, headline, note, children }) {
  useStyle("vendor/chart.css");
  useStyle("lib/chart.css");
  const box = useRef();
  const chart = useRef();
  const names = series.map((s) => s.name).join("\n");
  useEffect(() => {
    const made = plot(box.current, series, format);
    chart.current = made;
    drawn.add(made);
    const observer = new ResizeObserver(() => made.setSize({ width: Math.max(box.current?.clientWidth || 0, 60), height: 110 }));
    observer.observe(box.current);
    return () => {
      observer.disconnect();
      drawn.delete(made);
      made.destroy();
    };
  }, [names]);
  useEffect(() => chart.current.setData([times, ...series.map((s) => s.values)]));
  const last = (values) => values.findLast((v) => v !== null && v !== undefined);
  const most = (values) => values.reduce((a, v) => (v !== null && v !== undefined && !(v <= a) ? v : a), undefined);
  const show = (s, v) => (v === undefined ? "–" : (s.format || format)(v));
  return html`<section class="panel chart" aria-label=${title}>
    <header><h2>${title}</h2><output>${headline}</output></header>
    <div class="plot" ref=${box} aria-hidden="true"></div>
    <table>
      <caption class="hidden">${title}: numbers of the chart</caption>
      <thead><tr><th scope="col"><span class="hidden">Series</span></th><th scope="col" class="number">now</th><th scope="col" class="number">most</th></tr></thead>
      <tbody>
        ${series.map(
          (s, i) => html`<tr key=${s.name}>
            <th scope="row"><i class=${"swatch s" + ((i % 6) + 1)} aria-hidden="true"></i><bdi>${s.name}</bdi></th>
            <td class="number">${show(s, last(s.values))}</td>
            <td class="number">${show(s, most(s.values))}</td>
          </tr>`,
        )}
      </tbody>
    </table>
    ${note && html`<p class="quiet">${note}</p>`}${children}
  </section>`;
}
