package managedfields

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// typ is a schema type with its references resolved. A value has one of the forms that are
// set; a nil *typ stands for a type that the schema does not have.
type typ struct {
	owner  *typeSet
	scalar *smd.Scalar
	list   *listType
	fields *mapType
}

type listType struct {
	atomic bool
	// keys identify items, sorted; without keys, items are identified by their
	// values.
	keys []listKey
	item *lazyType
}

type listKey struct {
	name string
	// def is the default of the key, nil if there is none.
	def any
}

type mapType struct {
	atomic bool
	// deduced: a map of arbitrary values, as in a schema-less type.
	deduced bool
	// named are the fields that the schema names; other is the type of further fields,
	// nil if there may be none.
	named map[string]*lazyType
	other *lazyType
}

// lazyType is a reference that is resolved on first use.
type lazyType struct {
	ref smd.TypeRef
	typ atomic.Pointer[typ]
}

// typeSet resolves the types of one schema on first use.
type typeSet struct {
	schema *smd.Schema
	mu     sync.Mutex
	named  map[typeKey]*typ
}

type typeKey struct {
	name     string
	override smd.ElementRelationship
}

func resolve(t typed.ParseableType) (*typ, error) {
	s := &typeSet{schema: t.Schema, named: map[typeKey]*typ{}}
	if root := s.ref(t.TypeRef); root != nil {
		return root, nil
	}
	return nil, fmt.Errorf("managedfields: the schema does not have its root type")
}

// ref returns the type of a reference; the same one for the same name.
func (s *typeSet) ref(r smd.TypeRef) *typ {
	if r.NamedType == nil {
		return s.make(r)
	}
	key := typeKey{name: *r.NamedType}
	if r.ElementRelationship != nil {
		key.override = *r.ElementRelationship
	}
	s.mu.Lock()
	t, ok := s.named[key]
	s.mu.Unlock()
	if ok {
		return t
	}
	t = s.make(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if first, ok := s.named[key]; ok {
		return first
	}
	s.named[key] = t
	return t
}

func (s *typeSet) make(r smd.TypeRef) *typ {
	atom, ok := s.schema.Resolve(r)
	if !ok || atom.Scalar == nil && atom.List == nil && atom.Map == nil {
		return nil
	}
	t := &typ{owner: s, scalar: atom.Scalar}
	if l := atom.List; l != nil {
		t.list = &listType{atomic: l.ElementRelationship != smd.Associative, item: &lazyType{ref: l.ElementType}}
		for _, name := range slices.Sorted(slices.Values(l.Keys)) {
			key := listKey{name: name}
			if e, _ := s.schema.Resolve(l.ElementType); e.Map != nil {
				f, _ := e.Map.FindField(name)
				key.def = f.Default
			}
			t.list.keys = append(t.list.keys, key)
		}
	}
	if m := atom.Map; m != nil {
		t.fields = &mapType{
			atomic:  m.ElementRelationship == smd.Atomic,
			deduced: m.Fields == nil && isUntyped(m.ElementType),
			named:   make(map[string]*lazyType, len(m.Fields)),
		}
		for _, f := range m.Fields {
			t.fields.named[f.Name] = &lazyType{ref: f.Type}
		}
		if m.ElementType != (smd.TypeRef{}) {
			t.fields.other = &lazyType{ref: m.ElementType}
		}
	}
	return t
}

// isUntyped reports whether a reference is to the untyped, deduced type.
func isUntyped(r smd.TypeRef) bool {
	if r.NamedType != nil {
		return *r.NamedType == "__untyped_deduced_"
	}
	return r.Inlined.Scalar != nil && *r.Inlined.Scalar == smd.Untyped
}

// field returns the type of a field, nil if the schema does not allow it.
func (t *typ) field(name string) *typ {
	if f, ok := t.fields.named[name]; ok {
		return t.owner.resolve(f)
	}
	return t.elem()
}

// elem returns the type of the fields that the schema does not name.
func (t *typ) elem() *typ {
	if t.fields.other == nil {
		return nil
	}
	return t.owner.resolve(t.fields.other)
}

// item returns the type of the items of a list.
func (t *typ) item() *typ { return t.owner.resolve(t.list.item) }

// named reports whether the schema names a field, rather than allowing any.
func (t *typ) named(name string) bool { return t.fields.named[name] != nil }

func (s *typeSet) resolve(l *lazyType) *typ {
	if t := l.typ.Load(); t != nil {
		return t
	}
	t := s.ref(l.ref)
	if t != nil && !l.typ.CompareAndSwap(nil, t) {
		return l.typ.Load()
	}
	return t
}

// reconcile returns a set in terms of the current schema: fields below a value that has
// become atomic become that one field.
func (t *typ) reconcile(n *node) *node {
	var out *node
	for i, k := range n.kids {
		r := t.reconcileChild(k)
		if r == k {
			if out != nil {
				out.kids = append(out.kids, k)
			}
			continue
		}
		if out == nil {
			out = &node{step: n.step, flags: n.flags, kids: append(make([]*node, 0, len(n.kids)), n.kids[:i]...)}
		}
		out.kids = append(out.kids, r)
	}
	if out == nil {
		return n
	}
	return out
}

func (t *typ) reconcileChild(k *node) *node {
	if len(k.kids) == 0 {
		return k
	}
	var child *typ
	switch {
	case t.fields != nil:
		if t.fields.deduced {
			return k
		}
		if k.step.kind == byName {
			child = t.field(k.step.name)
		} else {
			child = t.elem()
		}
	case t.scalar != nil:
		return k
	case t.list != nil:
		child = t.item()
	}
	if child == nil {
		return k
	}
	switch {
	case child.fields != nil && child.fields.deduced:
		return k
	case child.fields != nil && child.fields.atomic,
		child.fields == nil && child.scalar == nil && child.list != nil && child.list.atomic:
		return &node{step: k.step, flags: member}
	}
	return child.reconcile(k)
}
