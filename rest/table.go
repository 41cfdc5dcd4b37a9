package rest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A row of a table is made once and kept with the record, except for the times
// that go on: these are put in when it is written.

// nameDescription is what Kubernetes says of metadata.name.
const nameDescription = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names"

const createdDescription = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"

// columns returns the columns of the resource's tables.
func columns(of []resource.Column) []metav1.TableColumnDefinition {
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

// include is what of the objects is in the rows of a table.
type include uint8

const (
	includeMetadata include = iota
	includeNone
	includeObject
)

// included reads what a client wants in the rows.
func (s *scope) included() (include, error) {
	switch v, _ := request.Param(s.r.URL.RawQuery, "includeObject"); v {
	case "", "Metadata":
		return includeMetadata, nil
	case "None":
		return includeNone, nil
	case "Object":
		return includeObject, nil
	default:
		return 0, apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: includeObject: Invalid value: %q: must be 'Metadata', 'Object', 'None', or empty", v))
	}
}

// appendTable appends a table up to its first row.
func (s *scope) appendTable(dst []byte, meta metav1.ListMeta, columns []metav1.TableColumnDefinition) []byte {
	dst = append(dst, `{"kind":"Table","apiVersion":"`...)
	dst = append(dst, s.out.metaVersion()...)
	dst = append(dst, `","metadata":`...)
	dst = appendJSON(dst, meta)
	dst = append(dst, `,"columnDefinitions":`...)
	dst = appendJSON(dst, columns)
	return append(dst, `,"rows":[`...)
}

const tableEnd = "]}"

// appendJSON appends a value that can always be encoded.
func appendJSON(dst []byte, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return append(dst, b...)
}

// appendRow appends the row of a record.
func (s *scope) appendRow(dst []byte, rec *store.Record, incl include) ([]byte, error) {
	row, err := rec.Encoding(s.formID(formRow), s.makeRow)
	if err != nil {
		return nil, err
	}
	return s.finishRow(dst, row, rec, incl)
}

// finishRow appends a row that was made, and what is wanted of its object.
func (s *scope) finishRow(dst, row []byte, rec *store.Record, incl include) (_ []byte, err error) {
	dst = appendTimes(dst, row, s.req.Received)
	dst = append(dst, `,"object":`...)
	switch incl {
	case includeNone:
		dst = append(dst, "null"...)
	case includeObject:
		if dst, err = s.appendRecord(dst, rec, false); err != nil {
			return nil, err
		}
	default:
		if dst, err = s.appendMetadata(dst, rec); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

// makeRow makes a row without its object: {"cells":[…],"conditions":[…]
// Times that go on are marked.
func (s *scope) makeRow(rec *store.Record) ([]byte, error) {
	obj, err := s.decode(rec)
	if err != nil {
		return nil, err
	}
	return s.makeRowOf(obj, nil)
}

// makeRowOf makes the row of an object, whose cells can be changed.
func (s *scope) makeRowOf(obj resource.Object, change func(resource.Object, []any)) ([]byte, error) {
	cells, err := s.cells(obj)
	if err != nil {
		return nil, err
	}
	if change != nil {
		change(obj, cells)
	}
	row := []byte(`{"cells":[`)
	for i, cell := range cells {
		if i > 0 {
			row = append(row, ',')
		}
		if row, err = appendCell(row, cell); err != nil {
			return nil, err
		}
	}
	row = append(row, ']')
	if s.def.RowConditions != nil {
		if conditions := s.def.RowConditions(obj); len(conditions) > 0 {
			row = appendJSON(append(row, `,"conditions":`...), conditions)
		}
	}
	return row, nil
}

// columns returns the columns of the version that the request is about.
func (s *scope) columns() []metav1.TableColumnDefinition {
	if own := s.served.Version.Columns; own != nil {
		return columns(own)
	}
	return columns(s.def.Columns)
}

// cells returns the cells of an object of the hub version.
func (s *scope) cells(obj resource.Object) (_ []any, err error) {
	if v := s.served.Version; v.Cells != nil {
		if obj, err = s.fromHub(obj); err != nil {
			return nil, &wire.ConversionError{Err: err}
		}
		return v.Cells(obj)
	}
	if s.def.Cells != nil {
		return s.def.Cells(obj)
	}
	return []any{obj.GetName(), obj.GetCreationTimestamp().UTC().Format(time.RFC3339)}, nil
}

// appendCell appends a cell. A time that goes on is a mark, which JSON has
// nowhere, and the seconds since 1970.
func appendCell(dst []byte, cell any) ([]byte, error) {
	switch cell := cell.(type) {
	case resource.Since:
		return appendCell(dst, resource.Text{cell})
	case resource.Text:
		dst = append(dst, '"')
		for _, part := range cell {
			since, ok := part.(resource.Since)
			if !ok || time.Time(since).IsZero() {
				quoted := appendJSON(nil, fmt.Sprint(part))
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

// appendTimes appends a row with what its times say at a moment.
func appendTimes(dst, row []byte, now time.Time) []byte {
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

// writeTable answers with a table of a list.
func (s *scope) writeTable(p *page) error {
	incl, err := s.included()
	if err != nil {
		return err
	}
	if err := s.convertible(p); err != nil {
		return err
	}
	s.answeredList(func(s *scope, c *pieces) error { return s.table(c, p, incl) })
	return s.streamed(p, func(c *pieces) error { return s.table(c, p, incl) })
}

// table writes a table of a list.
func (s *scope) table(c *pieces, p *page, incl include) (err error) {
	c.buf = s.appendTable(c.buf, p.meta(), s.columns())
	if s.def.Arrange != nil {
		return s.arranged(c, p, incl)
	}
	if len(p.records) == 0 && s.def.Cells == nil && s.served.Version.Cells == nil {
		c.buf = append(c.buf[:len(c.buf)-1], "null}"...)
		return nil
	}
	for i, rec := range p.records {
		if i > 0 {
			c.buf = append(c.buf, ',')
		}
		if c.buf, err = s.appendRow(c.buf, rec, incl); err != nil {
			return err
		}
		c.spill()
	}
	c.buf = append(c.buf, tableEnd...)
	return nil
}

// arranged writes the rows of a table in which they depend on each other. There
// are few of those, and none are kept.
func (s *scope) arranged(c *pieces, p *page, incl include) error {
	objs, records := make([]resource.Object, len(p.records)), make(map[resource.Object]*store.Record, len(p.records))
	for i, rec := range p.records {
		obj, err := s.decode(rec)
		if err != nil {
			return err
		}
		objs[i], records[obj] = obj, rec
	}
	change := s.def.Arrange(objs)
	for i, obj := range objs {
		row, err := s.makeRowOf(obj, change)
		if err != nil {
			return err
		}
		if i > 0 {
			c.buf = append(c.buf, ',')
		}
		if c.buf, err = s.finishRow(c.buf, row, records[obj], incl); err != nil {
			return err
		}
		c.spill()
	}
	c.buf = append(c.buf, tableEnd...)
	return nil
}

// tableObject appends a table with one row. In a watch, only the first has
// columns.
func (s *scope) tableObject(dst []byte, rec *store.Record, first bool) ([]byte, error) {
	incl, err := s.included()
	if err != nil {
		return nil, err
	}
	meta, cols := metav1.ListMeta{}, []metav1.TableColumnDefinition(nil)
	if rec.Revision != 0 {
		meta.ResourceVersion = revisionString(rec.Revision)
	}
	if first {
		cols = s.columns()
	}
	dst = s.appendTable(dst, meta, cols)
	if dst, err = s.appendRow(dst, rec, incl); err != nil {
		return nil, err
	}
	return append(dst, tableEnd...), nil
}
