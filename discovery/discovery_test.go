package discovery_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/discovery"
	"github.com/apikeel/kelson/discovery/discoverytest"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

const (
	v2      = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	v2beta1 = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
)

func newHandler(t testing.TB) *discovery.Handler {
	catalog, err := discoverytest.Catalog()
	if err != nil {
		t.Fatal(err)
	}
	return discovery.New(func() *resource.Catalog { return catalog }, func(*http.Request) string { return "192.0.2.1:6443" })
}

// do makes a request. The headers are pairs of names and values.
func do(t testing.TB, h *discovery.Handler, method, path string, headers ...string) (*httptest.ResponseRecorder, bool, error) {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	for pair := range slices.Chunk(headers, 2) {
		r.Header.Set(pair[0], pair[1])
	}
	w := httptest.NewRecorder()
	served, err := h.Serve(w, r)
	return w, served, err
}

func get(t testing.TB, h *discovery.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	w, served, err := do(t, h, http.MethodGet, path, headers...)
	if !served || err != nil || w.Code != http.StatusOK {
		t.Fatalf("GET %s: served %v, error %v, status %d", path, served, err, w.Code)
	}
	return w
}

// TestAggregated compares with what kube-apiserver says of the same kinds.
func TestAggregated(t *testing.T) {
	h := newHandler(t)
	for path, recorded := range map[string][]byte{"/api": discoverytest.API, "/apis": discoverytest.APIs} {
		var list apidiscovery.APIGroupDiscoveryList
		if err := json.Unmarshal(recorded, &list); err != nil {
			t.Fatal(err)
		}
		onlyKnown(&list)
		want, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		w := get(t, h, path, "Accept", v2)
		if got := w.Body.Bytes(); !bytes.Equal(bytes.TrimSpace(got), want) {
			t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
		}
		for name, want := range map[string]string{"Content-Type": v2, "Vary": "Accept", "Cache-Control": "public"} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
	}
}

// onlyKnown removes what the catalog of the test does not have.
func onlyKnown(list *apidiscovery.APIGroupDiscoveryList) {
	for i := range list.Items {
		g := &list.Items[i]
		for j := range g.Versions {
			v := &g.Versions[j]
			known := func(kind *metav1.GroupVersionKind) bool {
				gvk := schema.GroupVersionKind(*kind)
				if gvk.Version == "" {
					gvk.Group, gvk.Version = g.Name, v.Version
				}
				return discoverytest.Known(gvk)
			}
			v.Resources = slices.DeleteFunc(v.Resources, func(r apidiscovery.APIResourceDiscovery) bool { return !known(r.ResponseKind) })
			for k := range v.Resources {
				r := &v.Resources[k]
				r.Subresources = slices.DeleteFunc(r.Subresources, func(s apidiscovery.APISubresourceDiscovery) bool {
					return !known(s.ResponseKind) || s.Subresource == "log"
				})
			}
		}
	}
	list.Items = slices.DeleteFunc(list.Items, func(g apidiscovery.APIGroupDiscovery) bool { return len(g.Versions[0].Resources) == 0 })
}

func TestETag(t *testing.T) {
	h := newHandler(t)
	etag := get(t, h, "/apis", "Accept", v2).Header().Get("ETag")
	if len(etag) != 130 || etag[0] != '"' {
		t.Fatalf("ETag is %q", etag)
	}
	w, served, err := do(t, h, http.MethodGet, "/apis", "Accept", v2, "If-None-Match", etag)
	if !served || err != nil || w.Code != http.StatusNotModified || w.Body.Len() != 0 {
		t.Errorf("served %v, error %v, status %d, body %q", served, err, w.Code, w.Body)
	}
	if get(t, h, "/apis", "Accept", v2, "If-None-Match", `"x"`).Body.Len() == 0 {
		t.Error("no body for another ETag")
	}
}

// TestPages has answers of kube-apiserver, some of them shortened to what the
// catalog of the test has.
func TestPages(t *testing.T) {
	h := newHandler(t)
	for path, want := range map[string]string{
		"/api": `{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"192.0.2.1:6443"}]}`,
		"/apis/autoscaling": `{"kind":"APIGroup","apiVersion":"v1","name":"autoscaling","versions":[{"groupVersion":"autoscaling/v2","version":"v2"},{"groupVersion":"autoscaling/v1","version":"v1"}],` +
			`"preferredVersion":{"groupVersion":"autoscaling/v2","version":"v2"}}`,
		"/apis/autoscaling/v1": `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"autoscaling/v1","resources":[` +
			`{"name":"horizontalpodautoscalers","singularName":"horizontalpodautoscaler","namespaced":true,"kind":"HorizontalPodAutoscaler","verbs":["create","delete","deletecollection","get","list","patch","update","watch"],"shortNames":["hpa"],"categories":["all"],"storageVersionHash":"qwQve8ut294="},` +
			`{"name":"horizontalpodautoscalers/status","singularName":"","namespaced":true,"kind":"HorizontalPodAutoscaler","verbs":["get","patch","update"]}]}`,
		"/apis/authorization.k8s.io/v1/": `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"authorization.k8s.io/v1","resources":[` +
			`{"name":"localsubjectaccessreviews","singularName":"localsubjectaccessreview","namespaced":true,"kind":"LocalSubjectAccessReview","verbs":["create"]},` +
			`{"name":"selfsubjectaccessreviews","singularName":"selfsubjectaccessreview","namespaced":false,"kind":"SelfSubjectAccessReview","verbs":["create"]},` +
			`{"name":"selfsubjectrulesreviews","singularName":"selfsubjectrulesreview","namespaced":false,"kind":"SelfSubjectRulesReview","verbs":["create"]},` +
			`{"name":"subjectaccessreviews","singularName":"subjectaccessreview","namespaced":false,"kind":"SubjectAccessReview","verbs":["create"]}]}`,
	} {
		w := get(t, h, path)
		if got := strings.TrimSpace(w.Body.String()); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
		}
		if got := w.Header().Get("Content-Type"); got != "application/json" {
			t.Errorf("%s: Content-Type is %q", path, got)
		}
	}

	var core metav1.APIResourceList
	if err := json.Unmarshal(get(t, h, "/api/v1").Body.Bytes(), &core); err != nil {
		t.Fatal(err)
	}
	hashes := map[string]string{ // of the versions that are stored
		"events": "r2yiGXH7wu8=", "limitranges": "EBKMFVe6cwo=", "namespaces": "Q3oi5N2YM8M=", "nodes": "XwShjMxG9Fs=", "pods": "xPOwRZ+Yhw8=", "bindings": "",
	}
	for _, r := range core.APIResources {
		if want, ok := hashes[r.Name]; ok && r.StorageVersionHash != want {
			t.Errorf("%s: storageVersionHash is %q, want %q", r.Name, r.StorageVersionHash, want)
		}
		if r.Name == "pods/eviction" && (r.Group != "policy" || r.Version != "v1" || r.Kind != "Eviction") {
			t.Errorf("eviction: %+v", r)
		}
	}
	if core.APIVersion != "" || core.GroupVersion != "v1" {
		t.Errorf("/api/v1: apiVersion %q, groupVersion %q", core.APIVersion, core.GroupVersion)
	}

	var groups metav1.APIGroupList
	if err := json.Unmarshal(get(t, h, "/apis").Body.Bytes(), &groups); err != nil {
		t.Fatal(err)
	}
	if g := groups.Groups; len(g) < 10 || g[0].Name != "apps" || g[1].Name != "events.k8s.io" || groups.APIVersion != "v1" {
		t.Errorf("/apis: %+v", groups)
	}
}

func TestNegotiation(t *testing.T) {
	h := newHandler(t)
	for _, c := range []struct {
		path, accept string
		want         string // Content-Type, or "" for 406
	}{
		{"/api", v2, v2},
		{"/api", v2beta1, ""},
		{"/api", v2 + ",application/json", v2},
		{"/api", "application/json," + v2, v2},
		{"/api", v2beta1 + ",application/json", "application/json"},
		{"/apis", "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"},
		{"/apis", "application/yaml", "application/yaml"},
		{"/apis", "text/html", ""},
		{"/apis", "*/json", ""},
		{"/apis/", v2, ""},
		{"/apis/", v2 + ",application/json", "application/json"},
		{"/apis", "text/html,*/*;q=0.8", "application/json"},
		{"/apis/apps", v2, ""},
		{"/apis/apps", "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf"},
		{"/apis/apps/v1", v2, ""},
		{"/apis/apps/v1", "application/json;as=Nope", ""},
		{"/apis/apps", "application/*", "application/json"},
		{"/apis/apps/v1", "application/*", ""},
		{"/api", "text/html", ""},
	} {
		w, served, err := do(t, h, http.MethodGet, c.path, "Accept", c.accept)
		if !served {
			t.Fatalf("%s is not served", c.path)
		}
		if c.want == "" {
			if !apierrors.IsNotAcceptable(err) || w.Body.Len() > 0 {
				t.Errorf("%s %s: error %v, body %q", c.path, c.accept, err, w.Body)
			}
			continue
		}
		if got := w.Header().Get("Content-Type"); err != nil || got != c.want {
			t.Errorf("%s %s: error %v, Content-Type %q, want %q", c.path, c.accept, err, got, c.want)
		}
	}
}

func TestFormats(t *testing.T) {
	h := newHandler(t)
	var list metav1.APIResourceList
	if err := yaml.Unmarshal(get(t, h, "/apis/apps/v1", "Accept", "application/yaml").Body.Bytes(), &list); err != nil || list.Kind != "APIResourceList" || len(list.APIResources) < 5 {
		t.Errorf("YAML: %v, %+v", err, list)
	}
	if b := get(t, h, "/apis/apps/v1", "Accept", "application/vnd.kubernetes.protobuf").Body.Bytes(); !bytes.HasPrefix(b, []byte("k8s\x00")) || !bytes.Contains(b, []byte("APIResourceList")) {
		t.Errorf("protobuf: %q", b[:min(len(b), 40)])
	}
	if b := get(t, h, "/apis/apps/v1?pretty=true").Body.String(); !strings.HasPrefix(b, "{\n  \"kind\"") {
		t.Errorf("pretty: %q", b[:20])
	}
}

func TestMethodsAndPaths(t *testing.T) {
	h := newHandler(t)
	for _, c := range []struct {
		method, path string
		served       bool
		allowed      bool
	}{
		{"POST", "/api", true, false},
		{"HEAD", "/api", true, false},
		{"GET", "/api/", true, true},
		{"PUT", "/apis", true, true},
		{"HEAD", "/apis", true, true},
		{"DELETE", "/apis/apps", true, true},
		{"GET", "/apis/apps/", true, true},
		{"POST", "/apis/apps/v1", true, false},
		{"HEAD", "/apis/apps/v1", true, false},
		{"OPTIONS", "/api/v1", true, false},
		{"GET", "/apis/nope.example.com", false, false},
		{"GET", "/apis/apps/v1beta1", false, false},
		{"GET", "/api/v2", false, false},
		{"GET", "/api//v1", false, false},
		{"GET", "/apis//v1", false, false},
		{"GET", "/api/v1/pods", false, false},
		{"GET", "/apix", false, false},
		{"GET", "/", false, false},
	} {
		_, served, err := do(t, h, c.method, c.path)
		if served != c.served {
			t.Errorf("%s %s: served %v", c.method, c.path, served)
		}
		if served && apierrors.IsMethodNotSupported(err) == c.allowed {
			t.Errorf("%s %s: error %v", c.method, c.path, err)
		}
	}

	_, _, err := do(t, h, http.MethodPost, "/api/v1")
	status, err := json.Marshal(err.(apierrors.APIStatus).Status())
	if want := `{"metadata":{},"status":"Failure","message":"the server does not allow this method on the requested resource","reason":"MethodNotAllowed","details":{},"code":405}`; err != nil || string(status) != want {
		t.Errorf("got %s, %v, want %s", status, err, want)
	}
}

// TestChange: answers follow the catalog.
func TestChange(t *testing.T) {
	all, err := discoverytest.Catalog()
	if err != nil {
		t.Fatal(err)
	}
	catalog, err := discoverytest.Catalog("apps")
	if err != nil {
		t.Fatal(err)
	}
	h := discovery.New(func() *resource.Catalog { return catalog }, nil)
	before := get(t, h, "/apis", "Accept", v2).Header().Get("ETag")
	catalog = all
	if after := get(t, h, "/apis", "Accept", v2).Header().Get("ETag"); after == before {
		t.Error("the ETag has not changed with the catalog")
	}
	get(t, h, "/apis/apps/v1")
}

func BenchmarkFirst(b *testing.B) {
	for b.Loop() {
		get(b, newHandler(b), "/apis", "Accept", v2)
	}
}

func BenchmarkCached(b *testing.B) {
	h := newHandler(b)
	b.ReportAllocs()
	for b.Loop() {
		get(b, h, "/apis", "Accept", v2)
	}
}

// TestCustomVersionsAreNotInCBOR asks for the resources of a version that has nothing but
// custom ones, which is never in CBOR.
func TestCustomVersionsAreNotInCBOR(t *testing.T) {
	empty := func() resource.Object { return &unstructured.Unstructured{Object: map[string]any{}} }
	catalog, err := resource.NewCatalog(resource.Group{Name: "example.com", Resources: []resource.Definition{{
		Group: "example.com", Resource: "things", Kind: "Thing",
		Versions: []resource.Version{{Name: "v1", New: empty, NewList: func() runtime.Object { return &unstructured.UnstructuredList{} }}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	h := discovery.New(func() *resource.Catalog { return catalog }, func(*http.Request) string { return "" })
	for _, c := range []struct{ path, accept, want string }{
		{"/apis/example.com", "application/cbor", "application/cbor"},
		{"/apis/example.com/v1", "application/cbor,application/json;q=0.9", "application/json"},
		{"/apis/example.com/v1", "application/cbor", ""},
	} {
		r, w := httptest.NewRequest("GET", c.path, nil), httptest.NewRecorder()
		r.Header.Set("Accept", c.accept)
		_, err := h.Serve(w, r.WithContext(request.With(r.Context(), &request.Request{CBOR: true})))
		if got := w.Header().Get("Content-Type"); got != c.want || (err == nil) != (c.want != "") || err != nil && !apierrors.IsNotAcceptable(err) {
			t.Errorf("%s, Accept %s: got %q, %v, want %q", c.path, c.accept, got, err, c.want)
		}
	}
}

// TestCustomResourcesKeepTheirHashes: the gate StorageVersionHash is about built-in kinds.
func TestCustomResourcesKeepTheirHashes(t *testing.T) {
	empty := func() resource.Object { return &unstructured.Unstructured{Object: map[string]any{}} }
	catalog, err := resource.NewCatalog(resource.Group{Name: "example.com", Resources: []resource.Definition{
		{Group: "example.com", Resource: "things", Kind: "Thing",
			Versions: []resource.Version{{Name: "v1", New: empty, NewList: func() runtime.Object { return &unstructured.UnstructuredList{} }}}},
		{Group: "example.com", Resource: "builtins", Kind: "Builtin", Versions: []resource.Version{resource.VersionOf[corev1.ConfigMap, corev1.ConfigMapList]("v1", nil)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	h := discovery.New(func() *resource.Catalog { return catalog }, func(*http.Request) string { return "" })
	h.NoHashes = true
	r, w := httptest.NewRequest("GET", "/apis/example.com/v1", nil), httptest.NewRecorder()
	if _, err := h.Serve(w, r.WithContext(request.With(r.Context(), &request.Request{}))); err != nil {
		t.Fatal(err)
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, r := range list.APIResources {
		got[r.Name] = r.StorageVersionHash != ""
	}
	if want := map[string]bool{"things": true, "builtins": false}; !maps.Equal(got, want) {
		t.Errorf("resources with hashes: got %v, want %v", got, want)
	}
}

// TestCBOR serves documents in CBOR if the server speaks it.
func TestCBOR(t *testing.T) {
	h := newHandler(t)
	for path, c := range map[string]struct{ accept, contains string }{
		"/api":          {"application/cbor", "APIVersions"},
		"/apis":         {"application/cbor;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "APIGroupDiscoveryList"},
		"/apis/":        {"application/cbor", "APIGroupList"},
		"/apis/apps":    {"application/cbor", "APIGroup"},
		"/apis/apps/v1": {"application/cbor", "APIResourceList"},
	} {
		for _, on := range []bool{false, true} {
			r, w := httptest.NewRequest("GET", path, nil), httptest.NewRecorder()
			r.Header.Set("Accept", c.accept)
			_, err := h.Serve(w, r.WithContext(request.With(r.Context(), &request.Request{CBOR: on})))
			if !on {
				if !apierrors.IsNotAcceptable(err) || strings.Contains(err.Error(), "cbor") {
					t.Errorf("%s without CBOR: got %v, want that it is not acceptable", path, err)
				}
				continue
			}
			if err != nil || !strings.HasPrefix(w.Header().Get("Content-Type"), "application/cbor") || !strings.HasPrefix(w.Body.String(), "\xd9\xd9\xf7") || !strings.Contains(w.Body.String(), c.contains) {
				t.Errorf("%s: got %s %.100q, %v", path, w.Header().Get("Content-Type"), w.Body, err)
			}
		}
	}
}
