package resource

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/apikeel/kelson/internal/jsonvalue"
)

// ManagedFields returns obj.GetManagedFields(). For an unstructured object it avoids
// the reflection of that method, which would cost more than the rest of a write.
func ManagedFields(obj metav1.Object) []metav1.ManagedFieldsEntry {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj.GetManagedFields()
	}
	meta, _ := u.Object["metadata"].(map[string]any)
	list, ok := meta["managedFields"].([]any)
	if !ok {
		return obj.GetManagedFields()
	}
	out := make([]metav1.ManagedFieldsEntry, len(list))
	for i, item := range list {
		fields, ok := item.(map[string]any)
		if !ok || !readEntry(fields, &out[i]) {
			return obj.GetManagedFields()
		}
	}
	return out
}

// readEntry decodes an entry of metadata.managedFields. It returns false for an entry
// of an unusual form, which the caller leaves to apimachinery.
func readEntry(fields map[string]any, into *metav1.ManagedFieldsEntry) bool {
	for name, v := range fields {
		text, ok := v.(string)
		switch name {
		case "manager":
			into.Manager = text
		case "operation":
			into.Operation = metav1.ManagedFieldsOperationType(text)
		case "apiVersion":
			into.APIVersion = text
		case "fieldsType":
			into.FieldsType = text
		case "subresource":
			into.Subresource = text
		case "time":
			t, err := time.Parse(time.RFC3339, text)
			if err != nil {
				return false
			}
			into.Time = &metav1.Time{Time: t.Local()}
		case "fieldsV1":
			set, isMap := v.(map[string]any)
			raw, err := jsonvalue.Append(make([]byte, 0, 1024), set)
			if ok = isMap && err == nil; ok {
				into.FieldsV1 = metav1.NewFieldsV1(string(raw))
			}
		}
		if !ok {
			return false
		}
	}
	return true
}

// SetManagedFields calls obj.SetManagedFields(entries), without reflection for an
// unstructured object.
func SetManagedFields(obj metav1.Object, entries []metav1.ManagedFieldsEntry) {
	u, ok := obj.(*unstructured.Unstructured)
	meta, isMap := map[string]any(nil), false
	if ok {
		meta, isMap = u.Object["metadata"].(map[string]any)
	}
	if !isMap || entries == nil {
		obj.SetManagedFields(entries)
		return
	}
	list := make([]any, len(entries))
	for i := range entries {
		fields, ok := encodeEntry(&entries[i])
		if !ok {
			obj.SetManagedFields(entries)
			return
		}
		list[i] = fields
	}
	meta["managedFields"] = list
}

// encodeEntry is the reverse of readEntry.
func encodeEntry(e *metav1.ManagedFieldsEntry) (map[string]any, bool) {
	fields := make(map[string]any, 7)
	for _, f := range [...]struct{ name, text string }{
		{"manager", e.Manager}, {"operation", string(e.Operation)}, {"apiVersion", e.APIVersion}, {"fieldsType", e.FieldsType}, {"subresource", e.Subresource},
	} {
		if f.text != "" {
			fields[f.name] = f.text
		}
	}
	if e.Time != nil {
		if e.Time.IsZero() {
			return nil, false
		}
		fields["time"] = e.Time.UTC().Format(time.RFC3339)
	}
	if e.FieldsV1 != nil {
		set, ok := jsonvalue.Parse(e.FieldsV1.GetRawBytes())
		if !ok {
			return nil, false
		}
		fields["fieldsV1"] = set
	}
	return fields, true
}
