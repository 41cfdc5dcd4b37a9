package rest

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// FuzzQuickMeta: what is valid at a glance is what the library finds valid.
func FuzzQuickMeta(f *testing.F) {
	for _, seed := range []string{"", "a", "A.b_c-1", "-a", "a-", "example.com/a", "Example.com/a", "a.-b", "a..b", "a-.b", "/a", "a/", "a/b/c", "\u00e9", strings.Repeat("a", 63),
		strings.Repeat("a", 64), strings.Repeat("a", 253), strings.Repeat("a", 254), strings.Repeat("a", 253) + "/" + strings.Repeat("b", 63)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, c := range []struct {
			of        string
			got, want bool
		}{
			{"label key", isLabelKey(text), len(content.IsLabelKey(text)) == 0},
			{"label value", text == "" || isLabelText(text), len(content.IsLabelValue(text)) == 0},
			{"subdomain", isSubdomain(text), len(apivalidation.NameIsDNSSubdomain(text, false)) == 0},
		} {
			if c.got != c.want {
				t.Errorf("%q as a %s: %v, want %v", text, c.of, c.got, c.want)
			}
		}
		if isSubdomain(text) && len(apivalidation.NameIsDNSSubdomain(text, true)) > 0 {
			t.Errorf("%q is a name, but not the prefix of one", text)
		}
		if isLabelKey(text) && len(content.IsLabelKey(strings.ToLower(text))) > 0 {
			t.Errorf("%q is the key of a label, but not of an annotation", text)
		}
	})
}

// TestQuickChanges: what is valid at a glance is valid for the library, whatever one field is.
func TestQuickChanges(t *testing.T) {
	yes, seconds := true, int64(3)
	now, later := metav1.Unix(1, 0), metav1.Unix(2, 0)
	base := func() *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: "p", Namespace: "n", UID: "u", ResourceVersion: "3", Generation: 2, CreationTimestamp: now, Labels: map[string]string{"a": "b"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "x", Controller: &yes}},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "m", Operation: metav1.ManagedFieldsOperationUpdate, FieldsType: "FieldsV1", APIVersion: "v1"}},
		}}
	}
	path := field.NewPath("metadata")
	valid := 0
	for name, change := range map[string]func(obj, old *corev1.Pod){
		"nothing":          func(_, _ *corev1.Pod) {},
		"generation":       func(obj, _ *corev1.Pod) { obj.Generation++ },
		"generation, less": func(obj, _ *corev1.Pod) { obj.Generation-- },
		"generation, none": func(obj, old *corev1.Pod) { obj.Generation, old.Generation = -1, -2 },
		"name":             func(obj, _ *corev1.Pod) { obj.Name = "q" },
		"namespace":        func(obj, _ *corev1.Pod) { obj.Namespace = "q" },
		"uid":              func(obj, _ *corev1.Pod) { obj.UID = "q" },
		"version":          func(obj, _ *corev1.Pod) { obj.ResourceVersion = "" },
		"created":          func(obj, _ *corev1.Pod) { obj.CreationTimestamp = later },
		"deleted":          func(obj, _ *corev1.Pod) { obj.DeletionTimestamp = &now },
		"deleted no more":  func(_, old *corev1.Pod) { old.DeletionTimestamp = &now },
		"grace":            func(obj, _ *corev1.Pod) { obj.DeletionGracePeriodSeconds = &seconds },
		"grace no more":    func(_, old *corev1.Pod) { old.DeletionGracePeriodSeconds = &seconds },
		"finalizer": func(obj, old *corev1.Pod) {
			old.DeletionTimestamp, obj.DeletionTimestamp, obj.Finalizers = &now, &now, []string{"a/b"}
		},
		"labels":              func(obj, _ *corev1.Pod) { obj.Labels = map[string]string{"-": ""} },
		"annotations":         func(obj, _ *corev1.Pod) { obj.Annotations = map[string]string{"-": ""} },
		"valid annotations":   func(obj, _ *corev1.Pod) { obj.Annotations = map[string]string{"a": "-"} },
		"owner without name":  func(obj, _ *corev1.Pod) { obj.OwnerReferences[0].Name = "" },
		"two controllers":     func(obj, _ *corev1.Pod) { obj.OwnerReferences = append(obj.OwnerReferences, obj.OwnerReferences[0]) },
		"no owner":            func(obj, _ *corev1.Pod) { obj.OwnerReferences = nil },
		"operation":           func(obj, _ *corev1.Pod) { obj.ManagedFields[0].Operation = "" },
		"another operation":   func(obj, _ *corev1.Pod) { obj.ManagedFields[0].Operation = "Delete" },
		"type":                func(obj, _ *corev1.Pod) { obj.ManagedFields[0].FieldsType = "FieldsV2" },
		"long manager":        func(obj, _ *corev1.Pod) { obj.ManagedFields[0].Manager = strings.Repeat("a", 129) },
		"unprintable manager": func(obj, _ *corev1.Pod) { obj.ManagedFields[0].Manager = "a\x7f" },
		"subresource":         func(obj, _ *corev1.Pod) { obj.ManagedFields[0].Subresource = strings.Repeat("a", 257) },
	} {
		obj, old := base(), base()
		change(obj, old)
		quick := isQuickChange(quickMeta{obj}, old, path)
		if errs := apivalidation.ValidateObjectMetaAccessorUpdate(obj, old, path); quick && len(errs) > 0 {
			t.Errorf("%s: valid at a glance, but %v", name, errs.ToAggregate())
		}
		if quick {
			valid++
		}
	}
	if want := 4; valid != want {
		t.Errorf("%d changes are valid at a glance, want %d", valid, want)
	}
}
