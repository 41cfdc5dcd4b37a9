package managedfields

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

var (
	errNoKeys     = errors.New("an item of a list has none of the keys that tell items apart")
	errTwice      = errors.New("an item of a list is given twice")
	errUndeclared = errors.New("field not declared in schema")
)

// walk compares two objects in one pass over both. The result is a tree of nodes: an
// added or changed field has the flag member, a removed one the flag removed.
// structured-merge-diff's Compare has three sets for them.
type walk struct {
	frames []*frame // one for each depth, reused
	slab   []node
	kids   []*node
	err    error

	// What slab and kids are the rest of, for reuse.
	nodeSlabs slabs[node]
	kidSlabs  slabs[*node]
}

// slabs are slices of one size, of which the first are in use.
type slabs[T any] struct {
	all  [][]T
	used int
}

// next returns the next slab, and makes it if there is none.
func (s *slabs[T]) next(size int) []T {
	if s.used == len(s.all) {
		s.all = append(s.all, make([]T, size))
	}
	s.used++
	return s.all[s.used-1]
}

// reset clears all slabs, so that they can be used again.
func (s *slabs[T]) reset() {
	for _, slab := range s.all[:s.used] {
		clear(slab)
	}
	s.used = 0
}

// walks are walks that are reused: objects of one template have equal sets, and a set that
// is in the cache needs no tree of its own.
var walks = sync.Pool{New: func() any { return new(walk) }}

// maxReused is how many slabs a walk may have that is kept for reuse: those of 2,048 fields.
const maxReused = 64

// reuse gives the walk and all nodes that it has made to the next one. Nobody may have
// any of them.
func (w *walk) reuse() {
	if w.err != nil || len(w.nodeSlabs.all) > maxReused || len(w.kidSlabs.all) > maxReused {
		return
	}
	w.nodeSlabs.reset()
	w.kidSlabs.reset()
	for _, f := range w.frames {
		f.node, f.step, f.own, f.ignore = nil, nil, step{}, nil
	}
	w.slab, w.kids = nil, nil
	walks.Put(w)
}

// operand is the value of a field on one side: set, null or absent.
type operand struct {
	v    reflect.Value
	null bool
}

func (o operand) absent() bool { return !o.null && !o.v.IsValid() }
func (o operand) set() bool    { return !o.null && o.v.IsValid() }

// frame is the position of the walk. Its node is made only if a difference is found.
type frame struct {
	up    *frame
	depth int
	step  *step
	own   step // step points here if it is not that of a planField
	node  *node
	// ignore is the tree of fields below that are not compared.
	ignore *node
}

// start returns the frame of the root.
func (w *walk) start(ignore *node) *frame {
	if len(w.frames) == 0 {
		w.frames = append(make([]*frame, 0, 16), &frame{})
	}
	w.frames[0].node, w.frames[0].ignore = &node{}, ignore
	return w.frames[0]
}

func (w *walk) alloc() *node {
	if len(w.slab) == 0 {
		w.slab = w.nodeSlabs.next(32)
	}
	n := &w.slab[0]
	w.slab = w.slab[1:]
	return n
}

// node returns the node of a frame, and makes it and its parents if they are missing.
func (w *walk) node(f *frame) *node {
	if f.node != nil {
		return f.node
	}
	up := w.node(f.up)
	i := len(up.kids)
	if i > 0 && up.kids[i-1].step.compare(f.step) >= 0 {
		f.node = up.childIn(*f.step, w.alloc)
		return f.node
	}
	if up.kids == nil {
		const few = 4
		if len(w.kids) < few {
			w.kids = w.kidSlabs.next(16 * few)
		}
		up.kids, w.kids = w.kids[:0:few], w.kids[few:]
	}
	f.node = w.alloc()
	f.node.step = *f.step
	up.kids = append(up.kids, f.node)
	return f.node
}

// mark sets flags on the field. The root is not a field.
func (w *walk) mark(f *frame, which flags) {
	if f.up != nil {
		w.node(f).flags |= which
	}
}

// below returns the frame of a child; it is valid until the next call for the same
// depth. It is nil if the child is ignored.
func (w *walk) below(f *frame, s step) *frame {
	ignore, ignored := f.ignores(&s)
	if ignored {
		return nil
	}
	child := w.enter(f, ignore)
	child.own = s
	child.step = &child.own
	return child
}

// belowField is below for the step of a plan field, which is not copied.
func (w *walk) belowField(f *frame, field *planField) *frame {
	ignore, ignored := f.ignores(&field.step)
	if ignored {
		return nil
	}
	child := w.enter(f, ignore)
	child.step = &field.step
	return child
}

func (f *frame) ignores(s *step) (below *node, all bool) {
	if f.ignore == nil {
		return nil, false
	}
	below = f.ignore.get(s)
	return below, below != nil && below.flags&member != 0
}

// enter returns the frame of the next depth.
func (w *walk) enter(f *frame, ignore *node) *frame {
	depth := f.depth + 1
	if depth == len(w.frames) {
		w.frames = append(w.frames, &frame{up: f, depth: depth})
	}
	child := w.frames[depth]
	child.node, child.ignore = nil, ignore
	return child
}

func (w *walk) fail(f *frame, err error) {
	if w.err == nil {
		w.err = fmt.Errorf("%s: %w", f.path(), err)
	}
}

func (f *frame) path() string {
	if f.up == nil {
		return ""
	}
	return f.up.path() + f.step.element().String()
}

// presence marks a field that only one side has.
func (w *walk) presence(l, r operand, f *frame) {
	switch {
	case l.absent():
		w.mark(f, member)
	case r.absent():
		w.mark(f, removed)
	}
}

// diff compares two values of a Go type.
func (w *walk) diff(p *plan, l, r operand, f *frame) {
	if p == nil || p.t == nil {
		w.fail(f, errUndeclared)
		return
	}
	for p.kind == planPointer {
		l, r = deref(l), deref(r)
		p = p.element()
	}
	if p.kind == planGeneric {
		w.diffGeneric(p, l, r, f)
		return
	}
	l, r = nulled(p, l), nulled(p, r)
	switch p.kind {
	case planStruct:
		if p.t.fields.atomic || !w.diffFields(p, l, r, f) {
			w.leaf(p, l, r, f)
			return
		}
	case planStringMap:
		if p.t.fields.atomic || !w.diffStringMap(p, l, r, f) {
			w.leaf(p, l, r, f)
			return
		}
	case planMap:
		if p.t.fields.atomic || !w.diffMap(p, l, r, f) {
			w.leaf(p, l, r, f)
			return
		}
	case planList:
		if p.t.list.atomic || !w.diffList(p, l, r, f) {
			w.leaf(p, l, r, f)
			return
		}
	default:
		w.leaf(p, l, r, f)
		return
	}
	w.presence(l, r, f)
}

func deref(o operand) operand {
	if !o.set() {
		return o
	}
	if o.v.IsNil() {
		return operand{null: true}
	}
	return operand{v: o.v.Elem()}
}

// nulled turns nil maps and lists into null operands.
func nulled(p *plan, o operand) operand {
	switch p.kind {
	case planMap, planStringMap, planList, planBytes:
		if o.set() && o.v.IsNil() {
			return operand{null: true}
		}
	}
	return o
}

// leaf compares two scalars or atomic values.
func (w *walk) leaf(p *plan, l, r operand, f *frame) {
	switch {
	case l.absent():
		w.mark(f, member)
	case r.absent():
		w.mark(f, removed)
	case l.null || r.null:
		if l.null != r.null {
			w.mark(f, member)
		}
	case !equal(p.untyped(), l.v, r.v):
		w.mark(f, member)
	}
}

// diffFields compares structs. It returns false if neither has a field set.
func (w *walk) diffFields(p *plan, l, r operand, f *frame) (found bool) {
	for _, field := range p.fields {
		var lo, ro operand
		if l.set() {
			lo.v = field.get(l.v)
		}
		if r.set() {
			ro.v = field.get(r.v)
		}
		if lo.absent() && ro.absent() {
			continue
		}
		found = true
		if child := w.belowField(f, field); child != nil {
			w.diff(field.of(p), lo, ro, child)
		}
	}
	return found
}

// diffStringMap compares the most common maps: labels, annotations, data.
func (w *walk) diffStringMap(p *plan, l, r operand, f *frame) bool {
	var lm, rm map[string]string
	if l.set() {
		lm = l.v.Interface().(map[string]string)
	}
	if r.set() {
		rm = r.v.Interface().(map[string]string)
	}
	if len(lm) == 0 && len(rm) == 0 {
		return false
	}
	var changed []string
	for k, v := range rm {
		if old, ok := lm[k]; !ok || old != v {
			changed = append(changed, k)
		}
	}
	for k := range lm {
		if _, ok := rm[k]; !ok {
			changed = append(changed, k)
		}
	}
	slices.Sort(changed)
	for _, k := range changed {
		child := w.below(f, fieldStep(k))
		if child == nil {
			continue
		}
		if p.t.field(k) == nil {
			w.fail(child, errUndeclared)
		}
		if _, ok := rm[k]; ok {
			w.mark(child, member)
		} else {
			w.mark(child, removed)
		}
	}
	return true
}

// mapEntry is an entry of a map.
type mapEntry struct {
	name string
	v    reflect.Value
}

func mapEntries(o operand) []mapEntry {
	if !o.set() || o.v.Len() == 0 {
		return nil
	}
	entries := make([]mapEntry, 0, o.v.Len())
	for it := o.v.MapRange(); it.Next(); {
		entries = append(entries, mapEntry{it.Key().String(), it.Value()})
	}
	slices.SortFunc(entries, func(a, b mapEntry) int { return strings.Compare(a.name, b.name) })
	return entries
}

// diffMap compares maps. It returns false if neither has an entry.
func (w *walk) diffMap(p *plan, l, r operand, f *frame) bool {
	ls, rs := mapEntries(l), mapEntries(r)
	if len(ls) == 0 && len(rs) == 0 {
		return false
	}
	for len(ls) > 0 || len(rs) > 0 {
		var name string
		var lo, ro operand
		if len(rs) == 0 || len(ls) > 0 && ls[0].name <= rs[0].name {
			name, lo.v = ls[0].name, ls[0].v
			ls = ls[1:]
		} else {
			name = rs[0].name
		}
		if len(rs) > 0 && rs[0].name == name {
			ro.v, rs = rs[0].v, rs[1:]
		}
		child := w.below(f, fieldStep(name))
		if child == nil {
			continue
		}
		e := p.element()
		if p.t.named(name) {
			e = p.owner.get(p.rt.Elem(), p.t.field(name))
		} else if p.t.elem() == nil {
			e = nil
		}
		w.diff(e, lo, ro, child)
	}
	return true
}

// listItem is an item of a list with what tells it from others.
type listItem struct {
	keys  []keyVal
	index int
}

// diffList compares lists whose items have identities. It is false if neither
// has an item.
func (w *walk) diffList(p *plan, l, r operand, f *frame) bool {
	ln, rn := 0, 0
	if l.set() {
		ln = l.v.Len()
	}
	if r.set() {
		rn = r.v.Len()
	}
	if ln == 0 && rn == 0 {
		return false
	}
	ls, err := p.items(l.v, ln)
	if err == nil {
		var rs []listItem
		if rs, err = p.items(r.v, rn); err == nil {
			elem := p.element()
			w.diffItems(p.t, ls, rs, f, listOps{
				diff: func(i, j int, child *frame) {
					var lo, ro operand
					if i >= 0 {
						lo.v = l.v.Index(i)
					}
					if j >= 0 {
						ro.v = r.v.Index(j)
					}
					w.diff(elem, lo, ro, child)
				},
				equal: func(i, j int) bool { return equal(elem.untyped(), l.v.Index(i), r.v.Index(j)) },
			})
		}
	}
	if err != nil {
		w.fail(f, err)
	}
	return true
}

// listOps compares items of two lists by their indexes; -1 stands for no item.
type listOps struct {
	diff  func(i, j int, child *frame)
	equal func(i, j int) bool
}

// diffItems compares the items of two lists, sorted by their keys or values. Items with
// the same keys on one side count as one field.
func (w *walk) diffItems(t *typ, ls, rs []listItem, f *frame, ops listOps) {
	kind := byKeys
	if len(t.list.keys) == 0 {
		kind = byValue
	}
	for len(ls) > 0 || len(rs) > 0 {
		c := 0
		switch {
		case len(rs) == 0:
			c = -1
		case len(ls) == 0:
			c = 1
		default:
			c = compareKeys(ls[0].keys, rs[0].keys)
		}
		var lg, rg []listItem
		if c <= 0 {
			lg, ls = group(ls)
		}
		if c >= 0 {
			rg, rs = group(rs)
		}
		s := step{kind: kind}
		if len(lg) > 0 {
			s.keys = lg[0].keys
		} else {
			s.keys = rg[0].keys
		}
		child := w.below(f, s)
		if child == nil {
			continue
		}
		switch {
		case len(lg) <= 1 && len(rg) <= 1:
			i, j := -1, -1
			if len(lg) > 0 {
				i = lg[0].index
			}
			if len(rg) > 0 {
				j = rg[0].index
			}
			ops.diff(i, j, child)
		case len(lg) > 1 && len(rg) > 1:
			same := func(a, b listItem) bool { return ops.equal(a.index, b.index) }
			if !slices.EqualFunc(lg, rg, same) {
				w.mark(child, member)
			}
		case len(lg) > 1:
			if len(rg) > 0 {
				ops.diff(-1, rg[0].index, child)
			}
			w.mark(child, removed)
		default:
			if len(lg) > 0 {
				ops.diff(lg[0].index, -1, child)
			}
			w.mark(child, member)
		}
	}
}

// group splits off the items that have the same keys as the first.
func group(items []listItem) (same, rest []listItem) {
	n := 1
	for n < len(items) && compareKeys(items[0].keys, items[n].keys) == 0 {
		n++
	}
	return items[:n], items[n:]
}

func sortItems(items []listItem) []listItem {
	slices.SortStableFunc(items, func(a, b listItem) int { return compareKeys(a.keys, b.keys) })
	return items
}

// items returns the items of a list, sorted by their keys.
func (p *plan) items(list reflect.Value, n int) ([]listItem, error) {
	if n == 0 {
		return nil, nil
	}
	items := make([]listItem, n)
	all := make([]keyVal, 0, n*max(1, len(p.keys)))
	for i := range n {
		item, start := list.Index(i), len(all)
		if p.keys == nil {
			all = append(all, keyVal{val: scalar{kind: isString, s: item.String()}})
		}
		for _, key := range p.keys {
			switch v := key.field.get(item); {
			case v.IsValid():
				s, err := goScalar(p, v)
				if err != nil {
					return nil, err
				}
				all = append(all, keyVal{key.name, s})
			case key.def != nil:
				all = append(all, keyVal{key.name, scalarOf(key.def)})
			}
		}
		if len(all) == start {
			return nil, errNoKeys
		}
		items[i] = listItem{all[start:len(all):len(all)], i}
	}
	return sortItems(items), nil
}

// goScalar returns a key of an item.
func goScalar(p *plan, v reflect.Value) (scalar, error) {
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.String:
		return scalar{kind: isString, s: v.String()}, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return scalar{kind: isInt, n: v.Int()}, nil
	}
	u, err := p.owner.get(v.Type(), nil).unstructured(v)
	return scalarOf(u), err
}

// diffGeneric compares two Go values in their JSON form.
func (w *walk) diffGeneric(p *plan, l, r operand, f *frame) {
	if p.convert != nil && l.set() && r.set() && same(l.v, r.v) {
		return
	}
	if p.t.forms() == scalarForm && l.absent() != r.absent() {
		w.presence(l, r, f)
		return
	}
	lo, err := p.loose(l)
	if err == nil {
		var ro loose
		if ro, err = p.loose(r); err == nil {
			w.diffLoose(p.t, lo, ro, f)
			return
		}
	}
	w.fail(f, err)
}

func (p *plan) loose(o operand) (loose, error) {
	if !o.set() {
		return loose{there: o.null}, nil
	}
	u, err := p.unstructured(o.v)
	return loose{u, true}, err
}

// goOperand returns an object as an operand.
func goOperand(obj any) operand { return operand{v: reflect.ValueOf(obj).Elem()} }
