// Rows of lists, as the worker and the page make them from the server's tables.

// maxCell is how many characters of a cell are kept; a column of a custom resource may have
// a megabyte.
const maxCell = 300;

const direction = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/;
const directions = new RegExp(direction, "g");

// short is a cell as it is shown: not too long, and with the marks of direction as escapes,
// since they make text look like another.
function short(value) {
  if (typeof value !== "string") return value;
  if (value.length > maxCell) value = value.slice(0, maxCell) + "…";
  return direction.test(value) ? value.replace(directions, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0")) : value;
}

// rowOf is what the page keeps of a row of a table. key is the place of the object in the
// order of the server.
export function rowOf(row) {
  const m = row.object?.metadata || {};
  return {
    key: (m.namespace || "") + "/" + m.name,
    namespace: m.namespace || "",
    name: m.name,
    uid: m.uid,
    version: Number(m.resourceVersion) || 0,
    created: m.creationTimestamp ? Date.parse(m.creationTimestamp) : 0,
    deleting: Boolean(m.deletionTimestamp),
    labels: m.labels,
    cells: (row.cells || []).map((c) => (c !== null && typeof c === "object" ? short(JSON.stringify(c)) : short(c))),
  };
}

// rowsOf returns the rows of a table, or those of a plain list, which servers without tables
// (aggregated ones) answer.
export function rowsOf(answer) {
  if (answer.kind === "Table") return (answer.rows || []).map(rowOf);
  return (answer.items || []).map((object) => rowOf({ object, cells: [object.metadata?.name, object.metadata?.creationTimestamp] }));
}

// columnsOf returns the columns of such an answer: [{name, description, wide, age}].
export function columnsOf(answer) {
  const definitions =
    answer.kind === "Table"
      ? answer.columnDefinitions || []
      : [
          { name: "Name", type: "string", format: "name", priority: 0 },
          { name: "Age", type: "string", priority: 0 },
        ];
  return definitions.map((d, cell) => ({ id: d.name, name: d.name, description: d.description, wide: d.priority > 0, type: d.type, age: d.name === "Age", isName: d.format === "name" || (cell === 0 && d.name === "Name"), cell }));
}
