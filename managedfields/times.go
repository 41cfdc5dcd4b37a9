package managedfields

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/apikeel/kelson/internal/jsonvalue"
	"github.com/apikeel/kelson/resource"
)

// KeepTimes restores the old times in managedFields if they are all that a write would
// change, so that the write becomes a no-op. It is called when nothing else will change the
// object.
func KeepTimes(obj, old resource.Object) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if v, ok := old.(*unstructured.Unstructured); ok {
			keepTimesInMaps(u.Object, v.Object)
			return
		}
	}
	after, before := obj.GetManagedFields(), old.GetManagedFields()
	if len(after) != len(before) {
		return
	}
	changed := false
	for i := range after {
		changed = changed || !after[i].Time.Equal(before[i].Time)
		if !sameOwner(&after[i], &before[i]) {
			return
		}
	}
	if !changed {
		return
	}
	obj.SetManagedFields(before)
	// An applied object has apiVersion and kind, a stored one has not.
	obj.GetObjectKind().SetGroupVersionKind(old.GetObjectKind().GroupVersionKind())
	if !sameContent(obj, old) {
		obj.SetManagedFields(after)
	}
}

// sameContent reports whether two objects of one Go type are equal. The last field is
// compared first: most writes change the status.
func sameContent(a, b resource.Object) bool {
	x, y := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	if x.Kind() != reflect.Struct || x.Type() != y.Type() {
		return equality.Semantic.DeepEqual(a, b)
	}
	for i := x.NumField() - 1; i >= 0; i-- {
		if !equality.Semantic.DeepEqual(x.Field(i).Addr().Interface(), y.Field(i).Addr().Interface()) {
			return false
		}
	}
	return true
}

func sameOwner(a, b *metav1.ManagedFieldsEntry) bool {
	if a.Manager != b.Manager || a.Operation != b.Operation || a.APIVersion != b.APIVersion ||
		a.FieldsType != b.FieldsType || a.Subresource != b.Subresource || (a.FieldsV1 == nil) != (b.FieldsV1 == nil) {
		return false
	}
	return a.FieldsV1 == nil || a.FieldsV1.Equal(*b.FieldsV1)
}

func keepTimesInMaps(obj, old map[string]any) {
	meta, _ := obj["metadata"].(map[string]any)
	was, _ := old["metadata"].(map[string]any)
	after, _ := meta["managedFields"].([]any)
	before, _ := was["managedFields"].([]any)
	if len(after) != len(before) || jsonvalue.Equal(after, before) {
		return
	}
	for i := range after {
		a, _ := after[i].(map[string]any)
		b, _ := before[i].(map[string]any)
		if len(a) != len(b) {
			return
		}
		for name, v := range a {
			if other, ok := b[name]; !ok || name != "time" && !jsonvalue.Equal(v, other) {
				return
			}
		}
	}
	meta["managedFields"] = before
	if !jsonvalue.Equal(obj, old) {
		meta["managedFields"] = after
	}
}
