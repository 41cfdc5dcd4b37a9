package managedfields

import (
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/apikeel/kelson/resource"
)

// KeepTimes gives the entries of managedFields their old times if these are all
// that a write would change, so that it is no write at all. It is called when
// nothing else is going to change the object.
func KeepTimes(obj, old resource.Object) {
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
	if !sameContent(obj, old) {
		obj.SetManagedFields(after)
	}
}

func sameOwner(a, b *metav1.ManagedFieldsEntry) bool {
	if a.Manager != b.Manager || a.Operation != b.Operation || a.APIVersion != b.APIVersion ||
		a.FieldsType != b.FieldsType || a.Subresource != b.Subresource || (a.FieldsV1 == nil) != (b.FieldsV1 == nil) {
		return false
	}
	return a.FieldsV1 == nil || a.FieldsV1.Equal(*b.FieldsV1)
}

func sameContent(a, b resource.Object) bool {
	if u, ok := a.(*unstructured.Unstructured); ok {
		v, ok := b.(*unstructured.Unstructured)
		return ok && equality.Semantic.DeepEqualWithNilDifferentFromEmpty(u.Object, v.Object)
	}
	return equality.Semantic.DeepEqual(a, b)
}
