package openapi_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	openapiv2 "github.com/google/gnostic-models/openapiv2"
	openapiv3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/apikeel/kelson/discovery/discoverytest"
	"github.com/apikeel/kelson/openapi"
	"github.com/apikeel/kelson/resource"
)

const (
	protoV2 = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
	protoV3 = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"
)

func newCatalog(t testing.TB) *resource.Catalog {
	t.Helper()
	catalog, err := discoverytest.Catalog()
	if err != nil {
		t.Fatal(err)
	}
	return catalog
}

func newHandler(catalog *resource.Catalog) *openapi.Handler {
	return openapi.New(func() *resource.Catalog { return catalog }, openapi.Config{Version: "1.37"})
}

// do makes a request. The headers are pairs of names and values.
func do(t testing.TB, h *openapi.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for pair := range slices.Chunk(headers, 2) {
		r.Header.Set(pair[0], pair[1])
	}
	w := httptest.NewRecorder()
	if !h.Serve(w, r) {
		t.Fatalf("%s is not served", path)
	}
	return w
}

func get(t testing.TB, h *openapi.Handler, path string, headers ...string) []byte {
	t.Helper()
	w := do(t, h, path, headers...)
	if w.Code != http.StatusOK {
		t.Fatalf("%s: status %d", path, w.Code)
	}
	return w.Body.Bytes()
}

type index struct {
	Paths map[string]struct{ ServerRelativeURL string }
}

func readIndex(t testing.TB, data []byte) map[string]string {
	t.Helper()
	var i index
	if err := json.Unmarshal(data, &i); err != nil {
		t.Fatal(err)
	}
	addresses := map[string]string{}
	for name, p := range i.Paths {
		addresses[name] = p.ServerRelativeURL
	}
	return addresses
}

// TestIndex: the hashes in the index are those of kube-apiserver v1.37.1, so
// the documents are the same to the last byte.
func TestIndex(t *testing.T) {
	recorded, err := os.ReadFile("testdata/index.json")
	if err != nil {
		t.Fatal(err)
	}
	want := readIndex(t, recorded)
	for _, name := range []string{
		// Not in the catalog of the test.
		"apis/apiextensions.k8s.io", "apis/apiextensions.k8s.io/v1", "apis/apiregistration.k8s.io", "apis/apiregistration.k8s.io/v1",
		".well-known/openid-configuration", "openid/v1/jwks",
	} {
		delete(want, name)
	}
	got := readIndex(t, get(t, newHandler(newCatalog(t)), "/openapi/v3"))
	if a, b := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(a, b) {
		t.Errorf("documents %q, want %q", a, b)
	}
	for name := range want {
		// The subresources that connect (exec, log, proxy) are not in the
		// catalog of the test.
		if name != "api/v1" && got[name] != want[name] {
			t.Errorf("%s: got %s, want %s", name, got[name], want[name])
		}
	}
}

// TestCore checks the one document whose hash cannot be compared.
func TestCore(t *testing.T) {
	data := get(t, newHandler(newCatalog(t)), "/openapi/v3/api/v1")
	var doc spec3.OpenAPI
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	for path, p := range doc.Paths.Paths {
		for _, op := range []*spec3.Operation{p.Get, p.Put, p.Post, p.Delete, p.Patch} {
			if op == nil {
				continue
			}
			if other := ids[op.OperationId]; other != "" {
				t.Errorf("operation %s of %s and %s", op.OperationId, path, other)
			}
			ids[op.OperationId] = path
		}
	}
	for id, want := range map[string]string{
		"createCoreV1NamespacedPodEviction":              "/api/v1/namespaces/{namespace}/pods/{name}/eviction",
		"createCoreV1NamespacedPodBinding":               "/api/v1/namespaces/{namespace}/pods/{name}/binding",
		"patchCoreV1NamespacedPodEphemeralcontainers":    "/api/v1/namespaces/{namespace}/pods/{name}/ephemeralcontainers",
		"replaceCoreV1NamespaceFinalize":                 "/api/v1/namespaces/{name}/finalize",
		"listCoreV1PodForAllNamespaces":                  "/api/v1/pods",
		"deleteCoreV1CollectionNamespacedSecret":         "/api/v1/namespaces/{namespace}/secrets",
		"watchCoreV1Node":                                "/api/v1/watch/nodes/{name}",
		"readCoreV1NamespacedReplicationControllerScale": "/api/v1/namespaces/{namespace}/replicationcontrollers/{name}/scale",
	} {
		if ids[id] != want {
			t.Errorf("operation %s is of %q, want %q", id, ids[id], want)
		}
	}
	if ids["deleteCoreV1CollectionNamespace"] != "" {
		t.Error("namespaces can be deleted together")
	}

	pod := doc.Components.Schemas["io.k8s.api.core.v1.PodSpec"]
	containers := pod.Properties["containers"]
	if key, _ := containers.Extensions.GetString("x-kubernetes-patch-merge-key"); key != "name" {
		t.Errorf("merge key of containers is %q", key)
	}
	if policy := doc.Components.Schemas["io.k8s.api.core.v1.Container"].Properties["imagePullPolicy"]; len(policy.Enum) != 3 {
		t.Errorf("values of imagePullPolicy: %v", policy.Enum)
	}
	checkRefs(t, data)
}

// checkRefs: whatever is referred to is there.
func checkRefs(t *testing.T, document []byte) {
	t.Helper()
	var root any
	if err := json.Unmarshal(document, &root); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile(`"\$ref":"#/([^"]+)"`).FindAllSubmatch(document, -1) {
		pointer := string(m[1])
		if seen[pointer] {
			continue
		}
		seen[pointer] = true
		at := root
		for part := range strings.SplitSeq(pointer, "/") {
			object, _ := at.(map[string]any)
			at = object[part]
		}
		if at == nil {
			t.Errorf("nothing at %s", pointer)
		}
	}
	if len(seen) == 0 {
		t.Error("no references")
	}
}

func TestV2(t *testing.T) {
	h := newHandler(newCatalog(t))
	data := get(t, h, "/openapi/v2")
	var doc spec.Swagger
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	again, err := doc.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, again) {
		t.Error("the document is written differently from how kube-openapi writes it")
	}
	checkRefs(t, data)
	for name := range doc.Parameters {
		if strings.HasPrefix(name, "dryRun-") || strings.HasPrefix(name, "name-") || strings.HasPrefix(name, "fieldValidation-") {
			t.Errorf("parameter %s is shared", name)
		}
	}
	// Names of shared parameters are hashes of their content.
	for _, name := range []string{"pretty-tJGM1-ng", "namespace-vgWSWtn3", "body-2Y1dVQaQ", "sendInitialEvents-rLXlEK_k"} {
		if _, ok := doc.Parameters[name]; !ok {
			t.Errorf("no parameter %s", name)
		}
	}
	if port := doc.Definitions["io.k8s.api.core.v1.ServicePort"].Properties["protocol"]; port.Default != nil {
		t.Error("schemas of version 2 have defaults")
	}

	w := do(t, h, "/openapi/v2", "Accept-Encoding", "gzip")
	r, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	if unpacked, err := io.ReadAll(r); err != nil || !bytes.Equal(unpacked, data) {
		t.Errorf("compressed: %v, %d bytes, want %d", err, len(unpacked), len(data))
	}
	etag := w.Header().Get("Etag")
	if w := do(t, h, "/openapi/v2", "If-None-Match", etag); w.Code != http.StatusNotModified {
		t.Errorf("If-None-Match: status %d", w.Code)
	}
	if got := w.Header().Values("Vary"); !slices.Equal(got, []string{"Accept-Encoding", "Accept"}) {
		t.Errorf("Vary: %q", got)
	}
}

// TestProtobuf: documents in protobuf are what the OpenAPI models make of those
// in JSON.
func TestProtobuf(t *testing.T) {
	catalog, err := resource.NewCatalog(smallGroups(t)...)
	if err != nil {
		t.Fatal(err)
	}
	h := newHandler(catalog)

	want3, err := openapiv3.ParseDocument(get(t, h, "/openapi/v3/apis/coordination.k8s.io/v1"))
	if err != nil {
		t.Fatal(err)
	}
	w := do(t, h, "/openapi/v3/apis/coordination.k8s.io/v1", "Accept", protoV3)
	var got3 openapiv3.Document
	if err := proto.Unmarshal(w.Body.Bytes(), &got3); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(want3, &got3) {
		t.Error("version 3 differs")
	}
	if got, want := w.Header().Get("Content-Type"), "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"; got != want {
		t.Errorf("Content-Type %q, want %q", got, want)
	}

	want2, err := openapiv2.ParseDocument(get(t, h, "/openapi/v2"))
	if err != nil {
		t.Fatal(err)
	}
	w = do(t, h, "/openapi/v2", "Accept", protoV2)
	var got2 openapiv2.Document
	if err := proto.Unmarshal(w.Body.Bytes(), &got2); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(want2, &got2) {
		t.Error("version 2 differs")
	}
	if got, want := w.Header().Get("Content-Type"), "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"; got != want {
		t.Errorf("Content-Type %q, want %q", got, want)
	}
}

// smallGroups has a built-in kind, one that brings a schema, and one that
// nothing is known of.
func smallGroups(t testing.TB) []resource.Group {
	leases, ok := newCatalog(t).Definition("coordination.k8s.io", "leases")
	if !ok {
		t.Fatal("no leases")
	}
	custom := func(kind string, schema func() *spec.Schema) resource.Definition {
		return resource.Definition{
			Group: "stable.example.com", Resource: strings.ToLower(kind) + "s", Kind: kind, Namespaced: true,
			Versions: []resource.Version{{
				Name: "v1", Schema: schema,
				New:     func() resource.Object { return &unstructured.Unstructured{} },
				NewList: func() kruntime.Object { return &unstructured.UnstructuredList{} },
			}},
		}
	}
	cronTab := func() *spec.Schema {
		return &spec.Schema{SchemaProps: spec.SchemaProps{
			Type: spec.StringOrArray{"object"},
			Properties: map[string]spec.Schema{
				"metadata": *spec.RefSchema("#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"),
				"spec":     {SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}}},
			},
		}}
	}
	return []resource.Group{
		{Name: "coordination.k8s.io", Resources: []resource.Definition{*leases}},
		{Name: "stable.example.com", Resources: []resource.Definition{custom("CronTab", cronTab), custom("Blob", nil)}},
	}
}

func TestOwnSchema(t *testing.T) {
	catalog, err := resource.NewCatalog(smallGroups(t)...)
	if err != nil {
		t.Fatal(err)
	}
	data := get(t, newHandler(catalog), "/openapi/v3/apis/stable.example.com/v1")
	checkRefs(t, data)
	var doc spec3.OpenAPI
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	tab := doc.Components.Schemas["com.example.stable.v1.CronTab"]
	if tab == nil || len(tab.Properties) != 2 || tab.Extensions["x-kubernetes-group-version-kind"] == nil {
		t.Errorf("CronTab: %+v", tab)
	}
	if list := doc.Components.Schemas["com.example.stable.v1.CronTabList"]; list == nil || len(list.Properties) != 4 {
		t.Errorf("CronTabList: %+v", list)
	}
	if blob := doc.Components.Schemas["com.example.stable.v1.Blob"]; blob == nil || blob.Extensions["x-kubernetes-preserve-unknown-fields"] != true {
		t.Errorf("Blob: %+v", blob)
	}
	if doc.Paths.Paths["/apis/stable.example.com/v1/namespaces/{namespace}/crontabs/{name}"] == nil {
		t.Error("no path")
	}
	checkRefs(t, get(t, newHandler(catalog), "/openapi/v2"))
}

func TestHeaders(t *testing.T) {
	h := newHandler(newCatalog(t))
	const path = "/openapi/v3/apis/apps/v1"
	w := do(t, h, path)
	etag := w.Header().Get("Etag")
	hash := strings.Trim(etag, `"`)
	if len(hash) != 128 || w.Header().Get("Content-Type") != "application/json" || w.Header().Get("Vary") != "Accept" || w.Header().Get("Cache-Control") != "" {
		t.Errorf("headers %v", w.Header())
	}
	if w := do(t, h, path, "If-None-Match", etag); w.Code != http.StatusNotModified {
		t.Errorf("If-None-Match: status %d", w.Code)
	}
	w = do(t, h, path+"?hash="+hash)
	if w.Code != http.StatusOK || w.Header().Get("Cache-Control") != "public, immutable" || w.Header().Get("Expires") == "" {
		t.Errorf("with the hash: status %d, headers %v", w.Code, w.Header())
	}
	w = do(t, h, path+"?hash=x")
	if w.Code != http.StatusMovedPermanently || w.Header().Get("Location") != path+"?hash="+hash {
		t.Errorf("with another hash: status %d, headers %v", w.Code, w.Header())
	}
	for accept, want := range map[string]int{
		"text/html": 406, "application/*": 200, "*/*": 200, "text/html,application/json;q=0.5": 200,
		protoV3: 200, "application/com.github.proto-openapi.spec.v3.v1.0+protobuf": 200, protoV2: 406,
	} {
		if w := do(t, h, path, "Accept", accept); w.Code != want {
			t.Errorf("Accept %s: status %d, want %d", accept, w.Code, want)
		}
	}
	if w := do(t, h, "/openapi/v3/nope"); w.Code != http.StatusNotFound || w.Body.Len() != 0 {
		t.Errorf("unknown document: status %d, body %q", w.Code, w.Body)
	}
	if w := do(t, h, "/openapi/v3"); w.Header().Get("Content-Type") != "text/plain; charset=utf-8" || w.Header().Get("Etag") != "" {
		t.Errorf("index: headers %v", w.Header())
	}
	for _, path := range []string{"/openapi", "/openapi/v2/", "/openapi/v4", "/"} {
		if h.Serve(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)) {
			t.Errorf("%s is served", path)
		}
	}
}

// TestChange: documents follow the catalog, and those of groups that have not
// changed stay.
func TestChange(t *testing.T) {
	groups := smallGroups(t)
	catalog, err := resource.NewCatalog(groups[0])
	if err != nil {
		t.Fatal(err)
	}
	h := openapi.New(func() *resource.Catalog { return catalog }, openapi.Config{Version: "1.37"})
	before := do(t, h, "/openapi/v3/apis/coordination.k8s.io/v1").Header().Get("Last-Modified")
	old := readIndex(t, get(t, h, "/openapi/v3"))
	if catalog, err = catalog.With(groups[1]); err != nil {
		t.Fatal(err)
	}
	now := readIndex(t, get(t, h, "/openapi/v3"))
	if now["apis/stable.example.com/v1"] == "" || now["apis/coordination.k8s.io/v1"] != old["apis/coordination.k8s.io/v1"] {
		t.Errorf("index %v, before %v", now, old)
	}
	if after := do(t, h, "/openapi/v3/apis/coordination.k8s.io/v1").Header().Get("Last-Modified"); after != before {
		t.Error("an unchanged document was made again")
	}
}

// BenchmarkFirst is the first answer of each sort, of a server with its usual settings.
func BenchmarkFirst(b *testing.B) {
	catalog := usualCatalog(b)
	for _, c := range []struct{ name, path, accept, encoding string }{
		{"index", "/openapi/v3", "", ""},
		{"apps", "/openapi/v3/apis/apps/v1", "", ""},
		{"apps-protobuf", "/openapi/v3/apis/apps/v1", protoV3, ""},
		{"v2", "/openapi/v2", "", ""},
		{"v2-gzip", "/openapi/v2", "", "gzip"},
		{"v2-protobuf-gzip", "/openapi/v2", protoV2, "gzip"},
	} {
		b.Run(c.name, func(b *testing.B) {
			benchmarkReads(b, c.path, c.accept, c.encoding, func() *openapi.Handler {
				return openapi.New(func() *resource.Catalog { return catalog }, openapi.Config{})
			})
		})
	}
}

// benchmarkReads measures the first read of handlers, also by CPU time.
func benchmarkReads(b *testing.B, path, accept, encoding string, newHandler func() *openapi.Handler) {
	b.ReportAllocs()
	var spent time.Duration
	for b.Loop() {
		h := newHandler()
		before := cpuTime(b)
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Accept", accept)
		r.Header.Set("Accept-Encoding", encoding)
		w := &discard{header: http.Header{}}
		if h.Serve(w, r); w.code != http.StatusOK {
			b.Fatalf("status %d", w.code)
		}
		spent += cpuTime(b) - before
	}
	b.ReportMetric(float64(spent.Microseconds())/float64(b.N), "cpu-µs/op")
}

// discard is an answer that nobody reads.
type discard struct {
	header http.Header
	code   int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(code int)        { d.code = code }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }

func BenchmarkCached(b *testing.B) {
	h := newHandler(newCatalog(b))
	for _, path := range []string{"/openapi/v3", "/openapi/v3/apis/apps/v1", "/openapi/v3/api/v1", "/openapi/v2"} {
		get(b, h, path)
		b.Run(path, func(b *testing.B) {
			for b.Loop() {
				get(b, h, path)
			}
		})
	}
}

// BenchmarkHeld reports the memory that all documents of version 3 and the one
// of version 2 take while nobody asks for them.
func BenchmarkHeld(b *testing.B) {
	catalog := newCatalog(b)
	for b.Loop() {
		before := heap()
		h := newHandler(catalog)
		get(b, h, "/openapi/v3")
		get(b, h, "/openapi/v2")
		b.ReportMetric(float64(heap()-before), "held-bytes")
		runtime.KeepAlive(h)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestEnumsCanBeLeftOut: without enumerations, documents have neither the lists of values nor
// their descriptions, in JSON and in protobuf, and are otherwise the same.
func TestEnumsCanBeLeftOut(t *testing.T) {
	catalog := newCatalog(t)
	with, without := newHandler(catalog), openapi.New(func() *resource.Catalog { return catalog }, openapi.Config{NoEnums: true})
	// prune removes enumerations from a document as kube-apiserver does.
	var prune func(v any)
	prune = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				prune(item)
			}
		case map[string]any:
			if _, ok := v["enum"].([]any); ok {
				delete(v, "enum")
			}
			if text, ok := v["description"].(string); ok {
				if before, _, found := strings.Cut(text, "Possible enum values:"); found {
					v["description"] = strings.TrimSpace(before)
				}
				if v["description"] == "" {
					delete(v, "description")
				}
			}
			for _, item := range v {
				prune(item)
			}
		}
	}
	some := false
	for _, path := range []string{"/openapi/v2", "/openapi/v3/api/v1", "/openapi/v3/apis/apps/v1"} {
		before, after := get(t, with, path), get(t, without, path)
		some = some || bytes.Contains(before, []byte(`"enum":[`))
		var want, got any
		if err := errors.Join(json.Unmarshal(before, &want), json.Unmarshal(after, &got)); err != nil {
			t.Fatal(err)
		}
		if prune(want); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %.300s, want it to differ only by its enumerations", path, after)
		}
		if path == "/openapi/v2" {
			continue
		}
		var message openapiv3.Document
		parsed, err := openapiv3.ParseDocument(after)
		if err == nil {
			err = proto.Unmarshal(do(t, without, path, "Accept", protoV3).Body.Bytes(), &message)
		}
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(parsed, &message) {
			t.Errorf("%s: got another document in protobuf than in JSON", path)
		}
	}
	if !some {
		t.Error("got no enumerations in the documents of the test")
	}
}

// TestCBOR: documents name the media types of CBOR if the server speaks it, those of custom
// resources never.
func TestCBOR(t *testing.T) {
	catalog, err := resource.NewCatalog(smallGroups(t)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, on := range []bool{false, true} {
		h := openapi.New(func() *resource.Catalog { return catalog }, openapi.Config{CBOR: on})
		var v2 struct {
			Paths map[string]map[string]json.RawMessage
		}
		if err := json.Unmarshal(get(t, h, "/openapi/v2"), &v2); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			path, method       string
			consumes, produces string // the last of each, with CBOR
		}{
			{"/apis/coordination.k8s.io/", "get", "application/cbor", "application/cbor"},
			{"/apis/coordination.k8s.io/v1/", "get", "application/cbor", "application/cbor"},
			{"/apis/coordination.k8s.io/v1/leases", "get", "*/*", "application/cbor-seq"},
			{"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", "post", "*/*", "application/cbor"},
			{"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}", "patch", "application/apply-patch+cbor", "application/cbor"},
			{"/apis/stable.example.com/v1/namespaces/{namespace}/crontabs/{name}", "patch", "application/apply-patch+yaml", "application/yaml"},
		} {
			var op struct{ Consumes, Produces []string }
			if err := json.Unmarshal(v2.Paths[c.path][c.method], &op); err != nil {
				t.Fatalf("%s %s: %v", c.method, c.path, err)
			}
			last := func(types []string, want string) bool {
				return slices.ContainsFunc(types, func(s string) bool { return strings.Contains(s, "cbor") }) == (on && strings.Contains(want, "cbor")) &&
					(!on || types[len(types)-1] == want)
			}
			if !last(op.Consumes, c.consumes) || !last(op.Produces, c.produces) {
				t.Errorf("%s %s with CBOR %v: got %q and %q, want them to end with %s and %s if it is on, and no CBOR if it is off",
					c.method, c.path, on, op.Consumes, op.Produces, c.consumes, c.produces)
			}
		}
		for path, accept := range map[string]string{"/openapi/v3/apis/coordination.k8s.io/v1": "", "/openapi/v3/apis/coordination.k8s.io": protoV3, "/openapi/v3/apis": ""} {
			if got := bytes.Contains(get(t, h, path, "Accept", accept), []byte("application/cbor")); got != on {
				t.Errorf("%s names CBOR: got %v, want %v", path, got, on)
			}
		}
	}
}
