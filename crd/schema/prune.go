package schema

import (
	"slices"
	"strconv"
)

// Prune removes fields that the schema does not have, and returns their paths, sorted, if
// report is set. apiVersion, kind and metadata are left alone.
func (s *Schema) Prune(obj map[string]any, report bool) []string {
	p := pruner{report: report}
	p.object(obj, s.root, true)
	slices.Sort(p.unknown)
	return p.unknown
}

type pruner struct {
	report  bool
	path    []byte
	unknown []string
}

// maxUnknown bounds the number of paths that are reported.
const maxUnknown = 100

func isMeta(name string) bool { return name == "apiVersion" || name == "kind" || name == "metadata" }

func (p *pruner) value(v any, n *node) {
	switch v := v.(type) {
	case map[string]any:
		p.object(v, n, n != nil && n.embedded)
	case []any:
		var items *node
		if n != nil {
			items = n.items
			if items == nil && n.preserve {
				return
			}
		}
		at := len(p.path)
		for i, item := range v {
			if p.report {
				p.path = append(strconv.AppendInt(append(p.path, '['), int64(i), 10), ']')
			}
			if n != nil && n.preserve {
				p.kept(item, items)
			} else {
				p.value(item, items)
			}
			p.path = p.path[:at]
		}
	}
}

// kept descends into a value whose own unknown fields are preserved.
func (p *pruner) kept(v any, n *node) {
	if n == nil {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		p.members(v, n, n.embedded, true)
	case []any:
		p.value(v, &node{items: n.items, preserve: true})
	}
}

func (p *pruner) object(obj map[string]any, n *node, resource bool) {
	p.members(obj, n, resource, n != nil && n.preserve)
}

// members prunes the fields of an object. keep preserves unknown fields.
func (p *pruner) members(obj map[string]any, n *node, resource, keep bool) {
	at := len(p.path)
	for name, v := range obj {
		if resource && isMeta(name) {
			continue
		}
		var child *node
		known := false
		if n != nil {
			child, known = n.child(name)
		}
		switch {
		case known:
			p.step(name)
			p.value(v, child)
			p.path = p.path[:at]
		case !keep:
			if p.report && len(p.unknown) < maxUnknown && (at > 0 || !isMeta(name)) {
				p.step(name)
				p.unknown = append(p.unknown, string(p.path))
				p.path = p.path[:at]
			}
			delete(obj, name)
		}
	}
}

func (p *pruner) step(name string) {
	if !p.report {
		return
	}
	if len(p.path) > 0 {
		p.path = append(p.path, '.')
	}
	p.path = append(p.path, name...)
}
