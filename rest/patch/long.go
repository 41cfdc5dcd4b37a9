package patch

import (
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Here and in longlist.go strategic merge patches are applied with an index of each list by
// its merge key. Package strategicpatch searches the whole list for each item, also in the
// comparisons of its sort: a patch of 67 KB that orders 4,000 variables took ten seconds.
// Results and errors are those of strategicpatch, also for lists that have a key twice
// (TestLongLists compares both); objects and patches without a long list are left to it.

// longList is from how many items on a list is not left to the library.
const longList = 100

const (
	directive      = "$patch"
	retainKeys     = "$retainKeys"
	deletionPrefix = "$deleteFromPrimitiveList"
	orderPrefix    = "$setElementOrder"
)

// isLong reports whether a value has a list that is long.
func isLong(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for _, value := range v {
			if isLong(value) {
				return true
			}
		}
	case []any:
		if len(v) >= longList {
			return true
		}
		for _, item := range v {
			if isLong(item) {
				return true
			}
		}
	}
	return false
}

// mergeLong is strategicpatch.StrategicMergeMapPatch.
func mergeLong(original, patch map[string]any, tags any) (map[string]any, error) {
	meta, err := strategicpatch.NewPatchMetaFromStruct(tags)
	if err != nil {
		return nil, err
	}
	return mergeMap(original, patch, meta)
}

func mergeMap(original, patch map[string]any, meta strategicpatch.LookupPatchMeta) (map[string]any, error) {
	if v, ok := patch[directive]; ok {
		switch v {
		case "replace":
			delete(patch, directive)
			return patch, nil
		case "delete":
			return map[string]any{}, nil
		}
		return nil, mergepatch.ErrBadPatchType(v, patch)
	}
	if original == nil {
		original = map[string]any{}
	}
	if err := retain(original, patch); err != nil {
		return nil, err
	}
	if err := mergeOrdered(original, patch, meta); err != nil {
		return nil, err
	}
	for k, value := range patch {
		deletes := strings.HasPrefix(k, deletionPrefix)
		if deletes {
			var ok bool
			if k, ok = strings.CutPrefix(k, deletionPrefix+"/"); !ok {
				return nil, mergepatch.ErrBadPatchFormatForPrimitiveList
			}
		}
		if value == nil {
			delete(original, k)
			continue
		}
		was, ok := original[k]
		isMap, isList := reflect.TypeOf(value).Kind() == reflect.Map, reflect.TypeOf(value).Kind() == reflect.Slice
		var err error
		switch {
		case !ok || reflect.TypeOf(was) != reflect.TypeOf(value):
			if !deletes {
				discardNulls(value)
				take(original, k, value)
			}
		case isMap:
			sub, at, lookupErr := meta.LookupPatchMetadataForStruct(k)
			if lookupErr != nil {
				return nil, lookupErr
			}
			strategy, strategyErr := strategyOf(at)
			if strategyErr != nil {
				return nil, strategyErr
			}
			if original[k] = value; strategy != "replace" {
				original[k], err = mergeMap(was.(map[string]any), value.(map[string]any), sub)
			}
		case isList:
			sub, at, lookupErr := meta.LookupPatchMetadataForSlice(k)
			if lookupErr != nil {
				return nil, lookupErr
			}
			strategy, strategyErr := strategyOf(at)
			if strategyErr != nil {
				return nil, strategyErr
			}
			original[k], err = mergeField(was.([]any), value.([]any), sub, strategy, at.GetPatchMergeKey(), deletes)
		default:
			take(original, k, value)
		}
		if err != nil {
			return nil, err
		}
	}
	return original, nil
}

// take sets a field to the value of a patch, without directives.
func take(original map[string]any, k string, value any) {
	if v, keep := withoutDirectives(value); keep {
		original[k] = v
	} else {
		delete(original, k)
	}
}

// strategyOf returns how a field is merged, apart from retainKeys.
func strategyOf(at strategicpatch.PatchMeta) (string, error) {
	switch all := at.GetPatchStrategies(); len(all) {
	case 0:
		return "", nil
	case 1:
		if all[0] == "retainKeys" {
			return "", nil
		}
		return all[0], nil
	case 2:
		switch {
		case all[0] == "retainKeys":
			return all[1], nil
		case all[1] == "retainKeys":
			return all[0], nil
		}
		return "", fmt.Errorf("unexpected patch strategy: %v", all)
	default:
		return "", fmt.Errorf("unexpected patch strategy: %v", all)
	}
}

// retain drops the fields of an object that $retainKeys does not name.
func retain(original, patch map[string]any) error {
	keys, ok := patch[retainKeys]
	if !ok {
		return nil
	}
	delete(patch, retainKeys)
	list, ok := keys.([]any)
	if !ok {
		return mergepatch.ErrBadPatchFormatForRetainKeys
	}
	named := map[any]struct{}{}
	for _, v := range list {
		named[v] = struct{}{}
	}
	for k, v := range patch {
		if _, ok := named[k]; !ok && v != nil && !strings.HasPrefix(k, deletionPrefix) && !strings.HasPrefix(k, orderPrefix) {
			return mergepatch.ErrBadPatchFormatForRetainKeys
		}
	}
	for k := range original {
		if _, ok := named[k]; !ok {
			delete(original, k)
		}
	}
	return nil
}

// mergeOrdered merges the lists that have an order in the patch.
func mergeOrdered(original, patch map[string]any, meta strategicpatch.LookupPatchMeta) error {
	for key, value := range patch {
		if !strings.HasPrefix(key, orderPrefix) {
			continue
		}
		delete(patch, key)
		order, ok := value.([]any)
		if !ok {
			return mergepatch.ErrBadArgType(order, value)
		}
		k, ok := strings.CutPrefix(key, orderPrefix+"/")
		if !ok {
			return mergepatch.ErrBadPatchFormatForSetElementOrderList
		}
		was, had := original[k]
		wanted, gives := patch[k]
		var list, change []any
		if list, ok = was.([]any); had && !ok {
			return mergepatch.ErrBadArgType(list, was)
		}
		if change, ok = wanted.([]any); gives && !ok {
			return mergepatch.ErrBadArgType(change, wanted)
		}
		sub, at, err := meta.LookupPatchMetadataForSlice(k)
		if err != nil {
			return err
		}
		strategy, err := strategyOf(at)
		if err != nil {
			return err
		}
		mergeKey := at.GetPatchMergeKey()
		if err := checkOrder(change, order, mergeKey); err != nil {
			return err
		}
		before := list // as the library has it: the merged list may share its memory
		var merged []any
		switch {
		case had && gives:
			if merged, err = mergeField(list, change, sub, strategy, mergeKey, false); err != nil {
				return err
			}
		case had:
			merged = list
		case gives:
			v, _ := withoutDirectives(change)
			merged = v.([]any)
		default:
			continue
		}
		of, rest, err := partition(merged, order, mergeKey)
		if err != nil {
			return err
		}
		kind, err := kindOf(before, change)
		if err != nil {
			return err
		}
		if original[k], err = ordered(of, rest, order, before, mergeKey, kind); err != nil {
			return err
		}
		delete(patch, k)
	}
	return nil
}

// checkOrder checks that items of a patch are in the order that it gives.
func checkOrder(change, order []any, mergeKey string) error {
	if len(order) == 0 || len(change) == 0 {
		return nil
	}
	kept := change
	if mergeKey != "" {
		var err error
		if kept, _, err = splitDeletions(change); err != nil {
			return err
		}
	}
	i, j := 0, 0
	for i < len(kept) && j < len(order) {
		if m, ok := kept[i].(map[string]any); ok {
			if _, ok := m[directive]; ok {
				i++
				continue
			}
		}
		same, err := sameKey(kept[i], order[j], mergeKey)
		if err != nil {
			return err
		}
		if same {
			i++
		}
		j++
	}
	if i < len(kept) && j >= len(order) {
		//lint:ignore ST1005 the words that clients know
		return fmt.Errorf("The order in patch list:\n%v\n doesn't match %s list:\n%v\n", change, orderPrefix, order)
	}
	return nil
}

func sameKey(a, b any, mergeKey string) (bool, error) {
	if mergeKey == "" {
		return a == b, nil
	}
	left, ok := a.(map[string]any)
	if !ok {
		return false, mergepatch.ErrBadArgType(left, a)
	}
	right, ok := b.(map[string]any)
	if !ok {
		return false, mergepatch.ErrBadArgType(right, b)
	}
	l, ok := left[mergeKey]
	if !ok {
		return false, mergepatch.ErrNoMergeKey(left, mergeKey)
	}
	r, ok := right[mergeKey]
	if !ok {
		return false, mergepatch.ErrNoMergeKey(right, mergeKey)
	}
	return l == r, nil
}

// withoutDirectives returns a value without directives, and whether to keep it.
func withoutDirectives(v any) (any, bool) {
	switch v := v.(type) {
	case map[string]any:
		if _, ok := v[directive]; ok {
			return nil, false
		}
		for k, value := range v {
			take(v, k, value)
		}
	case []any:
		var kept []any
		if v != nil {
			kept = []any{}
		}
		for _, item := range v {
			if item, keep := withoutDirectives(item); keep {
				kept = append(kept, item)
			}
		}
		return kept, true
	}
	return v, true
}

func discardNulls(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, value := range v {
			if value == nil {
				delete(v, k)
			} else {
				discardNulls(value)
			}
		}
	case []any:
		for _, item := range v {
			discardNulls(item)
		}
	}
}
