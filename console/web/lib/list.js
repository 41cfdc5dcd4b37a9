// A list of objects that stays as the server has it: pages, then a watch. ObjectList keeps
// the rows, and in view those that the filter leaves, in order.
import { table, watch, pathOf, ApiError, sessionKey } from "./api.js";
import { rowOf, rowsOf, columnsOf } from "./listrows.js";

const firstPage = 100;
// autoMost is how many rows are loaded without being asked for more.
const autoMost = 200_000;
// flushAfter is how many milliseconds changes of a watch are gathered.
const flushAfter = 120;

// A list that may not be watched is read again after so many milliseconds, if it has no
// more rows than this.
const pollAfter = 10_000, pollMost = 2000;

// How the values of a column are compared.
const units = { s: 1, m: 60, h: 3600, d: 86400, y: 365 * 86400 };
const suffixes = { n: 1e-9, u: 1e-6, m: 1e-3, "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60 };
const agePattern = /^(\d+[smhdy])+$/;
const quantityPattern = /^([+-]?[\d.]+(?:e\d+)?)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$/;

export function seconds(text) {
  if (!agePattern.test(text)) return undefined;
  let n = 0;
  for (const [, count, unit] of text.matchAll(/(\d+)([smhdy])/g)) n += count * units[unit];
  return n;
}

export function quantity(text) {
  const m = quantityPattern.exec(text);
  return m ? Number(m[1]) * suffixes[m[2] || ""] : undefined;
}

const natural = (text) => text.toLowerCase().replace(/\d+/g, (d) => d.padStart(12, "0"));

// sortKeys returns the function from a cell to what is compared, by the values that the
// column has: ages, quantities, fractions such as 2/3, or words in which numbers count as
// numbers. Cells without a value are last.
export function sortKeys(values) {
  const some = values.map((v) => (v === undefined || v === null ? "" : String(v))).filter((v) => v && !/^<.*>$|^-$/.test(v));
  const all = (test) => some.length > 0 && some.every(test);
  const none = (v) => v === undefined || v === null || v === "" || /^<.*>$|^-$/.test(v);
  const number = (parse) => (v) => (none(v) ? Infinity : (parse(String(v)) ?? Infinity));
  if (all((v) => agePattern.test(v)) && some.some((v) => /[shdy]/.test(v))) return number(seconds);
  if (all((v) => quantityPattern.test(v))) return number(quantity);
  if (all((v) => /^\d+\/\d+$/.test(v))) return number((v) => Number(v.split("/")[0]) + Number(v.split("/")[1]) / 1e6);
  if (all((v) => /^\d+( \(.*\))?$/.test(v))) return number((v) => parseInt(v, 10));
  return (v) => (none(v) ? "\uffff" : natural(String(v)));
}

export class ObjectList {
  // changed() is called after changes, at most once a frame or so; rows are in view.
  constructor({ resource, namespace, labelSelector, fieldSelector, changed }) {
    this.path = pathOf(resource, namespace);
    this.namespace = namespace;
    this.canWatch = resource.verbs.includes("watch");
    this.query = {};
    if (labelSelector) this.query.labelSelector = labelSelector;
    if (fieldSelector) this.query.fieldSelector = fieldSelector;
    this.changed = changed;
    this.rows = new Map(); // by key
    this.view = [];
    this.columns = undefined;
    this.text = "";
    this.sort = undefined; // {of: row → value, desc}
    this.state = { phase: "loading", loaded: 0 };
    this.round = 0;
    this.pending = new Map(); // changes of the watch by key
    this.gone = new Map(); // deleted while pages were loading: key → version
    this.ended = false;
  }

  start() {
    this.abort = new AbortController();
    this.load(0);
    return this;
  }

  stop() {
    this.ended = true;
    this.abort?.abort();
    this.worker?.terminate();
    this.endWatch?.();
    clearTimeout(this.timer);
    clearTimeout(this.flushTimer);
  }

  set(state) {
    if (this.ended) return;
    this.state = { ...this.state, ...state };
    this.changed();
  }

  // load lists from the beginning. What was there before stays until it is not in the new
  // list.
  async load(tries) {
    this.worker?.terminate();
    this.endWatch?.();
    this.round++;
    this.gone.clear();
    this.pending.clear();
    let answer;
    try {
      answer = await table(this.path, { ...this.query, limit: firstPage }, { signal: this.abort.signal });
    } catch (error) {
      if (this.ended) return;
      if (error instanceof ApiError && error.code < 500 && error.code !== 429) return this.set({ phase: "failed", error });
      this.set({ phase: "waiting", error });
      this.timer = setTimeout(() => this.load(tries + 1), Math.min(300 * 2 ** tries, 5000));
      return;
    }
    if (this.ended) return;
    this.columns = columnsOf(answer);
    this.listed = 0;
    this.take(rowsOf(answer));
    const m = answer.metadata || {};
    this.follow(m.resourceVersion);
    const total = m.continue ? (m.remainingItemCount === undefined ? undefined : this.listed + m.remainingItemCount) : this.listed;
    this.set({ phase: "live", error: undefined, complete: false, more: false, total, expected: total });
    if (m.continue) this.loadMore(m.continue, autoMost);
    else this.complete();
  }

  // loadMore loads pages in a worker, so that the page stays quick.
  loadMore(token, most) {
    this.token = undefined;
    this.set({ more: false });
    const worker = new Worker("/assets/lib/listworker.js", { type: "module" });
    this.worker = worker;
    let last = token;
    worker.onmessage = ({ data }) => {
      if (this.ended || worker !== this.worker) return;
      if (data.waiting) return this.set({ phase: "waiting", error: { message: data.waiting } });
      if (data.code) {
        worker.terminate();
        if (data.code === 410) return this.load(0);
        return this.set({ phase: "failed", error: new ApiError(data.code, data.status || {}) });
      }
      last = data.token;
      this.take(data.rows);
      const total = data.done ? this.listed : data.remaining === undefined ? undefined : this.listed + data.remaining;
      this.set({ phase: this.state.phase === "waiting" && !this.watchWaits ? "live" : this.state.phase, expected: total });
      if (data.done) {
        worker.terminate();
        this.complete();
      } else if (this.listed >= this.most) {
        worker.terminate();
        this.token = last;
        this.set({ more: true });
      }
    };
    worker.onerror = (e) => this.set({ phase: "failed", error: { message: e.message || "The list could not be loaded." } });
    this.most = this.listed + most;
    worker.postMessage({ path: this.path, query: this.query, key: sessionKey(), token, most });
  }

  loadRest() {
    if (this.token) this.loadMore(this.token, autoMost);
  }

  // complete removes what a former list had, and this one has not.
  complete() {
    let removed = false;
    for (const row of this.rows.values()) {
      if (row.round !== this.round) {
        this.rows.delete(row.key);
        removed = true;
      }
    }
    this.gone.clear();
    if (removed) this.refresh();
    this.set({ complete: true });
  }

  // take adds a page of rows.
  take(rows) {
    this.listed += rows.length;
    const fresh = [];
    let changed = false;
    for (const row of rows) {
      row.round = this.round;
      const had = this.rows.get(row.key);
      if (this.gone.get(row.key) >= row.version) continue;
      if (had && had.version >= row.version && had.uid === row.uid) {
        had.round = this.round;
        if (had.cells.length === row.cells.length) continue;
      }
      if (had) changed = true;
      this.rows.set(row.key, row);
      fresh.push(row);
    }
    if (changed) this.refresh();
    else this.merge(fresh);
    this.state = { ...this.state, loaded: this.rows.size };
  }

  // follow watches from a version on.
  follow(resourceVersion) {
    if (!this.canWatch) return;
    this.watchWaits = false;
    this.endWatch = watch(this.path, { ...this.query, resourceVersion }, {
      asTable: true,
      event: (type, object) => {
        const row = object.kind === "Table" ? object.rows?.[0] && rowOf(object.rows[0]) : rowsOf({ items: [object] })[0];
        if (!row) return;
        this.pending.set(row.key, { type, row });
        this.flushTimer ||= setTimeout(() => this.flush(), flushAfter);
      },
      state: (state, error) => {
        if (this.ended) return;
        if (state === "expired") return void this.load(0);
        this.watchWaits = state === "waiting";
        if (state === "refused") {
          this.set({ unwatched: error });
          // A short list is read again and again instead.
          if (this.rows.size <= pollMost) this.timer = setTimeout(() => this.load(0), pollAfter);
        }
        else if (this.state.phase !== "failed") this.set({ phase: state === "live" ? "live" : "waiting" });
      },
    });
  }

  flush() {
    this.flushTimer = undefined;
    if (this.ended || !this.pending.size) return;
    const many = this.pending.size > 300;
    for (const [key, { type, row }] of this.pending) {
      const had = this.rows.get(key);
      if (had && had.version > row.version) continue;
      if (had && !many) this.drop(had);
      if (type === "DELETED") {
        this.rows.delete(key);
        if (!this.state.complete) this.gone.set(key, row.version);
      } else {
        row.round = this.round;
        row.changed = performance.now();
        this.rows.set(key, row);
        if (!many) this.insert(row);
      }
    }
    this.pending.clear();
    if (many) this.refresh();
    this.set({ loaded: this.rows.size });
  }

  // order is the comparison of rows in view.
  order = (a, b) => {
    if (this.sort) {
      const x = a.sortKey, y = b.sortKey;
      if (x !== y) {
        // What has no value is last, in both directions.
        if (x === Infinity || x === "\uffff") return 1;
        if (y === Infinity || y === "\uffff") return -1;
        return (x < y) === !this.sort.desc ? -1 : 1;
      }
    }
    return a.key < b.key ? -1 : a.key > b.key ? 1 : 0;
  };

  matches(row) {
    if (!this.words) return true;
    row.text ||= [this.namespace ? "" : row.namespace, row.name, ...row.cells, ...Object.entries(row.labels || {}).map(([k, v]) => k + "=" + v)].join(" ").toLowerCase();
    return this.words.every((w) => row.text.includes(w));
  }

  prepare(row) {
    if (this.sort) row.sortKey = this.sort.key(this.sort.of(row));
  }

  // place is where a row is in view, or would be.
  place(row) {
    let low = 0, high = this.view.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.order(this.view[middle], row) < 0) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  indexOf(row) {
    const i = this.place(row);
    return this.view[i]?.key === row.key ? i : -1;
  }

  drop(row) {
    const i = this.place(row);
    if (this.view[i] === row) this.view.splice(i, 1);
  }

  insert(row) {
    if (!this.matches(row)) return;
    this.prepare(row);
    this.view.splice(this.place(row), 0, row);
  }

  merge(rows) {
    const fresh = rows.filter((r) => this.matches(r));
    if (!fresh.length) return;
    fresh.forEach((r) => this.prepare(r));
    fresh.sort(this.order);
    const old = this.view;
    if (!old.length || this.order(old.at(-1), fresh[0]) < 0) {
      for (const r of fresh) old.push(r);
      return;
    }
    const out = new Array(old.length + fresh.length);
    for (let i = 0, j = 0, k = 0; k < out.length; k++) out[k] = j >= fresh.length || (i < old.length && this.order(old[i], fresh[j]) < 0) ? old[i++] : fresh[j++];
    this.view = out;
  }

  // refresh makes view anew.
  refresh() {
    const view = [];
    for (const row of this.rows.values()) {
      if (this.matches(row)) {
        this.prepare(row);
        view.push(row);
      }
    }
    view.sort(this.order);
    this.view = view;
  }

  setFilter(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.words = words.length ? words : undefined;
    this.refresh();
    this.changed();
  }

  // setSort orders by what of(row) returns; undefined is the order of the server.
  setSort(of, desc) {
    if (of) {
      const values = [];
      for (const row of this.rows.values()) {
        values.push(of(row));
        if (values.length >= 500) break;
      }
      const numeric = values.length > 0 && values.every((v) => typeof v === "number");
      this.sort = { of, desc, key: numeric ? (v) => v : sortKeys(values) };
    } else this.sort = undefined;
    this.refresh();
    this.changed();
  }
}
