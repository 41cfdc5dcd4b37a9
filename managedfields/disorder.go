package managedfields

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// maxDisorder bounds how many pairs of items of an object's lists may be in another order than
// that of their keys where structured-merge-diff works on it. It inserts the items into sorted
// lists one by one, and so moves one item a pair, about ten times an apply: 20 ns a pair together.
// A list of 11,000 items in reverse has as many, and so has one of 16,000 in random order.
const maxDisorder = 1 << 26

// errUnsorted is the answer to an apply with more disorder than that.
var errUnsorted = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status: metav1.StatusFailure, Code: http.StatusRequestEntityTooLarge, Reason: metav1.StatusReasonRequestEntityTooLarge,
	Message: "the object has lists that are too long to be merged in their order: sort their items by their keys, or replace the object",
}}

// parse makes a value for structured-merge-diff, or returns errUnsorted.
func (k *kindType) parse(fields map[string]any, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if k.typ.disorder(fields) > maxDisorder {
		return nil, errUnsorted
	}
	return k.parseable.FromUnstructured(fields, options...)
}

// disorder returns how many pairs of items of the lists in a value are not in the order of their
// keys. What does not match the type counts nothing: the library refuses it.
func (t *typ) disorder(v any) (pairs int) {
	switch v := v.(type) {
	case map[string]any:
		if t == nil || t.fields == nil || t.fields.atomic {
			return 0
		}
		for name, e := range v {
			pairs += t.field(name).disorder(e)
		}
	case []any:
		if t == nil || t.list == nil || t.list.atomic {
			return 0
		}
		items, err := t.unsortedItems(v)
		if err == nil {
			pairs = inversions(items, make([]listItem, len(items)))
		}
		for _, e := range v {
			pairs += t.item().disorder(e)
		}
	}
	return pairs
}

// inversions sorts items and returns how many pairs of them were in the wrong order. room is as
// long as they are.
func inversions(items, room []listItem) (pairs int) {
	if len(items) < 2 {
		return 0
	}
	half := len(items) / 2
	pairs = inversions(items[:half], room[:half]) + inversions(items[half:], room[half:])
	copy(room, items)
	left, right := room[:half], room[half:]
	for i := range items {
		if len(right) == 0 || len(left) > 0 && compareKeys(left[0].keys, right[0].keys) <= 0 {
			items[i], left = left[0], left[1:]
			continue
		}
		pairs += len(left)
		items[i], right = right[0], right[1:]
	}
	return pairs
}
