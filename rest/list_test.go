package rest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/internal/yamltext"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage/engine"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
)

// sink is a client that throws the answer away and looks at the memory.
type sink struct {
	*httptest.ResponseRecorder
	bytes, pieces int
	peak          uint64
}

func (s *sink) Write(b []byte) (int, error) {
	s.bytes += len(b)
	if s.pieces++; s.pieces%16 == 0 {
		s.peak = max(s.peak, liveBytes())
	}
	return len(b), nil
}

func liveBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// serveConfigMaps returns a handler with config maps, each with so many bytes.
func serveConfigMaps(t testing.TB, objects, size int, formBytes int64) *Handler {
	t.Helper()
	backend := memory.New(memory.Options{})
	t.Cleanup(func() { backend.Close() })
	s, err := store.Open(context.Background(), backend, store.Options{EncodingBytes: formBytes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	catalog, err := resource.NewCatalog(resource.Group{Resources: []resource.Definition{{
		Resource: "configmaps", Kind: "ConfigMap", Namespaced: true,
		Versions: []resource.Version{{
			Name: "v1", New: func() resource.Object { return new(corev1.ConfigMap) },
			NewList: func() apiruntime.Object { return new(corev1.ConfigMapList) },
		}},
		Columns: []resource.Column{{Name: "Name", Type: "string"}, {Name: "Age", Type: "string"}, {Name: "Changed", Type: "string"}},
		Cells: resource.CellsFunc(func(c *corev1.ConfigMap) []any {
			since := resource.Since(c.CreationTimestamp.Time)
			return []any{c.Name, since, resource.Text{"<", since, " ago>"}}
		}),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	h := &Handler{Catalog: func() *resource.Catalog { return catalog }, Store: s}
	ctx := request.With(context.Background(), &request.Request{Received: time.Unix(1000, 0)})
	for i := range objects {
		obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("c%04d", i)}}
		if size > 0 {
			obj.Data = map[string]string{"data": strings.Repeat("x", size)}
		}
		if err := h.Ensure(ctx, "", "configmaps", obj); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// list sends a request for all config maps.
func list(h *Handler, w http.ResponseWriter, accept string, now time.Time) bool {
	r := httptest.NewRequest(http.MethodGet, "/api/v1/configmaps", nil)
	r.Header.Set("Accept", accept)
	info, err := request.Parse(r)
	if err != nil {
		panic(err)
	}
	return h.Route(w, r.WithContext(request.With(r.Context(), &request.Request{Info: info, Received: now})))
}

// TestLargeList reads a list that is larger than the memory it may take.
func TestLargeList(t *testing.T) {
	const objects, size, room = 120, 100 << 10, 5 << 20
	h := serveConfigMaps(t, objects, size, room/4)
	list(h, httptest.NewRecorder(), wire.TypeJSON+";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", time.Now()) // fills the cache
	for _, accept := range []string{wire.TypeJSON, wire.TypeJSON + ";pretty=1", wire.TypeYAML, wire.TypeProtobuf, wire.TypeJSON + ";as=Table;v=v1;g=meta.k8s.io"} {
		before := liveBytes()
		w := &sink{ResponseRecorder: httptest.NewRecorder()}
		if !list(h, w, accept, time.Now()) || w.Code != http.StatusOK {
			t.Fatalf("%s: status %d", accept, w.Code)
		}
		if !strings.Contains(accept, "Table") && w.bytes < objects*size {
			t.Errorf("%s: %d bytes for %d", accept, w.bytes, objects*size)
		}
		if w.peak > before+room {
			t.Errorf("%s: the memory grew by %d bytes while %d were written", accept, w.peak-before, w.bytes)
		}
	}
}

// TestRenderedLists: a list that is rendered item by item is what the whole would be.
func TestRenderedLists(t *testing.T) {
	h := serveConfigMaps(t, 30, wholeList/10, 0)
	for _, kind := range []string{"", ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", ";as=Table;v=v1;g=meta.k8s.io"} {
		plain := httptest.NewRecorder()
		list(h, plain, wire.TypeJSON+kind, time.Unix(2000, 0))
		for _, format := range []wire.Format{{Pretty: true}, {Media: wire.YAML}} {
			want, err := format.Render(bytes.TrimRight(plain.Body.Bytes(), "\n"))
			if err != nil {
				t.Fatal(err)
			}
			accept := format.Media.String() + kind
			if format.Pretty {
				accept += ";pretty=1"
			}
			got := httptest.NewRecorder()
			list(h, got, accept, time.Unix(2000, 0))
			if got.Code != http.StatusOK || !bytes.Equal(got.Body.Bytes(), want) {
				t.Errorf("%s: got %d with %d bytes, want %d bytes that begin with\n%.300s\nnot\n%.300s", accept, got.Code, got.Body.Len(), len(want), want, got.Body)
			}
		}
	}
}

// TestYAMLIsBounded: YAML that would take more memory than there is for it is refused, in both
// directions, and JSON with the same values is not.
func TestYAMLIsBounded(t *testing.T) {
	h := serveConfigMaps(t, 1, 0, 0)
	var data []string
	for i := range 2000 {
		data = append(data, fmt.Sprintf(`"k%04d":""`, i))
	}
	body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"many"},"data":{` + strings.Join(data, ",") + `}}`
	const path = "/api/v1/namespaces/default/configmaps"
	if a := do(t, h, "POST", path, body, "Content-Type", wire.TypeJSON); a.code != http.StatusCreated {
		t.Fatalf("create: %d %s", a.code, a.body)
	}
	for _, c := range []struct {
		limit     int64
		get, post int
	}{{1 << 20, http.StatusNotAcceptable, http.StatusRequestEntityTooLarge}, {100 << 20, http.StatusOK, http.StatusConflict}} {
		yamltext.SetLimit(c.limit)
		defer yamltext.SetLimit(256 << 20)
		if a := do(t, h, "GET", path+"/many", "", "Accept", wire.TypeYAML); a.code != c.get {
			t.Errorf("limit %d: get as YAML: got %d %.200s, want %d", c.limit, a.code, a.body, c.get)
		}
		if a := do(t, h, "POST", path, body, "Content-Type", wire.TypeYAML); a.code != c.post {
			t.Errorf("limit %d: create from YAML: got %d %.200s, want %d", c.limit, a.code, a.body, c.post)
		}
		if a := do(t, h, "GET", path+"/many", "", "Accept", wire.TypeJSON); a.code != http.StatusOK {
			t.Errorf("limit %d: get as JSON: got %d %.200s", c.limit, a.code, a.body)
		}
	}
}

// TestHeavyBodies: a body that would take more memory than there is when it is decoded is refused,
// before it is, and not one of the same length with few values.
func TestHeavyBodies(t *testing.T) {
	h := serveConfigMaps(t, 1, 0, 0)
	h.Memory = budget.New(128 << 20)
	object := func(name, owners, text string) string {
		return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `","ownerReferences":[` + owners + `]},"data":{"a":"` + text + `"}}`
	}
	const path, length = "/api/v1/namespaces/default/configmaps", 600 << 10
	heavy, light := strings.Repeat("{},", length/3)+"{}", strings.Repeat("{},", length/3)
	for _, c := range []struct {
		method, path, media, body string
		want                      int
	}{
		{"POST", path, wire.TypeJSON, object("heavy", heavy, ""), http.StatusRequestEntityTooLarge},
		{"PUT", path + "/c0000", wire.TypeJSON, object("c0000", heavy, ""), http.StatusRequestEntityTooLarge},
		{"PATCH", path + "/c0000", "application/merge-patch+json", object("c0000", heavy, ""), http.StatusRequestEntityTooLarge},
		{"DELETE", path + "/c0000", wire.TypeJSON, `{"kind":"DeleteOptions","apiVersion":"v1","dryRun":[` + heavy + `]}`, http.StatusRequestEntityTooLarge},
		{"POST", path, wire.TypeJSON, object("light", "", light), http.StatusCreated},
	} {
		if a := do(t, h, c.method, c.path, c.body, "Content-Type", c.media); a.code != c.want {
			t.Errorf("%s %s: got %d %.200s, want %d", c.method, c.path, a.code, a.body, c.want)
		}
	}
	if held := h.Memory.Decoded.Held() + h.Memory.Bodies.Held() + h.Memory.Answers.Held(); held != 0 {
		t.Errorf("%d bytes are held when all are answered", held)
	}
}

// recorder notes what it gets of the response.
type recorder struct {
	request.Recorder
	body []byte
	err  error
}

func (r *recorder) AnsweredObject(encode func() ([]byte, error)) { r.body, r.err = encode() }

// TestAuditedList: a list is recorded, unless it is so long that it would take much memory.
func TestAuditedList(t *testing.T) {
	for objects, want := range map[int]error{1: nil, 12: request.ErrTooLargeToRecord} {
		h := serveConfigMaps(t, objects, maxAuditedList/10, 0)
		r := httptest.NewRequest(http.MethodGet, "/api/v1/configmaps", nil)
		info, err := request.Parse(r)
		if err != nil {
			t.Fatal(err)
		}
		audit := new(recorder)
		w := httptest.NewRecorder()
		h.Route(w, r.WithContext(request.With(r.Context(), &request.Request{Info: info, Audit: audit})))
		if !errors.Is(audit.err, want) || want == nil && !bytes.Equal(append(audit.body, '\n'), w.Body.Bytes()) {
			t.Errorf("%d objects: got %d bytes and %v, want %v", objects, len(audit.body), audit.err, want)
		}
	}
}

// TestTableTimes keeps rows, but not what goes on with time in them.
func TestTableTimes(t *testing.T) {
	h := serveConfigMaps(t, 1, 0, 0)
	for _, test := range []struct {
		after time.Duration
		cells string
	}{
		{0, `{"cells":["c0000","0s","\u003c0s ago\u003e"],"object":{`},
		{90 * time.Second, `{"cells":["c0000","90s","\u003c90s ago\u003e"],"object":{`},
		{50 * time.Hour, `{"cells":["c0000","2d2h","\u003c2d2h ago\u003e"],"object":{`},
	} {
		w := httptest.NewRecorder()
		list(h, w, wire.TypeJSON+";as=Table;v=v1;g=meta.k8s.io", time.Unix(1000, 0).Add(test.after))
		if body := w.Body.String(); !strings.Contains(body, test.cells) {
			t.Errorf("after %v: %s", test.after, body)
		}
	}
}

// BenchmarkTable is a table of many rows without a network.
func BenchmarkTable(b *testing.B) {
	h := serveConfigMaps(b, 1000, 100, 0)
	b.ReportAllocs()
	for b.Loop() {
		w := &sink{ResponseRecorder: httptest.NewRecorder()}
		list(h, w, wire.TypeJSON+";as=Table;v=v1;g=meta.k8s.io", time.Now())
		b.SetBytes(int64(w.bytes))
	}
}

// TestLimitOfListsOfAnyState asks for a page of a list that takes any state: it is whole,
// unless LimitAny is set.
func TestLimitOfListsOfAnyState(t *testing.T) {
	for limited, want := range map[bool]int{false: 3, true: 2} {
		h, _ := serve(t, nil)
		h.LimitAny = limited
		for _, name := range []string{"a", "b", "c"} {
			do(t, h, "POST", configMaps, `{"metadata":{"name":"`+name+`"}}`)
		}
		do(t, h, "GET", configMaps, "") // waits for the cache
		a := do(t, h, "GET", configMaps+"?resourceVersion=0&limit=2", "")
		items, _ := a.object["items"].([]any)
		token, _, _ := unstructured.NestedString(a.object, "metadata", "continue")
		if len(items) != want || (token != "") != limited {
			t.Errorf("LimitAny %v: got %d objects and the token %q, want %d", limited, len(items), token, want)
		}
	}
}

// TestNoCompression: without compression a client that accepts it gets the plain answer.
func TestNoCompression(t *testing.T) {
	const large = 200 << 10
	h := serveConfigMaps(t, 2, large, 0)
	for _, off := range []bool{false, true} {
		h.NoCompression = off
		for _, path := range []string{"/api/v1/configmaps", "/api/v1/namespaces/default/configmaps/c0000"} {
			a := do(t, h, "GET", path, "", "Accept-Encoding", "gzip")
			if got := a.header.Get("Content-Encoding") == "gzip"; got == off || off && len(a.body) < large {
				t.Errorf("%s without compression %v: content encoding %q, %d bytes", path, off, a.header.Get("Content-Encoding"), len(a.body))
			}
		}
	}
}

// TestPagesAfterStart: a server that has just started shows pages of one state, with what it knows of
// the rest, before it has read all objects.
func TestPagesAfterStart(t *testing.T) {
	disk, err := engine.Open(engine.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	h, _ := serve(t, nil)
	start := func() {
		s, err := store.Open(t.Context(), disk, store.Options{ValueBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		h.Store = s
	}
	start()
	const objects = 7
	for i := range objects {
		if a := do(t, h, "POST", configMaps, fmt.Sprintf(`{"metadata":{"name":"c%d","labels":{"a":"b"}}}`, i)); a.code != http.StatusCreated {
			t.Fatalf("create: got %d %.200s", a.code, a.body)
		}
	}
	for _, c := range []struct {
		path, query string
		remaining   bool
	}{
		{"/api/v1/configmaps", "limit=3", true}, {configMaps, "limit=3", true}, {configMaps, "limit=1", true},
		{configMaps, "limit=3&labelSelector=a", false}, {configMaps, "limit=7", true}, {configMaps, "limit=9", true},
		{"/api/v1/namespaces/none/configmaps", "limit=3", true},
	} {
		start()
		var names []string
		want, state, token := objects, "", ""
		if strings.Contains(c.path, "none") {
			want = 0
		}
		for first := true; first || token != ""; first = false {
			a := do(t, h, "GET", c.path+"?"+c.query+"&continue="+token, "")
			if a.code != http.StatusOK {
				t.Fatalf("%s %s: got %d %.300s", c.path, c.query, a.code, a.body)
			}
			if first {
				state, _ = a.meta("resourceVersion").(string)
				do(t, h, "PATCH", configMaps+"/c6", `{"data":{"changed":"since"}}`, "Content-Type", "application/merge-patch+json")
			}
			items, _ := a.object["items"].([]any)
			for _, item := range items {
				obj := unstructured.Unstructured{Object: item.(map[string]any)}
				names = append(names, obj.GetName())
				if _, changed := obj.Object["data"]; changed && !first {
					t.Errorf("%s %s: %s is shown as it was changed since", c.path, c.query, obj.GetName())
				}
			}
			token, _ = a.meta("continue").(string)
			remaining, counted := a.meta("remainingItemCount").(float64)
			if got := a.meta("resourceVersion"); got != state || counted != (c.remaining && token != "") || counted && int(remaining) != want-len(names) {
				t.Errorf("%s %s: %d objects of %v and %v (%t) remain, want %d of %s", c.path, c.query, len(names), got, remaining, counted, want-len(names), state)
			}
		}
		if len(names) != want || !slices.IsSorted(names) {
			t.Errorf("%s %s: got %q", c.path, c.query, names)
		}
		do(t, h, "PATCH", configMaps+"/c6", `{"data":null}`, "Content-Type", "application/merge-patch+json")
	}
	// A forged token begins where no list ends.
	for _, after := range []string{"c3\x00\x00", "c3\x00a", "c3\x00\xff"} {
		for range 2 {
			start()
			a := do(t, h, "GET", configMaps+"?limit=1&continue="+encodeContinue("/registry/configmaps/ns/"+after, "/registry/configmaps/ns/", -1), "")
			items, _ := a.object["items"].([]any)
			if remaining, _ := a.meta("remainingItemCount").(float64); len(items) != 1 || !strings.Contains(a.body, `"c4"`) || remaining != objects-5 {
				t.Errorf("after %q: %d %.300s", after, a.code, a.body)
			}
		}
	}
}
