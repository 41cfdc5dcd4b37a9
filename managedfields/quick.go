package managedfields

import (
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/apikeel/kelson/resource"
)

// prepare computes the fields that the applier will own, for confirm and change, the two
// shortcuts around structured-merge-diff. It returns false if neither can be used: if
// entries are in other versions, or if the configuration has fewer fields than last time,
// so that fields may have to be removed.
func (a *application) prepare() bool {
	m := a.m
	if a.types == nil || m.only != nil || a.who.manager == kubectl && lastApplied(a.live) != "" {
		return false
	}
	for i := range a.entries {
		e := &a.entries[i]
		if e.version != m.version || m.reconciled(*e) != e.set.tree() {
			return false
		}
		if e.owner == a.who {
			a.last = e
		}
	}
	w := &walk{}
	root := w.start(nil)
	w.own(a.types.typ, a.patch.Object, root)
	if w.err != nil {
		return false
	}
	a.fields = root.node.without(m.ignore).minus(m.strip, member)
	return a.last == nil || a.last.set.tree().within(a.fields)
}

// confirm handles the most frequent apply of controllers: all values of the configuration
// are in the object already. There are no conflicts, and only the applier's own entry can
// change. It returns false if that is not certain.
func (a *application) confirm() bool {
	live, err := a.m.convert(a.live, a.m.opts.Kind.GroupVersion())
	if err != nil {
		return false
	}
	config := make(map[string]any, len(a.patch.Object))
	for k, v := range a.patch.Object {
		if k != "apiVersion" && k != "kind" {
			config[k] = v
		}
	}
	if u, ok := live.(*unstructured.Unstructured); ok {
		// Elsewhere a map may have fields that the schema does not declare.
		if !holdsLoose(a.types.typ, u.Object, config) || a.types.typ.checkParts(u.Object, true, nil) != nil {
			return false
		}
	} else if !holds(a.types.plan(live), goOperand(live), config) {
		return false
	}
	a.own(nil)
	return true
}

// own gives the fields of the configuration to the applier.
func (a *application) own(when *metav1.Time) {
	cache := a.m.opts.Cache
	switch {
	case a.last == nil && !a.fields.empty():
		a.entries = append(a.entries, entry{owner: a.who, version: a.m.version, set: cache.encoded(a.fields), time: when})
		return
	case a.last == nil:
		return
	case !a.fields.within(a.last.set.tree()):
		a.last.set = cache.encoded(a.fields)
	}
	if when != nil {
		a.last.time = when
	}
}

// change merges a configuration that removes nothing, so that the result does not depend
// on other owners. It returns false if structured-merge-diff has to do it.
func (a *application) change(force bool) (resource.Object, bool) {
	m := a.m
	before, err := a.fieldsBefore()
	if err != nil {
		return nil, false
	}
	var mg merger
	after, _ := mg.merge(a.types.typ, loose{before, true}, loose{a.patch.Object, true}).(map[string]any)
	if mg.err != nil {
		return nil, false
	}
	w := &walk{}
	root := w.start(m.ignore)
	if !a.created { // where nobody can lose a field
		w.diffLoose(a.types.typ, loose{before, true}, loose{after, true}, root)
	}
	if w.err != nil {
		return nil, false
	}
	left := make([]*node, len(a.entries))
	for i := range a.entries {
		e := &a.entries[i]
		if e.owner == a.who {
			continue
		}
		if left[i] = e.set.tree().minus(root.node, touched); left[i] != e.set.tree() && !force {
			return nil, false
		}
	}
	if equalAny(before, after) {
		a.own(nil)
		return a.unchanged(), true
	}
	obj, err := a.objectOf(after)
	if err != nil {
		return nil, false
	}
	kept := make([]entry, 0, len(a.entries)+1)
	for i, e := range a.entries {
		switch {
		case e.owner == a.who:
			kept = append(kept, e)
			a.last = &kept[len(kept)-1]
		case left[i].empty():
		case left[i] != e.set.tree():
			e.set = m.opts.Cache.encoded(left[i])
			kept = append(kept, e)
		default:
			kept = append(kept, e)
		}
	}
	a.entries = kept
	a.own(stamp(a.now))
	resource.SetManagedFields(obj, encodeEntries(a.entries))
	return obj, true
}

// fieldsBefore returns the fields of the live object, which must not be changed. Those of an
// empty one are always the same.
func (a *application) fieldsBefore() (map[string]any, error) {
	m := a.m
	if !a.created {
		return m.fieldsOf(a.live)
	}
	if fields := m.empty.Load(); fields != nil {
		return *fields, nil
	}
	fields, err := m.fieldsOf(a.live)
	if err == nil {
		m.empty.Store(&fields)
	}
	return fields, err
}

// holds reports whether merging a configuration into a value is certain to leave the value
// unchanged. It returns false for null, and for an empty map or list if the value is not
// empty: the owner of an empty map does not own the fields in it, and may lose it with them.
func holds(p *plan, v operand, config any) bool {
	if p == nil || p.t == nil || config == nil {
		return false
	}
	for p.kind == planPointer {
		v = deref(v)
		p = p.element()
	}
	if v = nulled(p, v); !v.set() {
		return false
	}
	if isEmpty(config) && p.kind != planGeneric {
		return isEmptyGo(p, v.v)
	}
	switch p.kind {
	case planStruct:
		fields, ok := config.(map[string]any)
		if !ok || p.t.fields.atomic {
			break
		}
		n := 0
		for _, f := range p.fields {
			want, ok := fields[f.JsonName]
			if !ok {
				continue
			}
			n++
			if !holds(f.of(p), operand{v: f.get(v.v)}, want) {
				return false
			}
		}
		return n == len(fields)
	case planStringMap:
		fields, ok := config.(map[string]any)
		if !ok || p.t.fields.atomic {
			break
		}
		have := v.v.Interface().(map[string]string)
		for name, want := range fields {
			if value, ok := have[name]; !ok || want != any(value) {
				return false
			}
		}
		return true
	case planString:
		return config == any(v.v.String())
	case planBool:
		return config == any(v.v.Bool())
	case planInt:
		return equalAny(v.v.Int(), config)
	case planList:
		list, ok := config.([]any)
		if !ok || p.t.list.atomic {
			break
		}
		have, err := p.items(v.v, v.v.Len())
		elem := p.element()
		return err == nil && holdsItems(p.t, have, list, func(i int, want any) bool {
			return holds(elem, operand{v: v.v.Index(i)}, want)
		})
	}
	u, err := p.unstructured(v.v)
	return err == nil && holdsLoose(p.t, u, config)
}

// isEmpty reports whether a value is a map or list without content.
func isEmpty(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

// isEmptyGo is isEmpty for a Go value that is not null.
func isEmptyGo(p *plan, v reflect.Value) bool {
	switch p.kind {
	case planStruct:
		return !slices.ContainsFunc(p.fields, func(f *planField) bool { return f.get(v).IsValid() })
	case planMap, planStringMap, planList:
		return v.Len() == 0
	}
	return false
}

// holdsItems is holds for lists of type map or set. The order counts.
func holdsItems(t *typ, have []listItem, config []any, item func(i int, want any) bool) bool {
	last := -1
	for _, want := range config {
		keys, err := t.itemKeys(want)
		if err != nil {
			return false
		}
		at, found := slices.BinarySearchFunc(have, keys, func(i listItem, k []keyVal) int { return compareKeys(i.keys, k) })
		if !found || at+1 < len(have) && compareKeys(have[at+1].keys, keys) == 0 {
			return false
		}
		if have[at].index <= last || !item(have[at].index, want) {
			return false
		}
		last = have[at].index
	}
	return true
}

// holdsLoose is holds for unstructured values.
func holdsLoose(t *typ, v, config any) bool {
	if t == nil || v == nil || config == nil || isEmpty(config) && !isEmpty(v) {
		return false
	}
	switch want := config.(type) {
	case map[string]any:
		have, ok := v.(map[string]any)
		if !ok || t.fields == nil {
			return false
		}
		if t.fields.atomic {
			break
		}
		for name, w := range want {
			value, ok := have[name]
			if !ok || !holdsLoose(t.field(name), value, w) {
				return false
			}
		}
		return true
	case []any:
		have, ok := v.([]any)
		if !ok || t.list == nil {
			return false
		}
		if t.list.atomic {
			break
		}
		items, err := t.items(have)
		elem := t.item()
		return err == nil && holdsItems(t, items, want, func(i int, w any) bool { return holdsLoose(elem, have[i], w) })
	}
	return equalAny(v, config)
}
