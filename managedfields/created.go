package managedfields

import (
	"reflect"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/apikeel/kelson/resource"
)

// created writes the set of the fields of a new object in the FieldsV1 format, in one pass
// and without a tree: objects made from one template have equal sets, so the tree is in the
// cache. The set is what walk finds between an empty object and the new one. What created
// cannot decide is left to walk, also if it is an error.
type created struct {
	buf     []byte
	unknown bool // walk has to compute the set
}

// createdSet returns the set of the fields of a new object that its creator owns; nil if walk
// has to compute it.
func (m *Manager) createdSet(obj resource.Object) *cachedSet {
	if _, ok := obj.(*unstructured.Unstructured); ok || m.only != nil || m.opts.Hub != m.opts.Kind.GroupVersion() {
		return nil
	}
	types, ok := m.opts.Cache.kind(m.opts.Types, m.opts.Kind)
	if !ok {
		return nil
	}
	x := exempt{ignored: m.ignore, unowned: m.strip}
	if !m.scoped(m.version) {
		x.ignored = m.never
	}
	c := createds.Get().(*created)
	defer c.reuse()
	if !c.value(types.plan(obj), wasZero, goOperand(obj).v, x, true) {
		c.buf = append(c.buf, '{', '}')
	}
	if c.unknown {
		return nil
	}
	return m.opts.Cache.written(c.buf)
}

var createds = sync.Pool{New: func() any { return new(created) }}

// reuse gives away the buffer, unless it is large.
func (c *created) reuse() {
	if cap(c.buf) <= maxSetSize {
		c.buf, c.unknown = c.buf[:0], false
		createds.Put(c)
	}
}

// earlier is what a field is in the empty object.
type earlier uint8

const (
	wasAbsent earlier = iota
	wasNull           // a pointer, list or map that JSON has as null
	wasZero           // the zero value, which JSON has
)

// of returns what a field of a struct is in the empty object.
func (e earlier) of(f *planField) earlier {
	if e != wasZero || f.omitsZero {
		return wasAbsent
	}
	switch f.rt.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface:
		return wasNull
	}
	return wasZero
}

// exempt has the fields that the creator does not come to own. Those in ignored are passed by
// with everything below them. Those in unowned are not owned themselves, but fields below them
// may be: metadata is one of them, and its labels are owned.
type exempt struct{ ignored, unowned *node }

// below returns what is exempt below a field, and whether the field itself is.
func (x exempt) below(s *step) (below exempt, ignored, unowned bool) {
	if x.ignored != nil {
		below.ignored = x.ignored.get(s)
		ignored = below.ignored != nil && below.ignored.flags&member != 0
	}
	if x.unowned != nil {
		below.unowned = x.unowned.get(s)
		unowned = below.unowned != nil && below.unowned.flags&member != 0
	}
	return below, ignored, unowned
}

// value writes the fields of a value that are in the set, and reports whether there are any.
// With unowned the value itself is not in it, only what is below it.
func (c *created) value(p *plan, was earlier, v reflect.Value, x exempt, unowned bool) bool {
	if p == nil || p.t == nil {
		c.unknown = true
		return false
	}
	null := false
	for p.kind == planPointer {
		if null = null || v.IsNil(); !null {
			v = v.Elem()
		}
		p = p.element()
	}
	switch p.kind {
	case planGeneric:
		// It would be read as JSON, unless it is clear what comes of it.
		if was == wasZero && v.IsZero() {
			return false
		}
		c.unknown = c.unknown || p.t.forms() != scalarForm && !isIntOrString(v) || was != wasAbsent && !unowned
		return c.leaf(!unowned)
	case planMap, planStringMap, planList, planBytes:
		null = null || v.IsNil()
	}
	if null {
		return c.leaf(was == wasAbsent && !unowned)
	}

	start, owned := len(c.buf), was == wasAbsent && !unowned
	c.buf = append(c.buf, '{')
	if owned {
		c.buf = append(c.buf, `".":{}`...)
	}
	head, found := len(c.buf), false
	switch {
	case p.kind == planStruct && !p.t.fields.atomic:
		found = c.fields(p, was, v, x, start)
	case p.kind == planStringMap && !p.t.fields.atomic:
		found = c.stringMap(p, v.Interface().(map[string]string), x, start)
	case p.kind == planMap && !p.t.fields.atomic:
		found = c.entries(p, v, x, start)
	case p.kind == planList && !p.t.list.atomic:
		found = c.items(p, v, x, start)
	}
	switch {
	case found && len(c.buf) > head:
		c.buf = append(c.buf, '}')
		return true
	case !found && was == wasZero:
		owned = !unowned && !equal(p.untyped(), reflect.Zero(p.rt), v)
	case !found:
		owned = !unowned
	}
	c.buf = c.buf[:start]
	return c.leaf(owned)
}

// isIntOrString reports whether a value is one, which is a number or a string in JSON.
func isIntOrString(v reflect.Value) bool {
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	is, ok := v.Interface().(intstr.IntOrString)
	return ok && (is.Type == intstr.Int || is.Type == intstr.String)
}

// leaf writes a field with nothing below it, if it is owned.
func (c *created) leaf(owned bool) bool {
	if owned {
		c.buf = append(c.buf, '{', '}')
	}
	return owned
}

// comma goes before a key of the object that begins at start, unless it is the first.
func (c *created) comma(start int) {
	if len(c.buf) > start+1 {
		c.buf = append(c.buf, ',')
	}
}

// key begins what is below a key of the object that begins at start.
func (c *created) key(s *step, start int) {
	// What needs escapes may be written by structured-merge-diff, in a way of its own.
	c.unknown = c.unknown || !plain(s.name)
	for i := range s.keys {
		c.unknown = c.unknown || s.keys[i].val.kind == isString && !plain(s.keys[i].val.s)
	}
	c.comma(start)
	c.buf = append(s.encode(c.buf), ':')
}

// child writes a value with its key into the object that begins at start.
func (c *created) child(s *step, start int, p *plan, was earlier, v reflect.Value, x exempt) {
	below, ignored, unowned := x.below(s)
	if ignored {
		return
	}
	before := len(c.buf)
	if c.key(s, start); !c.value(p, was, v, below, unowned) {
		c.buf = c.buf[:before]
	}
}

// field is child for a field of a struct.
func (c *created) field(f *planField, start int, p *plan, was earlier, v reflect.Value, x exempt) {
	below, ignored, unowned := x.below(&f.step)
	if ignored {
		return
	}
	before := len(c.buf)
	c.comma(start)
	if c.buf = append(c.buf, f.key...); !c.value(p, was, v, below, unowned) {
		c.buf = c.buf[:before]
	}
}

// fields writes those of a struct, and reports whether it or the empty object has any.
func (c *created) fields(p *plan, was earlier, v reflect.Value, x exempt, start int) (found bool) {
	o := operand{v: v}
	address := o.address()
	for _, f := range p.fields {
		if c.unknown {
			return true
		}
		if f.isUnset(o, address) {
			found = found || was == wasZero && !f.omitsZero
			continue
		}
		before := was.of(f)
		if field := f.get(v); field.IsValid() {
			found = true
			c.field(f, start, f.of(p), before, field, x)
		} else if before != wasAbsent {
			found = true
		}
	}
	return found
}

// stringMap writes the entries of the most common maps, and reports whether there are any.
func (c *created) stringMap(p *plan, m map[string]string, x exempt, start int) bool {
	var some [16]string
	names := some[:0]
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		s := fieldStep(name)
		if _, ignored, unowned := x.below(&s); ignored || unowned {
			continue
		}
		if p.t.field(name) == nil {
			c.unknown = true
		}
		c.key(&s, start)
		c.buf = append(c.buf, '{', '}')
	}
	return len(names) > 0
}

// entries writes those of a map, and reports whether there are any.
func (c *created) entries(p *plan, v reflect.Value, x exempt, start int) bool {
	entries := mapEntries(operand{v: v})
	for _, e := range entries {
		s := fieldStep(e.name)
		c.child(&s, start, p.entry(e.name), wasAbsent, e.v, x)
	}
	return len(entries) > 0
}

// items writes those of a list whose items have identities, and reports whether there are
// any.
func (c *created) items(p *plan, v reflect.Value, x exempt, start int) bool {
	items, err := p.items(v, v.Len())
	if err != nil {
		c.unknown = true
	}
	s := step{kind: byKeys}
	if len(p.t.list.keys) == 0 {
		s.kind = byValue
	}
	for left := items; len(left) > 0; {
		var same []listItem
		same, left = group(left)
		s.keys = same[0].keys
		if len(same) == 1 {
			c.child(&s, start, p.element(), wasAbsent, v.Index(same[0].index), x)
		} else if _, ignored, unowned := x.below(&s); !ignored && !unowned {
			c.key(&s, start) // they count as one
			c.buf = append(c.buf, '{', '}')
		}
	}
	return len(items) > 0 || err != nil
}
