package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/apikeel/kelson/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A row of a table is made once and kept with the record, but for ages, which change
// while nothing is written: they are filled in whenever the row is.

// nameDescription is what Kubernetes says of metadata.name.
const nameDescription = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names"

const createdDescription = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"

// columnDefinitions returns columns as tables have them; nil stands for the usual two.
func columnDefinitions(of []resource.Column) []metav1.TableColumnDefinition {
	if of == nil {
		return []metav1.TableColumnDefinition{
			{Name: "Name", Type: "string", Format: "name", Description: nameDescription},
			{Name: "Created At", Type: "date", Description: createdDescription},
		}
	}
	out := make([]metav1.TableColumnDefinition, len(of))
	for i, c := range of {
		out[i] = metav1.TableColumnDefinition{Name: c.Name, Type: c.Type, Format: c.Format, Description: c.Description, Priority: c.Priority}
	}
	return out
}

// Include is what the rows of a table have of their objects.
type Include uint8

// The values of Include.
const (
	IncludeMetadata Include = iota
	IncludeNone
	IncludeObject
)

// appendTable appends a table up to its first row.
func (e *Encoder) appendTable(dst []byte, meta metav1.ListMeta, columns []metav1.TableColumnDefinition) []byte {
	dst = append(dst, `{"kind":"Table","apiVersion":"`...)
	dst = append(dst, e.Format.MetaVersion()...)
	dst = append(dst, `","metadata":`...)
	dst = appendValue(dst, meta)
	dst = append(dst, `,"columnDefinitions":`...)
	dst = appendValue(dst, columns)
	return append(dst, `,"rows":[`...)
}

const tableEnd = "]}"

// appendValue appends a value in JSON that can always be encoded.
func appendValue(dst []byte, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return append(dst, b...)
}

// appendRow appends the row of a record.
func (e *Encoder) appendRow(dst []byte, rec *Record) ([]byte, error) {
	row, err := rec.Encoding(e.id(encodingRow), e.makeRecordRow)
	if err != nil {
		return nil, err
	}
	return e.finishRow(dst, row, rec)
}

// finishRow appends a row that was made, and what is wanted of its object.
func (e *Encoder) finishRow(dst, row []byte, rec *Record) (_ []byte, err error) {
	dst = appendAges(dst, row, e.Now)
	dst = append(dst, `,"object":`...)
	switch e.Include {
	case IncludeNone:
		dst = append(dst, "null"...)
	case IncludeObject:
		if dst, err = e.appendJSON(dst, rec, false, true); err != nil {
			return nil, err
		}
	default:
		if dst, err = e.appendMetadata(dst, rec, true); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

// makeRecordRow makes the row of a record.
func (e *Encoder) makeRecordRow(rec *Record) ([]byte, error) {
	obj, err := e.decode(rec)
	if err != nil {
		return nil, err
	}
	return e.makeRow(obj)
}

// makeRow makes the row of an object of the hub version.
func (e *Encoder) makeRow(obj resource.Object) ([]byte, error) {
	cells, err := e.cells(obj)
	if err != nil {
		return nil, err
	}
	return e.rowOf(obj, cells)
}

// rowOf returns the row with these cells up to the object itself:
// {"cells":[…],"conditions":[…] Ages are marked.
func (e *Encoder) rowOf(obj resource.Object, cells []any) (row []byte, err error) {
	row = []byte(`{"cells":[`)
	for i, cell := range cells {
		if i > 0 {
			row = append(row, ',')
		}
		if row, err = appendCell(row, cell); err != nil {
			return nil, err
		}
	}
	row = append(row, ']')
	if e.Served.Definition.RowConditions != nil {
		if conditions := e.Served.Definition.RowConditions(obj); len(conditions) > 0 {
			row = appendValue(append(row, `,"conditions":`...), conditions)
		}
	}
	return row, nil
}

// columns returns the columns of the version.
func (e *Encoder) columns() []metav1.TableColumnDefinition {
	if own := e.Served.Version.Columns; own != nil {
		return columnDefinitions(own)
	}
	return columnDefinitions(e.Served.Definition.Columns)
}

// cells returns the cells of an object of the hub version.
func (e *Encoder) cells(obj resource.Object) (_ []any, err error) {
	if v := e.Served.Version; v.Cells != nil {
		if obj, err = fromHub(e.Served.Definition, v, obj); err != nil {
			return nil, err
		}
		return v.Cells(obj)
	}
	if e.Served.Definition.Cells != nil {
		return e.Served.Definition.Cells(obj)
	}
	return []any{obj.GetName(), obj.GetCreationTimestamp().UTC().Format(time.RFC3339)}, nil
}

// appendCell appends a cell. An age is timeMark, which JSON has nowhere, and the seconds
// since 1970 of the time from which it counts.
func appendCell(dst []byte, cell any) ([]byte, error) {
	switch cell := cell.(type) {
	case resource.Since:
		return appendCell(dst, resource.Text{cell})
	case resource.Text:
		dst = append(dst, '"')
		for _, part := range cell {
			since, ok := part.(resource.Since)
			if !ok || time.Time(since).IsZero() {
				quoted := appendValue(nil, fmt.Sprint(part))
				dst = append(dst, quoted[1:len(quoted)-1]...)
				continue
			}
			dst = append(dst, timeMark)
			dst = binary.BigEndian.AppendUint64(dst, uint64(time.Time(since).Unix()))
		}
		return append(dst, '"'), nil
	}
	b, err := json.Marshal(cell)
	return append(dst, b...), err
}

const timeMark = 0

// appendAges appends a row with its ages at a time.
func appendAges(dst, row []byte, now time.Time) []byte {
	for {
		i := bytes.IndexByte(row, timeMark)
		if i < 0 {
			return append(dst, row...)
		}
		dst = append(dst, row[:i]...)
		since := resource.Since(time.Unix(int64(binary.BigEndian.Uint64(row[i+1:])), 0))
		dst = append(dst, since.At(now)...)
		row = row[i+9:]
	}
}

// writeTable writes a table of the page.
func (l *List) writeTable(w *Writer) (err error) {
	e, p := l.e, l.page
	w.Buf = e.appendTable(w.Buf, p.meta(), e.columns())
	if e.Served.Definition.Arrange != nil {
		return e.writeArranged(w, p)
	}
	noCells := e.Served.Definition.Cells == nil && e.Served.Version.Cells == nil
	if len(p.Records) == 0 && (noCells || e.Served.Definition.NullRows) {
		w.Buf = append(w.Buf[:len(w.Buf)-1], "null}"...)
		return nil
	}
	for i := range p.Records {
		if err = e.err(); err != nil {
			return err
		}
		if i > 0 {
			w.Buf = append(w.Buf, ',')
		}
		if w.Buf, err = e.appendRow(w.Buf, l.ahead.Record(i)); err != nil {
			return err
		}
		w.Spill()
	}
	w.Buf = append(w.Buf, tableEnd...)
	return nil
}

// writeArranged writes the rows of a kind whose rows depend on each other. There are few
// such kinds, and no row is kept.
func (e *Encoder) writeArranged(w *Writer, p *Page) error {
	objs, records := make([]resource.Object, len(p.Records)), make(map[resource.Object]*Record, len(p.Records))
	for i, rec := range p.Records {
		obj, err := e.decode(rec)
		if err != nil {
			return err
		}
		objs[i], records[obj] = obj, rec
	}
	change := e.Served.Definition.Arrange(objs)
	for i, obj := range objs {
		cells, err := e.cells(obj)
		if err != nil {
			return err
		}
		if change != nil {
			change(obj, cells)
		}
		row, err := e.rowOf(obj, cells)
		if err != nil {
			return err
		}
		if i > 0 {
			w.Buf = append(w.Buf, ',')
		}
		if w.Buf, err = e.finishRow(w.Buf, row, records[obj]); err != nil {
			return err
		}
		w.Spill()
	}
	w.Buf = append(w.Buf, tableEnd...)
	return nil
}

// appendRowTable appends a table with one row, with columns or without.
func (e *Encoder) appendRowTable(dst []byte, rec *Record, withColumns bool) (_ []byte, err error) {
	meta, columns := metav1.ListMeta{}, []metav1.TableColumnDefinition(nil)
	if rec.Revision != 0 {
		meta.ResourceVersion = RevisionString(rec.Revision)
	}
	if withColumns {
		columns = e.columns()
	}
	dst = e.appendTable(dst, meta, columns)
	if dst, err = e.appendRow(dst, rec); err != nil {
		return nil, err
	}
	return append(dst, tableEnd...), nil
}

// ProjectionTable returns the table of one object that a subresource projects, whose
// Projection has Cells.
func (e *Encoder) ProjectionTable(p *resource.Projection, projection resource.Object) (*metav1.Table, error) {
	cells, err := p.Cells(projection)
	if err != nil {
		return nil, err
	}
	for i, c := range cells {
		if since, ok := c.(resource.Since); ok {
			cells[i] = since.At(e.Now)
		}
	}
	row := metav1.TableRow{Cells: cells}
	switch e.Include {
	case IncludeObject:
		row.Object.Raw, err = json.Marshal(projection)
	case IncludeMetadata:
		row.Object.Raw, err = json.Marshal(e.PartialMetadata(projection))
	}
	return &metav1.Table{
		TypeMeta:          metav1.TypeMeta{Kind: "Table", APIVersion: e.Format.MetaVersion()},
		ListMeta:          metav1.ListMeta{ResourceVersion: projection.GetResourceVersion()},
		ColumnDefinitions: columnDefinitions(p.Columns),
		Rows:              []metav1.TableRow{row},
	}, err
}
