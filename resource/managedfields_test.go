package resource

import (
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Both ways are those of the library.
func TestManagedFieldsOfMaps(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.FixedZone("", 3600)))
	for name, entries := range map[string][]metav1.ManagedFieldsEntry{
		"nil":   nil,
		"none":  {},
		"empty": {{}},
		"usual": {
			{Manager: "a", Operation: "Update", APIVersion: "v1", Time: &now, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:a":{".":{},"k:{\"n\":1}":{}}}`)},
			{Manager: "b", Operation: "Apply", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{}`), Subresource: "status"},
		},
		"no time":   {{Manager: "a", Time: &metav1.Time{}}},
		"not a set": {{Manager: "a", FieldsV1: metav1.NewFieldsV1(`[1]`)}},
	} {
		obj := func() *unstructured.Unstructured {
			return &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "x", "managedFields": []any{}}}}
		}
		got, want := obj(), obj()
		SetManagedFields(got, entries)
		want.SetManagedFields(entries)
		if !reflect.DeepEqual(got.Object, want.Object) {
			t.Errorf("%s: set\n got %v\nwant %v", name, got.Object, want.Object)
		}
		if got, want := ManagedFields(want), want.GetManagedFields(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got\n got %v\nwant %v", name, got, want)
		}
	}
	for name, odd := range map[string]any{
		"no list":     "x",
		"no entry":    []any{"x"},
		"no text":     []any{map[string]any{"manager": int64(1)}},
		"no set":      []any{map[string]any{"fieldsV1": "x"}},
		"no time":     []any{map[string]any{"time": "yesterday"}},
		"null":        nil,
		"other field": []any{map[string]any{"manager": "a", "other": "b"}},
	} {
		obj := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"managedFields": odd}}}
		if got, want := ManagedFields(obj), obj.GetManagedFields(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %v\nwant %v", name, got, want)
		}
	}
}
