package kelsontest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/apikeel/kelson/kelsontest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// TestConvertedOwners: a webhook that puts an annotation on what it converts, and
// another one on the way back, does not make writers the owners of these: they
// are seen as they write, and not as what is stored looks to them.
func TestConvertedOwners(t *testing.T) {
	s := kelsontest.Start(t, kelsontest.CRDs("testdata/crds"), kelsontest.Convert("widgets.example.com"),
		kelsontest.Manifests("testdata/manifests/team.yaml"))
	hooks, err := s.Webhooks()
	if err != nil {
		t.Fatal(err)
	}
	if err := hooks.Serve(webhooks(t, func(obj *unstructured.Unstructured, version string) {
		rename(obj, version)
		annotations := obj.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations["converted-to"] = version
		annotations["seen"] += "."
		obj.SetAnnotations(annotations)
	})); err != nil {
		t.Fatal(err)
	}
	v1, v2 := widgets(t, s, "v1"), widgets(t, s, "v2")
	as := func(name string) metav1.PatchOptions { return metav1.PatchOptions{FieldManager: name} }
	owners := func(obj *unstructured.Unstructured) string {
		var all []string
		for _, e := range obj.GetManagedFields() {
			_, version, _ := strings.Cut(e.APIVersion, "/")
			all = append(all, e.Manager+" "+version+" "+string(e.FieldsV1.GetRawBytes()))
		}
		slices.Sort(all) // they are stored by time
		return strings.Join(all, "\n")
	}
	if _, err := v2.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v2", "kind": "Widget", "metadata": map[string]any{"name": "w"}, "spec": map[string]any{"length": int64(1)},
	}}, metav1.CreateOptions{FieldManager: "maker"}); err != nil {
		t.Fatal(err)
	}
	maker := `maker v2 {"f:spec":{".":{},"f:length":{}}}`
	obj, err := v2.Patch(t.Context(), "w", types.JSONPatchType, []byte(`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`), as("labeller"))
	if err != nil {
		t.Fatal(err)
	}
	labeller := `labeller v2 {"f:metadata":{"f:labels":{".":{},"f:a":{}}}}`
	if got, want := owners(obj), labeller+"\n"+maker; got != want {
		t.Errorf("in another version: owners are\n%s\nwant\n%s", got, want)
	}
	// The owner in another version loses what the writer changes.
	obj, err = v1.Patch(t.Context(), "w", types.MergePatchType, []byte(`{"spec":{"size":2}}`), as("sizer"))
	if err != nil {
		t.Fatal(err)
	}
	maker, sizer := `maker v2 {"f:spec":{}}`, `sizer v1 {"f:spec":{"f:size":{}}}`
	if got, want := owners(obj), labeller+"\n"+maker+"\n"+sizer; got != want {
		t.Errorf("in the stored version: owners are\n%s\nwant\n%s", got, want)
	}
	// What is wrong in the writer's version is said before anybody is asked to
	// convert it.
	if _, err := v2.Patch(t.Context(), "w", types.MergePatchType, []byte(`{"spec":{"length":"x"}}`), as("wrong")); err == nil || !strings.Contains(err.Error(), "spec.length: Invalid value") {
		t.Errorf("a wrong object: %v", err)
	}
}
