package managedfields

import (
	"cmp"
	"slices"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// node is a set of fields as a tree, one node for each step of a path; the root stands for
// the object. Children are sorted, and every leaf is a member. A node that was handed out
// is immutable, so that sets can share subtrees.
type node struct {
	step  step
	flags flags
	kids  []*node
}

type flags uint8

const (
	// member: the field is in the set. In a comparison: it was added or changed.
	member flags = 1 << iota
	// removed: the field was removed. In comparisons only.
	removed
)

// touched are the flags of a field that was added, changed or removed.
const touched = member | removed

// step is one step of a path: the name of a field, the keys of an item, the value of an
// item, or an index. Exactly one of them is set; kinds sort in this order.
type step struct {
	kind stepKind
	name string // of a field
	// keys of an item, sorted by name. The value of a set item and an index are a
	// single key without a name.
	keys []keyVal
}

type stepKind uint8

const (
	byName stepKind = iota
	byKeys
	byValue
	byIndex
)

type keyVal struct {
	name string
	val  scalar
}

// scalar is a value that can identify an item of a list.
type scalar struct {
	kind scalarKind
	s    string
	n    int64 // an integer, or 1 for true
	any  any   // a float64, or a value of another type
}

type scalarKind uint8

const (
	isFloat scalarKind = iota
	isInt
	isString
	isBool
	isOther
)

func fieldStep(name string) step { return step{name: name} }

// compare orders as fieldpath.PathElement does.
func (s *step) compare(t *step) int {
	if s.kind != t.kind {
		return cmp.Compare(s.kind, t.kind)
	}
	switch s.kind {
	case byName:
		return strings.Compare(s.name, t.name)
	default:
		return compareKeys(s.keys, t.keys)
	}
}

func compareKeys(a, b []keyVal) int {
	for i := range a {
		if i >= len(b) {
			return 1
		}
		if c := strings.Compare(a[i].name, b[i].name); c != 0 {
			return c
		}
		if c := a[i].val.compare(&b[i].val); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

// compare orders as value.Compare does: numbers, strings, booleans, the rest.
func (s *scalar) compare(t *scalar) int {
	if s.kind == isFloat || t.kind == isFloat {
		if s.kind <= isInt && t.kind <= isInt {
			return cmp.Compare(s.float(), t.float())
		}
	}
	if s.kind != t.kind {
		return cmp.Compare(s.kind, t.kind)
	}
	switch s.kind {
	case isString:
		return strings.Compare(s.s, t.s)
	case isOther:
		return value.Compare(value.NewValueInterface(s.any), value.NewValueInterface(t.any))
	default:
		return cmp.Compare(s.n, t.n)
	}
}

func (s *scalar) float() float64 {
	if s.kind == isInt {
		return float64(s.n)
	}
	return s.any.(float64)
}

// unstructured returns the value as structured-merge-diff keeps it.
func (s *scalar) unstructured() any {
	switch s.kind {
	case isString:
		return s.s
	case isInt:
		return s.n
	case isBool:
		return s.n != 0
	default:
		return s.any
	}
}

// scalarOf returns a value of an unstructured object as a scalar.
func scalarOf(v any) scalar {
	switch v := v.(type) {
	case string:
		return scalar{kind: isString, s: v}
	case int64:
		return scalar{kind: isInt, n: v}
	case int:
		return scalar{kind: isInt, n: int64(v)}
	case int32:
		return scalar{kind: isInt, n: int64(v)}
	case float64:
		return scalar{kind: isFloat, any: v}
	case bool:
		s := scalar{kind: isBool}
		if v {
			s.n = 1
		}
		return s
	}
	return scalar{kind: isOther, any: v}
}

// element returns the step as a fieldpath.PathElement.
func (s *step) element() fieldpath.PathElement {
	switch s.kind {
	case byName:
		return fieldpath.FieldNameElement(s.name)
	case byKeys:
		keys := make(value.FieldList, len(s.keys))
		for i := range s.keys {
			keys[i] = value.Field{Name: s.keys[i].name, Value: value.NewValueInterface(s.keys[i].val.unstructured())}
		}
		return fieldpath.PathElement{Key: &keys}
	case byValue:
		return fieldpath.ValueElement(value.NewValueInterface(s.keys[0].val.unstructured()))
	default:
		return fieldpath.IndexElement(int(s.keys[0].val.n))
	}
}

// stepOf returns the step of a fieldpath.PathElement.
func stepOf(e fieldpath.PathElement) step {
	switch {
	case e.FieldName != nil:
		return fieldStep(*e.FieldName)
	case e.Key != nil:
		keys := make([]keyVal, len(*e.Key))
		for i, f := range *e.Key {
			keys[i] = keyVal{f.Name, scalarOf(f.Value.Unstructured())}
		}
		return step{kind: byKeys, keys: keys}
	case e.Value != nil:
		return step{kind: byValue, keys: []keyVal{{val: scalarOf((*e.Value).Unstructured())}}}
	case e.Index != nil:
		return step{kind: byIndex, keys: []keyVal{{val: scalar{kind: isInt, n: int64(*e.Index)}}}}
	}
	return step{}
}

// treeOf returns the tree of a fieldpath.Set.
func treeOf(set *fieldpath.Set) *node {
	root := &node{}
	set.Iterate(func(p fieldpath.Path) {
		n := root
		for _, e := range p {
			n = n.child(stepOf(e))
		}
		n.flags |= member
	})
	return root
}

// set returns the fieldpath.Set of a tree.
func (n *node) set() *fieldpath.Set {
	s := &fieldpath.Set{}
	n.fill(s)
	return s
}

func (n *node) fill(s *fieldpath.Set) {
	for _, k := range n.kids {
		e := k.step.element()
		if k.flags&member != 0 {
			s.Members.Insert(e)
		}
		if len(k.kids) > 0 {
			k.fill(s.Children.Descend(e))
		}
	}
}

// child returns the child for a step, and adds it if there is none. Only for a tree under
// construction.
func (n *node) child(s step) *node {
	return n.childIn(s, func() *node { return &node{} })
}

// childIn is child with nodes from alloc.
func (n *node) childIn(s step, alloc func() *node) *node {
	// Most steps come in order: behind the last child, or to it.
	i := len(n.kids)
	if i > 0 {
		c := n.kids[i-1].step.compare(&s)
		if c == 0 {
			return n.kids[i-1]
		}
		if c > 0 {
			var found bool
			i, found = slices.BinarySearchFunc(n.kids, &s, func(k *node, s *step) int { return k.step.compare(s) })
			if found {
				return n.kids[i]
			}
		}
	}
	k := alloc()
	k.step = s
	n.kids = append(n.kids, nil)
	copy(n.kids[i+1:], n.kids[i:])
	n.kids[i] = k
	return k
}

// get returns the child for a step, or nil.
func (n *node) get(s *step) *node {
	lo, hi := 0, len(n.kids)
	for lo < hi {
		mid := (lo + hi) / 2
		switch c := n.kids[mid].step.compare(s); {
		case c == 0:
			return n.kids[mid]
		case c < 0:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return nil
}

// at returns the node at a path of names, or nil.
func (n *node) at(path []string) *node {
	for _, name := range path {
		s := fieldStep(name)
		if n = n.get(&s); n == nil {
			return nil
		}
	}
	return n
}

func (n *node) empty() bool { return len(n.kids) == 0 }

// minus returns the members of n that do not have one of the flags which in m. It returns n
// itself if that is all of them.
func (n *node) minus(m *node, which flags) *node {
	var out *node
	i, j := 0, 0
	for i < len(n.kids) && j < len(m.kids) {
		a, b := n.kids[i], m.kids[j]
		c := a.step.compare(&b.step)
		switch {
		case c > 0:
			j++
			continue
		case c < 0:
			if out != nil {
				out.kids = append(out.kids, a)
			}
		default:
			k := a.minus(b, which)
			f := a.flags
			if b.flags&which != 0 {
				f &^= member
			}
			if k != a || f != a.flags {
				if out == nil {
					out = &node{step: n.step, flags: n.flags, kids: append(make([]*node, 0, len(n.kids)), n.kids[:i]...)}
				}
				if f&member != 0 || len(k.kids) > 0 {
					out.kids = append(out.kids, &node{step: a.step, flags: f, kids: k.kids})
				}
			} else if out != nil {
				out.kids = append(out.kids, a)
			}
			j++
		}
		i++
	}
	if out == nil {
		return n
	}
	out.kids = append(out.kids, n.kids[i:]...)
	return out
}

// without returns the members of n that are neither members of m nor below one.
func (n *node) without(m *node) *node {
	out := &node{step: n.step, flags: n.flags}
	for _, k := range n.kids {
		if o := m.get(&k.step); o != nil {
			if o.flags&member != 0 {
				continue
			}
			if k = k.without(o); k.flags&member == 0 && len(k.kids) == 0 {
				continue
			}
		}
		out.kids = append(out.kids, k)
	}
	return out
}

// plus returns the union. It returns n itself if m adds nothing.
func (n *node) plus(m *node) *node {
	var out *node
	start := func(i int) {
		if out == nil {
			out = &node{step: n.step, flags: n.flags | m.flags&member, kids: make([]*node, 0, len(n.kids)+len(m.kids))}
			out.kids = append(out.kids, n.kids[:i]...)
		}
	}
	if m.flags&member&^n.flags != 0 {
		start(0)
	}
	i, j := 0, 0
	for i < len(n.kids) && j < len(m.kids) {
		a, b := n.kids[i], m.kids[j]
		switch c := a.step.compare(&b.step); {
		case c < 0:
			if out != nil {
				out.kids = append(out.kids, a)
			}
			i++
		case c > 0:
			start(i)
			out.kids = append(out.kids, b)
			j++
		default:
			k := a.plus(b)
			if k != a {
				start(i)
			}
			if out != nil {
				out.kids = append(out.kids, k)
			}
			i++
			j++
		}
	}
	if j < len(m.kids) {
		start(i)
	}
	if out == nil {
		return n
	}
	out.kids = append(append(out.kids, n.kids[i:]...), m.kids[j:]...)
	return out
}

// overlaps reports whether the sets have a member in common.
func (n *node) overlaps(m *node) bool {
	for _, k := range m.kids {
		if o := n.get(&k.step); o != nil && (o.flags&k.flags&member != 0 || o.overlaps(k)) {
			return true
		}
	}
	return false
}

// within reports whether all members of n are in m.
func (n *node) within(m *node) bool {
	j := 0
	for _, a := range n.kids {
		for j < len(m.kids) && m.kids[j].step.compare(&a.step) < 0 {
			j++
		}
		if j == len(m.kids) || m.kids[j].step.compare(&a.step) != 0 {
			return false
		}
		b := m.kids[j]
		if a.flags&member&^b.flags != 0 || !a.within(b) {
			return false
		}
	}
	return true
}

// members returns the tree without nodes that are only removed. A tree that has none is
// returned as it is.
func (n *node) members() *node {
	for i, k := range n.kids {
		m := k.members()
		if m == k && k.flags == member {
			continue
		}
		if m == k && k.flags == 0 && len(k.kids) > 0 {
			continue
		}
		out := &node{step: n.step, flags: n.flags & member, kids: append([]*node(nil), n.kids[:i]...)}
		for j, k := range n.kids[i:] {
			if j > 0 { // once a node, or the cost doubles with every level
				m = k.members()
			}
			if f := k.flags & member; f != 0 || len(m.kids) > 0 {
				if m == k && k.flags != f {
					m = &node{step: k.step, flags: f, kids: k.kids}
				}
				out.kids = append(out.kids, m)
			}
		}
		return out
	}
	return n
}
