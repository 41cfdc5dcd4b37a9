package managedfields

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"unsafe"
)

var (
	errNoKeys     = errors.New("an item of a list has none of the keys that tell items apart")
	errTwice      = errors.New("an item of a list is given twice")
	errUndeclared = errors.New("field not declared in schema")
)

// operand is the value of a field on one side: set, null or absent.
type operand struct {
	v    reflect.Value
	null bool
}

func (o operand) absent() bool { return !o.null && !o.v.IsValid() }
func (o operand) set() bool    { return !o.null && o.v.IsValid() }

// address returns where a value is, nil if that is not known.
func (o operand) address() unsafe.Pointer {
	if !o.v.IsValid() || !o.v.CanAddr() {
		return nil
	}
	return o.v.Addr().UnsafePointer()
}

// isUnset reports whether the field is sure to be absent in a struct at an address. Without
// one it is, if there is no struct.
func (f *planField) isUnset(o operand, address unsafe.Pointer) bool {
	if address == nil {
		return !o.set()
	}
	return f.unset(address)
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
	la, ra := l.address(), r.address()
	for _, field := range p.fields {
		if field.isUnset(l, la) && field.isUnset(r, ra) {
			continue
		}
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
		w.diff(p.entry(name), lo, ro, child)
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
