package wire

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// shape is the order in which a struct writes its fields, and the shapes of those
// that are lists of structs.
type shape struct {
	names []string
	lists map[string]*shape
}

// metadataShape is the order of the fields of ObjectMeta. It is never changed.
var metadataShape = shape{
	names: []string{
		"name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
		"deletionGracePeriodSeconds", "labels", "annotations", "ownerReferences", "finalizers", "managedFields",
	},
	lists: map[string]*shape{
		"ownerReferences": {names: []string{"apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"}},
		"managedFields":   {names: []string{"manager", "operation", "apiVersion", "time", "fieldsType", "fieldsV1", "subresource"}},
	},
}

// orderMetadata returns metadata in JSON, of an object that is a map, as an
// ObjectMeta with the same values has it.
func orderMetadata(meta []byte) ([]byte, error) {
	if out, end := metadataShape.append(make([]byte, 0, len(meta)), meta, 0); end == len(meta) {
		return out, nil
	}
	var m metav1.ObjectMeta
	if err := json.Unmarshal(meta, &m); err != nil {
		return nil, err
	}
	return json.Marshal(m)
}

// append appends the object that begins at i in its order, and returns where it
// ends; -1 if it is not for this: it has other fields, or some that are left out.
func (s *shape) append(dst, b []byte, i int) ([]byte, int) {
	var values [16]struct{ from, to int }
	if i >= len(b) || b[i] != '{' {
		return nil, -1
	}
	for i++; i < len(b) && b[i] != '}'; {
		colon := skipString(b, i)
		if colon < 0 || colon >= len(b) || b[colon] != ':' {
			return nil, -1
		}
		field := s.field(b[i+1 : colon-1])
		next := skipValue(b, colon+1)
		if field < 0 || next < 0 || next >= len(b) || empty(b[colon+1:next]) || values[field].to != 0 {
			return nil, -1
		}
		values[field].from, values[field].to = colon+1, next
		if i = next; b[i] == ',' {
			i++
		}
	}
	if i >= len(b) {
		return nil, -1
	}
	dst = append(dst, '{')
	for n, name := range s.names {
		v := values[n]
		if v.to == 0 {
			continue
		}
		if dst[len(dst)-1] != '{' {
			dst = append(dst, ',')
		}
		dst = append(dst, '"')
		dst = append(dst, name...)
		dst = append(dst, '"', ':')
		list := s.lists[name]
		if list == nil {
			dst = append(dst, b[v.from:v.to]...)
		} else if dst = list.appendAll(dst, b[v.from:v.to]); dst == nil {
			return nil, -1
		}
	}
	return append(dst, '}'), i + 1
}

// appendAll appends a list of objects, each in its order; nil if it is not for this.
func (s *shape) appendAll(dst, list []byte) []byte {
	if list[0] != '[' {
		return nil
	}
	dst = append(dst, '[')
	for i := 1; ; i++ {
		if dst, i = s.append(dst, list, i); i < 0 || i >= len(list) {
			return nil
		}
		switch list[i] {
		case ',':
			dst = append(dst, ',')
		case ']':
			return append(dst, ']')
		default:
			return nil
		}
	}
}

func (s *shape) field(name []byte) int {
	for i := range s.names {
		if s.names[i] == string(name) {
			return i
		}
	}
	return -1
}

// empty reports whether a struct would leave a value out, or may.
func empty(value []byte) bool {
	switch string(value) {
	case `null`, `""`, `{}`, `[]`, `0`, `false`, ``:
		return true
	}
	return false
}
