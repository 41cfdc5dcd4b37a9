package patch

import (
	"fmt"
	"reflect"
	"slices"
	"sort"

	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// The lists of strategic merge patches: items are merged by the value of their merge key,
// deleted by directives, and sorted by the order of the patch and that of the object.

// mergeField merges a list as the strategy of its field says.
func mergeField(original, patch []any, meta strategicpatch.LookupPatchMeta, strategy, mergeKey string, deletes bool) ([]any, error) {
	if strategy != "merge" && !deletes {
		return patch, nil
	}
	if len(original) == 0 && len(patch) == 0 {
		return original, nil
	}
	kind, err := kindOf(original, patch)
	if err != nil {
		return nil, err
	}
	var merged []any
	if kind != reflect.Map {
		if deletes {
			return without(original, patch), nil
		}
		merged = distinct(slices.Concat(original, patch))
	} else {
		if mergeKey == "" {
			return nil, fmt.Errorf("cannot merge lists without merge key for %s", meta.Name())
		}
		if original, patch, err = obey(original, patch, mergeKey); err != nil {
			return nil, err
		}
		if merged, err = mergeItems(original, patch, mergeKey, meta); err != nil {
			return nil, err
		}
	}
	of, rest, err := partition(merged, patch, mergeKey)
	if err != nil {
		return nil, err
	}
	return ordered(of, rest, patch, original, mergeKey, kind)
}

// obey does what directives among the items of a patch say, and returns the other items.
func obey(original, patch []any, mergeKey string) (left, items []any, err error) {
	items = []any{}
	replace := false
	d := deletion{list: original, mergeKey: mergeKey}
	for _, v := range patch {
		m := v.(map[string]any)
		switch what, ok := m[directive]; {
		case !ok:
			items = append(items, v)
		case what == "delete":
			value, ok := m[mergeKey]
			if !ok {
				return nil, nil, mergepatch.ErrNoMergeKey(m, mergeKey)
			}
			d.drop(value)
		case what == "replace":
			replace = true
		case what == "merge":
			return nil, nil, fmt.Errorf("merging lists cannot yet be specified in the patch")
		default:
			return nil, nil, mergepatch.ErrBadPatchType(what, m)
		}
	}
	if replace {
		return items, nil, nil
	}
	return d.left(), items, nil
}

// deletion deletes items from a list in place. What it leaves behind the rest is what
// deleting one item after the other leaves: the last item of the list at that time. Where a
// patch gives an order, that is part of the order of the object.
type deletion struct {
	list     []any
	mergeKey string
	at       map[any][]int // where items with a key are; nil before the first deletion
	gone     []bool
	last     int   // the index of the last item that is left
	behind   []any // from the end of the list
}

func (d *deletion) drop(value any) {
	if d.at == nil {
		d.at, d.gone, d.last = map[any][]int{}, make([]bool, len(d.list)), len(d.list)-1
		for i, v := range d.list {
			if value, ok := v.(map[string]any)[d.mergeKey]; ok {
				d.at[hashable(value)] = append(d.at[hashable(value)], i)
			}
		}
	}
	for _, i := range d.at[hashable(value)] {
		d.behind = append(d.behind, d.list[d.last])
		for d.gone[i] = true; d.last >= 0 && d.gone[d.last]; {
			d.last--
		}
	}
	delete(d.at, hashable(value))
}

func (d *deletion) left() []any {
	if len(d.behind) == 0 {
		return d.list
	}
	n := 0
	for i, v := range d.list {
		if !d.gone[i] {
			d.list[n] = v
			n++
		}
	}
	for i, v := range d.behind {
		d.list[len(d.list)-1-i] = v
	}
	return d.list[:n]
}

// hashable returns what stands for a value in an index. Maps and lists are no values of
// keys, and equal to nothing.
func hashable(v any) any {
	switch v.(type) {
	case map[string]any, []any:
		return new(byte)
	}
	return v
}

// mergeItems merges each item of a patch into the first with the same key, or adds it.
func mergeItems(original, patch []any, mergeKey string, meta strategicpatch.LookupPatchMeta) ([]any, error) {
	first := indexBy(original, mergeKey)
	for _, v := range patch {
		m := v.(map[string]any)
		value, ok := m[mergeKey]
		if !ok {
			return nil, mergepatch.ErrNoMergeKey(m, mergeKey)
		}
		i, ok := first[hashable(value)]
		if !ok {
			first[hashable(value)] = len(original)
			original = append(original, v)
			continue
		}
		merged, err := mergeMap(original[i].(map[string]any), m, meta)
		if err != nil {
			return nil, err
		}
		original[i] = merged
		if _, ok := merged[mergeKey]; !ok {
			delete(first, hashable(value))
		}
	}
	return original, nil
}

// indexBy returns where the first item with each value of the key is.
func indexBy(list []any, mergeKey string) map[any]int {
	first := make(map[any]int, len(list))
	for i, v := range list {
		if value, ok := v.(map[string]any)[mergeKey]; ok {
			if _, ok := first[hashable(value)]; !ok {
				first[hashable(value)] = i
			}
		}
	}
	return first
}

// partition splits a list into items that another has, and those that it has not.
func partition(list, by []any, mergeKey string) (of, rest []any, err error) {
	of, rest = make([]any, 0, len(list)), make([]any, 0, len(list))
	known := map[any]struct{}{}
	wrong := -1 // the index of an item that has no key
	for i, v := range by {
		if mergeKey == "" {
			known[v] = struct{}{}
			continue
		}
		m, ok := v.(map[string]any)
		if !ok {
			wrong = i
			break
		}
		if value, ok := m[mergeKey]; ok {
			known[hashable(value)] = struct{}{}
		}
	}
	for _, v := range list {
		value := v
		if mergeKey != "" {
			m, ok := v.(map[string]any)
			if !ok {
				return nil, nil, mergepatch.ErrBadArgType(m, v)
			}
			if value, ok = m[mergeKey]; !ok {
				return nil, nil, mergepatch.ErrNoMergeKey(m, mergeKey)
			}
		}
		if _, ok := known[hashable(value)]; ok {
			of = append(of, v)
		} else if wrong >= 0 {
			return nil, nil, fmt.Errorf("value for key %v is not a map", wrong)
		} else {
			rest = append(rest, v)
		}
	}
	return of, rest, nil
}

// ordered sorts the items of a patch and those of the object alone, and puts the latter
// between the former in the order of the object.
func ordered(of, rest, order, was []any, mergeKey string, kind reflect.Kind) ([]any, error) {
	of, err := sortBy(of, order, mergeKey, kind)
	if err != nil {
		return nil, err
	}
	if rest, err = sortBy(rest, was, mergeKey, kind); err != nil {
		return nil, err
	}
	place := placeIn(was, mergeKey, kind)
	all := make([]any, 0, len(of)+len(rest))
	for len(of) > 0 && len(rest) > 0 {
		if l, r := place(rest[0]), place(of[0]); l >= 0 && r >= 0 && l < r {
			all, rest = append(all, rest[0]), rest[1:]
		} else {
			all, of = append(all, of[0]), of[1:]
		}
	}
	return append(append(all, of...), rest...), nil
}

// placeIn returns what tells where in a list an item with the same key is, -1 if nowhere.
func placeIn(list []any, mergeKey string, kind reflect.Kind) func(item any) int {
	key := func(item any) any {
		if kind != reflect.Map {
			return item
		}
		m, ok := item.(map[string]any)
		if !ok {
			return nil
		}
		return hashable(m[mergeKey])
	}
	first := make(map[any]int, len(list))
	for i, v := range list {
		if _, ok := first[key(v)]; !ok {
			first[key(v)] = i
		}
	}
	return func(item any) int {
		if i, ok := first[key(item)]; ok {
			return i
		}
		return -1
	}
}

func sortBy(list, order []any, mergeKey string, kind reflect.Kind) ([]any, error) {
	var deleted []any
	if kind == reflect.Map {
		for _, l := range [][]any{list, order} {
			for _, item := range l {
				m, ok := item.(map[string]any)
				if !ok {
					return nil, mergepatch.ErrBadArgType(m, item)
				}
				if _, ok := m[mergeKey]; !ok {
					return nil, mergepatch.ErrNoMergeKey(m, mergeKey)
				}
			}
		}
		var err error
		if list, deleted, err = splitDeletions(list); err != nil {
			return nil, err
		}
	}
	place := placeIn(order, mergeKey, kind)
	// Items without a place make this no order, and its outcome that of the algorithm.
	sort.SliceStable(list, func(i, j int) bool {
		if a := place(list[i]); a >= 0 {
			if b := place(list[j]); b >= 0 {
				return a < b
			}
		}
		return true
	})
	return append(list, deleted...), nil
}

// splitDeletions splits a list into items to keep and items to delete.
func splitDeletions(list []any) (kept, deleted []any, err error) {
	for _, v := range list {
		m, ok := v.(map[string]any)
		if !ok {
			return nil, nil, mergepatch.ErrBadArgType(m, v)
		}
		if m[directive] == "delete" {
			deleted = append(deleted, v)
		} else {
			kept = append(kept, v)
		}
	}
	return kept, deleted, nil
}

// kindOf returns what items of lists are.
func kindOf(lists ...[]any) (reflect.Kind, error) {
	var of reflect.Type
	for _, list := range lists {
		for _, v := range list {
			t := reflect.TypeOf(v)
			switch {
			case of == nil && t.Kind() == reflect.Slice: // null panics, as in the library
				return 0, mergepatch.ErrNoListOfLists
			case of == nil:
				of = t
			case of != t:
				return 0, fmt.Errorf("list element types are not identical: %v", fmt.Sprint(lists))
			}
		}
	}
	if of == nil {
		return 0, fmt.Errorf("no elements in any of the given slices")
	}
	return of.Kind(), nil
}

// without returns the values of a list that another does not have.
func without(list, gone []any) []any {
	drop := map[any]struct{}{}
	for _, v := range gone {
		drop[v] = struct{}{}
	}
	kept := make([]any, 0, len(list))
	for _, v := range list {
		if _, ok := drop[v]; !ok {
			kept = append(kept, v)
		}
	}
	return kept
}

// distinct returns the values of a list, each once.
func distinct(list []any) []any {
	seen := map[any]struct{}{}
	kept := list[:0]
	for _, v := range list {
		if _, ok := seen[v]; !ok {
			seen[v] = struct{}{}
			kept = append(kept, v)
		}
	}
	return kept
}
