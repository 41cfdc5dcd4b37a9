package rest

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/store"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Tables are made of rows that are computed from the object each time: cells
// such as ages change without the object.

// nameDescription is what Kubernetes says of metadata.name.
const nameDescription = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names"

const createdDescription = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"

// columns returns the columns of the resource's tables.
func columns(def *resource.Definition) []metav1.TableColumnDefinition {
	if def.Columns == nil {
		return []metav1.TableColumnDefinition{
			{Name: "Name", Type: "string", Format: "name", Description: nameDescription},
			{Name: "Created At", Type: "date", Description: createdDescription},
		}
	}
	out := make([]metav1.TableColumnDefinition, len(def.Columns))
	for i, c := range def.Columns {
		out[i] = metav1.TableColumnDefinition{Name: c.Name, Type: c.Type, Format: c.Format, Description: c.Description, Priority: c.Priority}
	}
	return out
}

// table is metav1.Table with rows that are encoded already.
type table struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Columns         []metav1.TableColumnDefinition `json:"columnDefinitions"`
	Rows            []row                          `json:"rows"`
}

type row struct {
	Cells      []any                      `json:"cells"`
	Conditions []metav1.TableRowCondition `json:"conditions,omitempty"`
	Object     json.RawMessage            `json:"object"`
}

func (s *scope) newTable() (*table, error) {
	switch v := s.r.URL.Query().Get("includeObject"); v {
	case "", "None", "Metadata", "Object":
	default:
		return nil, apierrors.NewBadRequest("unrecognized includeObject value: " + v)
	}
	return &table{TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: s.out.metaVersion()}, Columns: columns(s.def), Rows: []row{}}, nil
}

// addRow adds the row of a record.
func (s *scope) addRow(t *table, rec *store.Record) error {
	obj, err := s.decode(rec)
	if err != nil {
		return err
	}
	var r row
	if s.def.Cells != nil {
		if r.Cells, err = s.def.Cells(obj); err != nil {
			return err
		}
	} else {
		r.Cells = []any{obj.GetName(), obj.GetCreationTimestamp().UTC().Format(time.RFC3339)}
	}
	if s.def.RowConditions != nil {
		r.Conditions = s.def.RowConditions(obj)
	}
	switch s.r.URL.Query().Get("includeObject") {
	case "None":
	case "Object":
		body, err := s.jsonBody(rec)
		if err != nil {
			return err
		}
		r.Object = s.served.AppendJSON(nil, body)
	default:
		if r.Object, err = s.metadataJSON(nil, rec); err != nil {
			return err
		}
	}
	t.Rows = append(t.Rows, r)
	return nil
}

// writeTable answers with a table of a list.
func (s *scope) writeTable(p *page) error {
	t, err := s.newTable()
	if err != nil {
		return err
	}
	t.ListMeta = p.meta()
	for _, rec := range p.records {
		if err := s.addRow(t, rec); err != nil {
			return err
		}
	}
	body, err := json.Marshal(t)
	if err != nil {
		return err
	}
	s.write(http.StatusOK, body)
	return nil
}

// tableObject appends a table with one row.
func (s *scope) tableObject(dst []byte, rec *store.Record) ([]byte, error) {
	t, err := s.newTable()
	if err != nil {
		return nil, err
	}
	t.ResourceVersion = revisionString(rec.Revision)
	if rec.Revision == 0 {
		t.ResourceVersion = ""
	}
	if err := s.addRow(t, rec); err != nil {
		return nil, err
	}
	body, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	return append(dst, body...), nil
}
