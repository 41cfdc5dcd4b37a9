package managedfields

import (
	"fmt"
	"maps"
	"slices"

	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
)

// loose is a value of an unstructured object, which may be absent.
type loose struct {
	v     any
	there bool
}

func (o loose) operand() operand { return operand{null: o.there} }

// forms is a set of the forms that a schema type allows: map, scalar, list.
type forms uint8

const (
	mapForm forms = 1 << iota
	scalarForm
	listForm
)

func (t *typ) forms() (f forms) {
	if t.fields != nil {
		f |= mapForm
	}
	if t.scalar != nil {
		f |= scalarForm
	}
	if t.list != nil {
		f |= listForm
	}
	return f
}

func formOf(v any) forms {
	switch v.(type) {
	case nil:
		return 0
	case map[string]any:
		return mapForm
	case []any:
		return listForm
	}
	return scalarForm
}

// deduce returns the form of a value, or all forms of the type if the value is absent or
// null.
func (t *typ) deduce(o loose) forms {
	if f := formOf(o.v) & t.forms(); o.there && f != 0 {
		return f
	}
	return t.forms()
}

// check returns an error if a value does not match a type, without looking below it.
func (t *typ) check(v any) error {
	f := formOf(v)
	if f == 0 {
		return nil
	}
	if f&t.forms() == 0 {
		return fmt.Errorf("unexpected %T", v)
	}
	if f != scalarForm {
		return nil
	}
	ok := true
	switch s := scalarOf(v); *t.scalar {
	case smd.String:
		ok = s.kind == isString
	case smd.Numeric:
		ok = s.kind == isInt || s.kind == isFloat
	case smd.Boolean:
		ok = s.kind == isBool
	}
	if !ok {
		return fmt.Errorf("expected %s, got %T", *t.scalar, v)
	}
	return nil
}

// diffLoose compares two values of unstructured objects. If they have different forms,
// all fields of one are removed and all of the other added.
func (w *walk) diffLoose(t *typ, l, r loose, f *frame) {
	if t == nil {
		w.fail(f, errUndeclared)
		return
	}
	for _, o := range []loose{l, r} {
		if err := t.check(o.v); err != nil {
			w.fail(f, err)
			return
		}
	}
	lf, rf := t.deduce(l), t.deduce(r)
	var atomic bool
	switch {
	case !r.there:
		atomic = w.diffForm(t, lf, l, r, f)
	case !l.there || lf == rf:
		atomic = w.diffForm(t, rf, l, r, f)
	default:
		w.diffForm(t, lf, l, r, f)
		atomic = w.diffForm(t, rf, l, r, f)
	}
	if !atomic {
		w.presence(l.operand(), r.operand(), f)
	}
}

// diffForm compares two values as maps, scalars or lists. It returns true if the value is
// a single field, without fields below.
func (w *walk) diffForm(t *typ, form forms, l, r loose, f *frame) bool {
	switch {
	case form&mapForm != 0:
		lm, _ := l.v.(map[string]any)
		rm, _ := r.v.(map[string]any)
		if !t.fields.atomic && len(lm)+len(rm) > 0 {
			w.diffLooseMap(t, lm, rm, f)
			return false
		}
	case form&scalarForm != 0:
	default:
		ll, _ := l.v.([]any)
		rl, _ := r.v.([]any)
		if !t.list.atomic && len(ll)+len(rl) > 0 {
			w.diffLooseList(t, ll, rl, f)
			return false
		}
	}
	if form&scalarForm == 0 {
		for _, o := range []loose{l, r} {
			if err := t.checkBelow(o.v, true); err != nil {
				w.fail(f, err)
				return true
			}
		}
	}
	switch {
	case !l.there:
		w.mark(f, member)
	case !r.there:
		w.mark(f, removed)
	case !equalAny(l.v, r.v):
		w.mark(f, member)
	}
	return true
}

func (w *walk) diffLooseMap(t *typ, l, r map[string]any, f *frame) {
	names := slices.AppendSeq(make([]string, 0, len(l)+len(r)), maps.Keys(r))
	for name := range l {
		if _, ok := r[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for i := range names {
		child := w.below(f, fieldStep(names[i]))
		if child == nil {
			continue
		}
		var lo, ro loose
		lo.v, lo.there = l[names[i]]
		ro.v, ro.there = r[names[i]]
		w.diffLoose(t.field(names[i]), lo, ro, child)
	}
}

func (w *walk) diffLooseList(t *typ, l, r []any, f *frame) {
	ls, err := t.items(l)
	if err != nil {
		w.fail(f, err)
		return
	}
	rs, err := t.items(r)
	if err != nil {
		w.fail(f, err)
		return
	}
	elem := t.item()
	w.diffItems(t, ls, rs, f, listOps{
		diff: func(i, j int, child *frame) {
			var lo, ro loose
			if i >= 0 {
				lo = loose{l[i], true}
			}
			if j >= 0 {
				ro = loose{r[j], true}
			}
			w.diffLoose(elem, lo, ro, child)
		},
		equal: func(i, j int) bool { return equalAny(l[i], r[j]) },
	})
}

// items returns the items of a list, sorted by their keys or values.
func (t *typ) items(list []any) ([]listItem, error) {
	items := make([]listItem, len(list))
	for i, v := range list {
		keys, err := t.itemKeys(v)
		if err != nil {
			return nil, err
		}
		items[i] = listItem{keys, i}
	}
	return sortItems(items), nil
}

func (t *typ) itemKeys(v any) ([]keyVal, error) {
	if len(t.list.keys) == 0 {
		if formOf(v) != scalarForm {
			return nil, fmt.Errorf("unexpected %T in a set", v)
		}
		return []keyVal{{val: scalarOf(v)}}, nil
	}
	fields, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("unexpected %T in a list of objects", v)
	}
	keys := make([]keyVal, 0, len(t.list.keys))
	for _, key := range t.list.keys {
		if v, ok := fields[key.name]; ok {
			keys = append(keys, keyVal{key.name, scalarOf(v)})
		} else if key.def != nil {
			keys = append(keys, keyVal{key.name, scalarOf(key.def)})
		}
	}
	if len(keys) == 0 {
		return nil, errNoKeys
	}
	return keys, nil
}

// equalAny compares two unstructured values. Numbers are equal if they have the same
// value, whatever their types.
func equalAny(l, r any) bool {
	switch l := l.(type) {
	case nil:
		return r == nil
	case string:
		r, ok := r.(string)
		return ok && l == r
	case map[string]any:
		r, ok := r.(map[string]any)
		if !ok || len(l) != len(r) {
			return false
		}
		for k, v := range l {
			if other, ok := r[k]; !ok || !equalAny(v, other) {
				return false
			}
		}
		return true
	case []any:
		r, ok := r.([]any)
		return ok && slices.EqualFunc(l, r, equalAny)
	}
	if formOf(r) != scalarForm {
		return false
	}
	a, b := scalarOf(l), scalarOf(r)
	return a.compare(&b) == 0
}

// own adds the fields of an applied value to the set that the applier will own: leaves,
// items of lists, and entries of maps that the schema does not name.
func (w *walk) own(t *typ, v any, f *frame) {
	if t == nil {
		w.fail(f, errUndeclared)
		return
	}
	if err := t.check(v); err != nil {
		w.fail(f, err)
		return
	}
	form := t.deduce(loose{v, true})
	switch {
	case form&mapForm != 0:
		fields, _ := v.(map[string]any)
		if t.fields.atomic {
			w.ownAtomic(t, v, f)
			return
		}
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			child := w.below(f, fieldStep(name))
			if child == nil {
				continue
			}
			w.own(t.field(name), fields[name], child)
			below, isMap := fields[name].(map[string]any)
			if fields[name] == nil || isMap && len(below) == 0 || !t.named(name) {
				w.mark(child, member)
			}
		}
	case form&scalarForm != 0:
		w.mark(f, member)
	default:
		list, _ := v.([]any)
		if t.list.atomic {
			w.ownAtomic(t, v, f)
			return
		}
		items, err := t.items(list)
		if err != nil {
			w.fail(f, err)
			return
		}
		kind := byKeys
		if len(t.list.keys) == 0 {
			kind = byValue
		}
		for len(items) > 0 {
			var same []listItem
			same, items = group(items)
			child := w.below(f, step{kind: kind, keys: same[0].keys})
			if child == nil {
				continue
			}
			if len(same) > 1 {
				w.fail(child, errTwice)
			}
			w.own(t.item(), list[same[0].index], child)
			w.mark(child, member)
		}
	}
}

func (w *walk) ownAtomic(t *typ, v any, f *frame) {
	if err := t.checkBelow(v, false); err != nil {
		w.fail(f, err)
	}
	w.mark(f, member)
}
