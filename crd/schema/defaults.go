package schema

import (
	"github.com/apikeel/kelson/storage"
	"k8s.io/apimachinery/pkg/runtime"
)

// DropNulls removes nulls of fields that are not nullable and have no default.
func (s *Schema) DropNulls(obj map[string]any) { dropNulls(obj, s.root) }

// maxDefaults is how many bytes of defaults an object gets, as a text: more than can be stored, so
// an object that would need more is refused. Without a bound, a list of empty items could become
// any number of large ones.
const maxDefaults = storage.MaxValueBytes + 1<<20

// Default sets missing fields to their defaults, up to maxDefaults. A null of a field that is not
// nullable is replaced by the default.
func (s *Schema) Default(obj map[string]any) {
	if s.root.defaults {
		(&defaulter{room: maxDefaults}).set(obj, s.root)
	}
}

// defaulter sets defaults as long as there is room.
type defaulter struct{ room int }

// of returns a copy of the default of a node, nil if there is no more room.
func (d *defaulter) of(n *node) any {
	if d.room -= n.fallbackSize; d.room < 0 {
		return nil
	}
	return runtime.DeepCopyJSONValue(n.fallback)
}

// isForbiddenNull reports whether v is a null that the schema does not allow.
func isForbiddenNull(v any, n *node) bool { return v == nil && n != nil && !n.nullable }

// dropNulls is DropNulls for the value of a node.
func dropNulls(v any, n *node) {
	if n == nil {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			if child := n.properties[name]; child != nil {
				if isForbiddenNull(member, child) && child.fallback == nil {
					delete(v, name)
				} else {
					dropNulls(member, child)
				}
				continue
			}
			if n.additional != nil {
				if isForbiddenNull(member, n.additional) && n.additional.fallback == nil {
					delete(v, name)
				} else {
					dropNulls(member, n.additional)
				}
			}
		}
	case []any:
		for _, item := range v {
			dropNulls(item, n.items)
		}
	}
}

// set sets the defaults below a node.
func (d *defaulter) set(v any, n *node) {
	if n == nil || !n.defaults {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		for name, child := range n.properties {
			if child.fallback == nil {
				continue
			}
			if member, ok := v[name]; !ok || isForbiddenNull(member, child) {
				if value := d.of(child); value != nil {
					v[name] = value
				}
			}
		}
		for name, member := range v {
			child := n.properties[name]
			if child == nil {
				if child = n.additional; isForbiddenNull(member, child) {
					member = d.of(child)
					v[name] = member
				}
			}
			d.set(member, child)
		}
	case []any:
		for i, item := range v {
			if isForbiddenNull(item, n.items) {
				item = d.of(n.items)
				v[i] = item
			}
			d.set(item, n.items)
		}
	}
}

// pruneDefaults removes unknown fields from the defaults themselves.
func pruneDefaults(n *node) {
	if n == nil || !n.defaults {
		return
	}
	if n.fallback != nil {
		(&pruner{}).value(n.fallback, n)
	}
	for _, child := range n.properties {
		pruneDefaults(child)
	}
	pruneDefaults(n.additional)
	pruneDefaults(n.items)
}
