package managedfields

import (
	"errors"
	"fmt"
	"slices"
)

// errNeedsLibrary says that the merge has to be done by structured-merge-diff.
var errNeedsLibrary = errors.New("the outcome depends on who owns what")

// merger merges a configuration into an object with the same result as
// structured-merge-diff, but without looking at owners. The result shares memory with both.
//
// It gives up on null, and on a map or list that is empty in the configuration and not in
// the object: whether that stays depends on the owners of the fields in it.
type merger struct{ err error }

func (m *merger) merge(t *typ, live, config loose) any {
	switch {
	case t == nil:
		m.err = errNeedsLibrary
		return nil
	case !config.there:
		return live.v
	case config.v == nil:
		m.err = errNeedsLibrary
		return nil
	case !live.there:
		return config.v
	case isEmpty(config.v) && !isEmpty(live.v):
		m.err = errNeedsLibrary
		return nil
	}
	switch want := config.v.(type) {
	case map[string]any:
		have, _ := live.v.(map[string]any)
		if t.fields == nil {
			m.err = errNeedsLibrary
			return nil
		}
		if t.fields.atomic || len(have) == 0 {
			return want
		}
		out := make(map[string]any, len(have)+len(want))
		for name, v := range have {
			out[name] = v
		}
		for name, v := range want {
			old, there := have[name]
			out[name] = m.merge(t.field(name), loose{old, there}, loose{v, true})
		}
		return out
	case []any:
		have, _ := live.v.([]any)
		if t.list == nil {
			m.err = errNeedsLibrary
			return nil
		}
		if t.list.atomic || len(have) == 0 {
			return want
		}
		return m.list(t, have, want)
	}
	return config.v
}

// list merges two lists of type map or set. Items of both lists are in the order of the
// configuration; items that only the object has keep their places between them.
func (m *merger) list(t *typ, have, want []any) []any {
	hs, err := t.unsortedItems(have)
	if err != nil {
		m.err = errNeedsLibrary
		return nil
	}
	ws, err := t.unsortedItems(want)
	if err != nil {
		m.err = errNeedsLibrary
		return nil
	}
	sortedHave, sortedWant := sortedByKeys(hs), sortedByKeys(ws)
	last := -1
	for _, w := range ws {
		at, final := places(sortedHave, w)
		if at >= 0 && (at <= last || final > at) {
			// The order differs from the object's, or the object has duplicates.
			m.err = errNeedsLibrary
			return nil
		}
		last = max(last, at)
	}
	elem := t.item()
	out := make([]any, 0, len(have)+len(want))
	// left reports whether an item of the configuration with the same keys is still to come.
	left := func(item listItem) bool {
		_, final := places(sortedWant, item)
		return final >= len(want)-len(ws)
	}
	for len(hs) > 0 || len(ws) > 0 {
		switch {
		case len(ws) > 0 && len(hs) > 0 && compareKeys(hs[0].keys, ws[0].keys) == 0:
			out = append(out, m.merge(elem, loose{have[hs[0].index], true}, loose{want[ws[0].index], true}))
			hs, ws = hs[1:], ws[1:]
		case len(hs) > 0 && !left(hs[0]):
			out = append(out, have[hs[0].index])
			hs = hs[1:]
		default:
			out = append(out, want[ws[0].index])
			ws = ws[1:]
		}
	}
	return out
}

// sortedByKeys returns items in the order of their keys, those with the same keys in the
// order of the list.
func sortedByKeys(items []listItem) []listItem {
	return slices.SortedStableFunc(slices.Values(items), func(a, b listItem) int { return compareKeys(a.keys, b.keys) })
}

// places returns the first and the last index in the list of the items with the keys of
// another, -1 if there is none.
func places(sorted []listItem, item listItem) (first, last int) {
	byKeys := func(o, item listItem) int { return compareKeys(o.keys, item.keys) }
	at, found := slices.BinarySearchFunc(sorted, item, byKeys)
	if !found {
		return -1, -1
	}
	end, _ := slices.BinarySearchFunc(sorted[at:], item, func(o, item listItem) int {
		if byKeys(o, item) > 0 {
			return 1
		}
		return -1
	})
	return sorted[at].index, sorted[at+end-1].index
}

// unsortedItems returns the items of a list with their keys, unsorted.
func (t *typ) unsortedItems(list []any) ([]listItem, error) {
	items := make([]listItem, len(list))
	for i, v := range list {
		keys, err := t.itemKeys(v)
		if err != nil {
			return nil, err
		}
		items[i] = listItem{keys, i}
	}
	return items, nil
}

// checkParts is checkBelow for the fields of an object except metadata, which was validated
// before; only lists the fields, nil stands for all.
func (t *typ) checkParts(obj map[string]any, twice bool, only []string) error {
	for name, v := range obj {
		if name == "apiVersion" || name == "kind" || name == "metadata" || only != nil && !slices.Contains(only, name) {
			continue
		}
		if err := t.field(name).checkBelow(v, twice); err != nil {
			return fmt.Errorf(".%s: %w", name, err)
		}
	}
	return nil
}

// checkBelow returns the first error in a value that the comparison does not walk. With
// twice, lists may have duplicate items.
func (t *typ) checkBelow(v any, twice bool) error {
	if t == nil {
		return errUndeclared
	}
	if err := t.check(v); err != nil {
		return err
	}
	switch v := v.(type) {
	case map[string]any:
		for name, e := range v {
			if err := t.field(name).checkBelow(e, twice); err != nil {
				return err
			}
		}
	case []any:
		if !t.list.atomic {
			items, err := t.items(v)
			if err != nil {
				return err
			}
			for i := 1; i < len(items) && !twice; i++ {
				if compareKeys(items[i-1].keys, items[i].keys) == 0 {
					return errTwice
				}
			}
		}
		for _, e := range v {
			if err := t.item().checkBelow(e, twice); err != nil {
				return err
			}
		}
	}
	return nil
}
