// A table of any number of rows, of which only those in sight are elements. Grid is plain
// DOM, since it draws while the user scrolls.
//
// The focus is on the grid itself, and aria-activedescendant names the active cell, so that
// no change of the rows can lose it. Arrows move, Enter opens, space selects, Shift with an
// arrow extends the selection, Control-A selects all, Escape selects nothing.

const overscan = 8;
let grids = 0;

const make = (tag, attributes, ...children) => {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) if (value !== undefined) e.setAttribute(name, value);
  e.append(...children);
  return e;
};

// rem is about the width of so many characters.
const rem = (characters) => (characters * 0.6).toFixed(2) + "rem";

export class Grid {
  // source: {length(), at(i), indexOf(row), href(row), text(row, column), tone(row, column)};
  // events: open(row, event), sort(column), selected(keys).
  constructor(host, { label, source, open, sort, selected }) {
    Object.assign(this, { host, source, open, sort, selected });
    this.id = "grid" + ++grids;
    this.columns = [];
    this.pool = [];
    this.selection = new Set();
    this.active = { row: -1, column: 1 }; // row -1 is that of the headers
    this.activeKey = undefined;
    this.version = 0;
    host.classList.add("grid");
    host.tabIndex = 0;
    for (const [name, value] of Object.entries({ role: "grid", "aria-label": label, "aria-multiselectable": "true", "aria-readonly": "true" })) host.setAttribute(name, value);
    this.head = make("div", { role: "row", "aria-rowindex": 1, class: "grid-head" });
    this.body = make("div", { role: "rowgroup", class: "grid-body" });
    host.replaceChildren(make("div", { role: "rowgroup", class: "grid-top" }, this.head), this.body);
    this.narrow = matchMedia("(max-width: 40rem)");
    this.listeners = new AbortController();
    const on = (target, type, f, options) => target.addEventListener(type, f, { signal: this.listeners.signal, ...options });
    on(host, "scroll", () => this.schedule(), { passive: true });
    on(host, "keydown", (e) => this.keys(e));
    on(host, "focus", () => this.focused());
    on(this.body, "click", (e) => this.click(e));
    on(this.head, "click", (e) => this.headClick(e));
    on(this.narrow, "change", () => this.layout());
    this.observer = new ResizeObserver(() => this.schedule());
    this.observer.observe(host);
    this.ages = setInterval(() => document.hidden || (this.version++, this.schedule()), 10_000);
    this.layout();
  }

  destroy() {
    this.listeners.abort();
    this.observer.disconnect();
    clearInterval(this.ages);
    cancelAnimationFrame(this.frame);
    this.destroyed = true;
  }

  layout() {
    this.height = this.narrow.matches ? 52 : 30;
    this.host.style.setProperty("--row", this.height + "px");
    this.host.classList.toggle("narrow", this.narrow.matches);
    this.version++;
    this.schedule();
  }

  // setColumns sets what is shown: [{id, name, description, width in characters, number}].
  setColumns(columns, sorting) {
    const shape = JSON.stringify([columns.map((c) => [c.id, c.width]), sorting]);
    if (shape === this.shape) return;
    this.shape = shape;
    const same = columns.map((c) => c.id).join("\n") === this.columns.map((c) => c.id).join("\n");
    this.columns = columns;
    this.host.setAttribute("aria-colcount", columns.length + 1);
    this.host.style.setProperty("--columns", "2.2rem " + columns.map((c, i) => (i === columns.length - 1 ? `minmax(${rem(c.width)}, 1fr)` : rem(c.width))).join(" "));
    this.all = make("input", { type: "checkbox", tabindex: -1, "aria-label": "Select all rows" });
    this.head.replaceChildren(
      make("div", { role: "columnheader", id: `${this.id}-h0`, "aria-colindex": 1, class: "grid-check" }, this.all),
      ...columns.map((c, i) =>
        make(
          "div",
          {
            role: "columnheader",
            id: `${this.id}-h${i + 1}`,
            "aria-colindex": i + 2,
            "aria-sort": sorting?.id === c.id ? (sorting.desc ? "descending" : "ascending") : "none",
            title: c.description,
            class: c.number ? "number" : undefined,
          },
          make("span", {}, c.name),
        ),
      ),
    );
    this.active.column = Math.min(this.active.column, columns.length);
    if (!same) {
      this.pool = [];
      this.body.replaceChildren();
    }
    this.version++;
    this.showSelection();
    this.mark();
    this.schedule();
  }

  // refresh draws again after the rows of the source have changed. What is at the top stays
  // there, and the active row stays active.
  refresh() {
    const top = this.anchor;
    if (top && this.host.scrollTop > 0) {
      const i = this.source.indexOf(top.row);
      if (i >= 0 && i !== top.index) this.host.scrollTop += (i - top.index) * this.height;
    }
    if (this.activeRow) {
      const i = this.source.indexOf(this.activeRow);
      if (i >= 0) this.active.row = i;
      else this.active.row = Math.min(this.active.row, this.source.length() - 1);
      this.activeRow = this.source.at(this.active.row);
    }
    this.schedule();
  }

  schedule() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      if (!this.destroyed) this.draw();
    });
  }

  draw() {
    const count = this.source.length();
    if (this.drawn !== count || this.drawnHeight !== this.height) {
      this.drawn = count;
      this.drawnHeight = this.height;
      this.body.style.height = count * this.height + "px";
      this.host.setAttribute("aria-rowcount", count + 1);
    }
    const top = this.host.scrollTop, seen = Math.ceil(this.host.clientHeight / this.height) + 1;
    const first = Math.max(0, Math.floor(top / this.height) - overscan);
    const last = Math.min(count, first + seen + 2 * overscan);
    const need = seen + 2 * overscan;
    while (this.pool.length < need) this.pool.push(this.newRow(this.pool.length));
    const size = this.pool.length;
    this.anchor = count ? { index: Math.min(count - 1, Math.floor(top / this.height)), row: this.source.at(Math.min(count - 1, Math.floor(top / this.height))) } : undefined;
    for (const slot of this.pool) slot.wanted = false;
    for (let i = first; i < last; i++) {
      const slot = this.pool[i % size];
      slot.wanted = true;
      this.fill(slot, i, this.source.at(i));
    }
    for (const slot of this.pool) if (!slot.wanted && slot.index >= 0) ((slot.index = -1), (slot.row = undefined), (slot.element.hidden = true));
    this.mark();
  }

  newRow(n) {
    const check = make("input", { type: "checkbox", tabindex: -1 });
    const cells = this.columns.map((c, i) => {
      const cell = make("div", { role: "gridcell", id: `${this.id}-${n}-${i + 1}`, "aria-colindex": i + 2, class: [c.isName && "grid-name", c.number && "number"].filter(Boolean).join(" ") || undefined });
      if (c.isName) cell.append(make("a", { tabindex: -1 }));
      return cell;
    });
    const element = make("div", { role: "row", class: "grid-row" }, make("div", { role: "gridcell", id: `${this.id}-${n}-0`, "aria-colindex": 1, class: "grid-check" }, check), ...cells);
    element.hidden = true;
    this.body.append(element);
    return { element, check, cells, index: -1, texts: [], tones: [], titled: [] };
  }

  fill(slot, index, row) {
    const selected = this.selection.has(row.key), changed = row.changed && performance.now() - row.changed < 2500;
    if (slot.index === index && slot.row === row && slot.version === this.version && slot.selected === selected && slot.flash === changed) return;
    const e = slot.element;
    if (slot.index !== index) {
      e.style.transform = `translateY(${index * this.height}px)`;
      e.setAttribute("aria-rowindex", index + 2);
    } else if (slot.height !== this.height) e.style.transform = `translateY(${index * this.height}px)`;
    slot.height = this.height;
    if (slot.index < 0) e.hidden = false;
    slot.index = index;
    if (slot.row !== row) {
      slot.check.setAttribute("aria-label", "Select " + row.name);
      e.classList.toggle("deleting", row.deleting);
    }
    if (slot.flash !== changed) e.classList.toggle("changed", Boolean(changed));
    slot.flash = changed;
    if (changed && !slot.timer) slot.timer = setTimeout(() => ((slot.timer = 0), this.schedule()), 2600);
    slot.row = row;
    slot.version = this.version;
    slot.selected = selected;
    slot.check.checked = selected;
    e.setAttribute("aria-selected", selected);
    this.columns.forEach((column, i) => {
      const text = this.source.text(row, column), cell = slot.cells[i];
      const target = column.isName ? cell.firstChild : cell;
      if (column.isName) {
        const href = this.source.href(row);
        if (slot.href !== href) target.setAttribute("href", (slot.href = href));
      }
      if (slot.texts[i] !== text) {
        slot.texts[i] = text;
        target.textContent = text;
        const long = text.length > column.width - 2;
        if (long || slot.titled[i]) cell.title = long ? text : "";
        slot.titled[i] = long;
      }
      const tone = column.toned ? this.source.tone(row, column, text) : "";
      if (slot.tones[i] !== tone) cell.dataset.tone = slot.tones[i] = tone;
    });
  }

  // mark shows which cell is active.
  mark() {
    const { row, column } = this.active;
    let id;
    if (row < 0) id = `${this.id}-h${column}`;
    else {
      const slot = this.pool[row % this.pool.length];
      if (slot && slot.index === row) id = `${this.id}-${row % this.pool.length}-${column}`;
    }
    const cell = id && document.getElementById(id);
    if (this.marked !== cell) {
      this.marked?.classList.remove("active");
      cell?.classList.add("active");
      this.marked = cell;
    }
    if (cell) this.host.setAttribute("aria-activedescendant", id);
    else this.host.removeAttribute("aria-activedescendant");
  }

  focused() {
    if (this.active.row < 0 && !this.activeRow && this.source.length()) this.move(Math.ceil(this.host.scrollTop / this.height), this.active.column);
  }

  move(row, column) {
    const count = this.source.length();
    this.active.row = Math.max(-1, Math.min(count - 1, row));
    this.active.column = Math.max(0, Math.min(this.columns.length, column));
    this.activeRow = this.active.row >= 0 ? this.source.at(this.active.row) : undefined;
    if (this.active.row >= 0) {
      const top = this.active.row * this.height, headHeight = this.narrow.matches ? 0 : this.head.offsetHeight;
      if (top < this.host.scrollTop) this.host.scrollTop = top;
      else if (top + this.height + headHeight > this.host.scrollTop + this.host.clientHeight) this.host.scrollTop = top + this.height + headHeight - this.host.clientHeight;
    }
    this.draw();
    this.marked?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  select(row, on) {
    if (!row) return;
    if (on ?? !this.selection.has(row.key)) this.selection.add(row.key);
    else this.selection.delete(row.key);
    this.showSelection();
    this.schedule();
  }

  selectAll(on) {
    this.selection.clear();
    if (on) for (let i = 0; i < this.source.length(); i++) this.selection.add(this.source.at(i).key);
    this.showSelection();
    this.schedule();
  }

  selectRange(from, to) {
    for (let i = Math.max(0, Math.min(from, to)); i <= Math.max(from, to); i++) this.selection.add(this.source.at(i).key);
    this.showSelection();
    this.schedule();
  }

  showSelection() {
    if (this.all) {
      this.all.checked = this.selection.size > 0 && this.selection.size >= this.source.length();
      this.all.indeterminate = this.selection.size > 0 && !this.all.checked;
    }
    this.selected(this.selection);
  }

  keys(e) {
    if (e.target !== this.host) return;
    const { row, column } = this.active, page = Math.max(1, Math.floor(this.host.clientHeight / this.height) - 2), control = e.ctrlKey || e.metaKey;
    const go = (r, c) => {
      e.preventDefault();
      if (e.shiftKey && r !== row && row >= 0 && r >= 0) this.selectRange(row, Math.min(r, this.source.length() - 1));
      this.move(r, c);
    };
    if (e.altKey) return;
    switch (e.key) {
      case "ArrowDown": return go(row + 1, column);
      case "ArrowUp": return go(row - 1, column);
      case "ArrowLeft": return go(row, column - 1);
      case "ArrowRight": return go(row, column + 1);
      case "PageDown": return go(row + page, column);
      case "PageUp": return go(Math.max(0, row - page), column);
      case "Home": return go(control ? 0 : row, control ? column : 0);
      case "End": return go(control ? this.source.length() - 1 : row, control ? column : this.columns.length);
      case "Enter":
        e.preventDefault();
        if (row < 0) return column ? this.sort(this.columns[column - 1]) : this.selectAll(!this.selection.size);
        return this.activeRow && this.open(this.activeRow, e);
      case " ":
        e.preventDefault();
        if (row < 0) return column ? this.sort(this.columns[column - 1]) : this.selectAll(!this.selection.size);
        return this.select(this.activeRow);
      case "a":
        if (!control) return;
        e.preventDefault();
        return this.selectAll(true);
      case "Escape":
        if (this.selection.size) this.selectAll(false);
    }
  }

  click(e) {
    const element = e.target.closest(".grid-row");
    const slot = this.pool.find((s) => s.element === element);
    if (!slot?.row) return;
    const cell = e.target.closest("[role=gridcell]"), column = cell ? [...element.children].indexOf(cell) : 1;
    const before = this.active.row;
    if (e.target.closest(".grid-check")) {
      if (e.target !== slot.check) e.preventDefault();
      if (e.shiftKey && before >= 0) this.selectRange(before, slot.index);
      else this.select(slot.row);
      this.move(slot.index, 0);
      return this.host.focus({ preventScroll: true });
    }
    if (e.target.closest("a")) {
      if (e.metaKey || e.ctrlKey || e.shiftKey || e.button) return;
      e.preventDefault();
      return this.open(slot.row, e);
    }
    if (String(getSelection())) return; // text is being copied
    this.move(slot.index, column);
    this.host.focus({ preventScroll: true });
    if (this.narrow.matches) this.open(slot.row, e);
  }

  headClick(e) {
    const cell = e.target.closest("[role=columnheader]");
    if (!cell) return;
    const column = [...this.head.children].indexOf(cell);
    if (column === 0) {
      if (e.target !== this.all) return;
      this.selectAll(this.all.checked);
    } else this.sort(this.columns[column - 1]);
    this.active = { row: -1, column };
    this.activeRow = undefined;
    this.mark();
  }
}
