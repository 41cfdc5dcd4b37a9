package schema

import "k8s.io/apimachinery/pkg/runtime"

// DropNulls takes out nulls that may not be and have no default.
func (s *Schema) DropNulls(obj map[string]any) { dropNulls(obj, s.root) }

// Default fills in what an object leaves out. Nulls where none may be give way
// to the default.
func (s *Schema) Default(obj map[string]any) {
	if s.root.defaults {
		fill(obj, s.root)
	}
}

// nullHere reports a null that may not be.
func nullHere(v any, n *node) bool { return v == nil && n != nil && !n.nullable }

// dropNulls takes out nulls that may not be and have no default.
func dropNulls(v any, n *node) {
	if n == nil {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			if child := n.properties[name]; child != nil {
				if nullHere(member, child) && child.fallback == nil {
					delete(v, name)
				} else {
					dropNulls(member, child)
				}
				continue
			}
			if n.additional != nil {
				if nullHere(member, n.additional) && n.additional.fallback == nil {
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

func fill(v any, n *node) {
	if n == nil || !n.defaults {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		for name, child := range n.properties {
			if child.fallback == nil {
				continue
			}
			if member, ok := v[name]; !ok || nullHere(member, child) {
				v[name] = runtime.DeepCopyJSONValue(child.fallback)
			}
		}
		for name, member := range v {
			child := n.properties[name]
			if child == nil {
				if child = n.additional; nullHere(member, child) {
					member = runtime.DeepCopyJSONValue(child.fallback)
					v[name] = member
				}
			}
			fill(member, child)
		}
	case []any:
		for i, item := range v {
			if nullHere(item, n.items) {
				item = runtime.DeepCopyJSONValue(n.items.fallback)
				v[i] = item
			}
			fill(item, n.items)
		}
	}
}

// pruneDefaults takes out of the defaults what the schema does not know.
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
