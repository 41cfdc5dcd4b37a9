package openapi_test

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"testing"

	"k8s.io/kube-openapi/pkg/spec3"

	"github.com/apikeel/kelson/resource"
)

// TestCustom: the documents of custom resources say less than others, as they do
// in kube-apiserver.
func TestCustom(t *testing.T) {
	catalog, err := resource.NewCatalog(smallGroups(t)...)
	if err != nil {
		t.Fatal(err)
	}
	if catalog, err = catalog.Change([]*resource.Definition{databases(0, "A <database>.")}, nil); err != nil {
		t.Fatal(err)
	}
	h := newHandler(catalog)
	if w := do(t, h, "/openapi/v3/apis/g0.example.com"); w.Code != http.StatusNotFound {
		t.Errorf("a group of custom resources has a document: status %d", w.Code)
	}
	var doc spec3.OpenAPI
	if err := json.Unmarshal(get(t, h, "/openapi/v3/apis/g0.example.com/v1"), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Info.Title != "Kubernetes CRD Swagger" || doc.Components.SecuritySchemes != nil {
		t.Errorf("info %+v, security %v", doc.Info, doc.Components.SecuritySchemes)
	}
	const item = "/apis/g0.example.com/v1/namespaces/{namespace}/database0s/{name}"
	want := []string{"/apis/g0.example.com/v1/database0s", "/apis/g0.example.com/v1/namespaces/{namespace}/database0s", item, item + "/status"}
	if got := slices.Sorted(maps.Keys(doc.Paths.Paths)); !slices.Equal(got, want) {
		t.Errorf("paths %q", got)
	}
	p := doc.Paths.Paths[item]
	if len(p.Get.Parameters) != 1 || p.Get.Parameters[0].Name != "resourceVersion" {
		t.Errorf("parameters of get: %v", p.Get.Parameters)
	}
	media := slices.Sorted(maps.Keys(p.Patch.RequestBody.Content))
	if !slices.Equal(media, []string{"application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"}) {
		t.Errorf("patches %q", media)
	}
	if p.Patch.Responses.StatusCodeResponses[http.StatusCreated] != nil {
		t.Error("a patch creates")
	}
	options := doc.Components.Schemas["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"]
	if kinds, _ := options.Extensions["x-kubernetes-group-version-kind"].([]any); len(kinds) < 50 {
		t.Errorf("DeleteOptions are of %d kinds", len(kinds))
	}
}

// TestRange: a part of a document is that part of its text, wherever pieces end.
func TestRange(t *testing.T) {
	h, _ := thousand(t)
	path := "/openapi/v3/apis/g7.example.com/v1"
	whole := get(t, h, path)
	for _, from := range []int{0, 1, len(whole) / 3, len(whole) - 1} {
		w := do(t, h, path, "Range", "bytes="+strconv.Itoa(from)+"-")
		if got, err := io.ReadAll(w.Body); err != nil || w.Code != http.StatusPartialContent || string(got) != string(whole[from:]) {
			t.Errorf("from %d: status %d, %d bytes, %v", from, w.Code, len(got), err)
		}
	}
}
