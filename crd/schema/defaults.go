package schema

import "k8s.io/apimachinery/pkg/runtime"

// DropNulls removes nulls of fields that are not nullable and have no default.
func (s *Schema) DropNulls(obj map[string]any) { dropNulls(obj, s.root) }

// Default sets missing fields to their defaults. A null of a field that is not nullable is
// replaced by the default.
func (s *Schema) Default(obj map[string]any) {
	if s.root.defaults {
		setDefaults(obj, s.root)
	}
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

func setDefaults(v any, n *node) {
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
				v[name] = runtime.DeepCopyJSONValue(child.fallback)
			}
		}
		for name, member := range v {
			child := n.properties[name]
			if child == nil {
				if child = n.additional; isForbiddenNull(member, child) {
					member = runtime.DeepCopyJSONValue(child.fallback)
					v[name] = member
				}
			}
			setDefaults(member, child)
		}
	case []any:
		for i, item := range v {
			if isForbiddenNull(item, n.items) {
				item = runtime.DeepCopyJSONValue(n.items.fallback)
				v[i] = item
			}
			setDefaults(item, n.items)
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
