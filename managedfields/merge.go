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

// list merges two lists of type map or set.
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
	inConfig, inLive, ok := pairs(hs, ws)
	if !ok {
		m.err = errNeedsLibrary
		return nil
	}
	elem := t.item()
	out := make([]any, 0, len(have)+len(want))
	mergeOrder(inConfig, inLive, func(h, w int) {
		switch {
		case w < 0:
			out = append(out, have[h])
		case h < 0:
			out = append(out, want[w])
		default:
			out = append(out, m.merge(elem, loose{have[h], true}, loose{want[w], true}))
		}
	})
	return out
}

// pairs returns, for each item of the object, the index of the item of the configuration with
// the same keys, and the other way round; -1 if there is none. It returns false if more than one
// item has the keys of one of the configuration.
func pairs(have, want []listItem) (inConfig, inLive []int, ok bool) {
	inConfig, inLive = make([]int, len(have)), make([]int, len(want))
	for i := range inConfig {
		inConfig[i] = -1
	}
	have, want = sortItems(slices.Clone(have)), sortItems(slices.Clone(want))
	for i, w := range want {
		if i > 0 && compareKeys(want[i-1].keys, w.keys) == 0 {
			return nil, nil, false
		}
		for len(have) > 0 && compareKeys(have[0].keys, w.keys) < 0 {
			have = have[1:]
		}
		inLive[w.index] = -1
		if len(have) == 0 || compareKeys(have[0].keys, w.keys) != 0 {
			continue
		}
		if len(have) > 1 && compareKeys(have[1].keys, w.keys) == 0 {
			return nil, nil, false
		}
		inConfig[have[0].index], inLive[w.index] = w.index, have[0].index
	}
	return inConfig, inLive, true
}

// mergeOrder calls add with the items of two lists in the order of the merged list, each with
// its indexes in the object and the configuration, -1 in the one that does not have it. Items of
// both come in the order of the configuration, items that only the object has in the order of the
// object between them. It is the order of structured-merge-diff (TestMergeOrderLikeStock), which
// needs time that grows with the square of the items if they are not sorted by their keys.
func mergeOrder(inConfig, inLive []int, add func(h, w int)) {
	shared := 0 // index in the configuration of the next item of both that was not added
	h, w := 0, 0
	for h < len(inConfig) || w < len(inLive) {
		for shared < len(inLive) && (shared < w || inLive[shared] < 0) {
			shared++
		}
		if h < len(inConfig) {
			at := inConfig[h]
			switch {
			case at < 0:
				add(h, -1)
				h++
				continue
			case shared < len(inLive) && at != w && at != shared:
				h++ // it is added where the configuration has it
				continue
			case at < w:
				h++ // it was added, and the configuration has only new items left
			}
		}
		if w < len(inLive) {
			add(inLive[w], w)
			if h < len(inConfig) && inConfig[h] == w {
				h++
			}
			w++
		}
	}
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
