package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/wire"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
)

// cborOf returns a value in CBOR, as clients send it.
func cborOf(t testing.TB, v any) string {
	t.Helper()
	body, err := direct.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return "\xd9\xd9\xf7" + string(body)
}

// doCBOR is do for a server that speaks CBOR. The object of the answer is what it is in
// JSON, whatever it is in.
func doCBOR(t testing.TB, h *Handler, method, path, body string, headers ...string) answer {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	info, err := request.Parse(r)
	if err != nil {
		t.Fatal(err)
	}
	req := &request.Request{Info: info, Received: time.Now(), Warned: &request.Warnings{}, CBOR: true}
	w := httptest.NewRecorder()
	if !h.Route(w, r.WithContext(request.With(r.Context(), req))) {
		t.Fatalf("%s %s is not known", method, path)
	}
	text := w.Body.Bytes()
	if wire.IsCBOR(text) && w.Header().Get("Content-Type") == wire.TypeCBOR {
		if text, err = cborToJSON(text); err != nil {
			t.Fatalf("%s %s: %v in % x", method, path, err, w.Body.Bytes())
		}
	}
	a := answer{code: w.Code, body: string(text), header: w.Header(), warned: req.Warnings()}
	_ = json.Unmarshal(text, &a.object)
	return a
}

// TestCBORVerbs sends every verb in CBOR and reads the answers in CBOR. The messages are
// those of kube-apiserver.
func TestCBORVerbs(t *testing.T) {
	h, _ := serve(t, nil)
	type m = map[string]any
	configMap := func(name string, more m) string {
		obj := m{"kind": "ConfigMap", "apiVersion": "v1", "metadata": m{"name": name}, "data": m{"a": "b"}}
		for k, v := range more {
			obj[k] = v
		}
		return cborOf(t, obj)
	}
	const cbor, inJSON = wire.TypeCBOR, wire.TypeJSON
	for _, c := range []struct {
		method, path, body, accept string
		code                       int
		want                       string // in the answer
	}{
		{"POST", "", configMap("a", nil), cbor, 201, `"data":{"a":"b"}`},
		{"POST", "", configMap("bytes", m{"binaryData": m{"x": []byte{0, 255}}}), inJSON, 201, `"binaryData":{"x":"AP8="}`},
		{"GET", "/bytes", "", cbor, 200, `"binaryData":{"x":"AP8="}`},
		{"POST", "", configMap("a", nil), cbor, 409, `configmaps \"a\" already exists`},
		{"POST", "?fieldValidation=Strict", configMap("b", m{"more": 1}), cbor, 400, `ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: cbor: found unknown field at map element index 2`},
		{"POST", "?fieldValidation=Ignore&dryRun=All", configMap("b", m{"more": 1}), cbor, 201, `"name":"b"`},
		{"POST", "", configMap("b", m{"kind": "Secret"}), cbor, 400, `no kind \"Secret\" is registered for version \"v1\"`},
		{"POST", "", configMap("b", m{"data": "text"}), cbor, 400, `cannot be handled as a ConfigMap: cbor: cannot unmarshal byte string into Go struct field v1.ConfigMap.data of type map[string]string`},
		{"POST", "", "\xff", cbor, 400, `the object provided is unrecognized (must be of type ConfigMap): unable to determine group/version/kind: cbor: unexpected \"break\" code (ff)`},
		{"POST", "", "", cbor, 400, `unable to determine group/version/kind: EOF (\u003cempty\u003e)`},
		{"POST", "", "\xa2\x41a\x01\x41a\x02", cbor, 400, `duplicate map key`},
		{"POST", "", "\xa1\x61\xff\x01", cbor, 400, `invalid UTF-8`},
		{"POST", "", "\xbf\x68metadata\xbf\x64name\x7f\x62in\x63def\xff\xff\xff", cbor, 201, `"name":"indef"`},
		{"PUT", "/a", configMap("a", m{"data": m{"c": "d"}}), cbor, 200, `"data":{"c":"d"}`},
		{"GET", "/a", "", cbor, 200, `"kind":"ConfigMap"`},
		{"GET", "/a", "", "application/json;q=0.1, application/cbor", 200, `"kind":"ConfigMap"`},
		{"GET", "/a", "", cbor + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1", 200, `"kind":"PartialObjectMetadata"`},
		{"GET", "/a", "", cbor + ";as=Table;g=meta.k8s.io;v=v1", 406, "accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf, application/cbor"},
		{"GET", "/a", "", "application/cbor-seq", 406, `representations: application/json, application/yaml, application/vnd.kubernetes.protobuf, application/cbor"`},
		{"GET", "", "", "application/cbor-seq", 406, "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf, application/cbor"},
		{"GET", "", "", "text/x", 406, "application/cbor, application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch, application/cbor-seq"},
		{"GET", "", "", cbor, 200, `"kind":"ConfigMapList"`},
		{"GET", "", "", cbor + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", 200, `"kind":"PartialObjectMetadataList"`},
		{"GET", "/none", "", cbor, 404, `configmaps \"none\" not found`},
		{"DELETE", "/a", cborOf(t, m{"kind": "Other"}), cbor, 400, `no kind \"Other\" is registered`},
		{"DELETE", "/a", "\xff", cbor, 400, `unexpected \"break\" code`},
		{"DELETE", "/a", cborOf(t, m{"preconditions": m{"uid": "other"}}), cbor, 409, "the UID in the precondition (other) does not match"},
		{"DELETE", "/a", cborOf(t, m{"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "unknown": 1}), cbor, 200, `"status":"Success"`},
		{"DELETE", "", cborOf(t, m{}), cbor, 200, `"kind":"ConfigMapList"`},
	} {
		a := doCBOR(t, h, c.method, configMaps+c.path, c.body, "Content-Type", cbor, "Accept", c.accept)
		wantType := cbor
		if c.accept == inJSON || c.code == 406 {
			wantType = inJSON
		}
		if a.code != c.code || !strings.Contains(a.body, c.want) || a.header.Get("Content-Type") != wantType {
			t.Errorf("%s %s % x, Accept %s:\n got %d %s %s\nwant %d %s %s", c.method, c.path, c.body, c.accept, a.code, a.header.Get("Content-Type"), a.body, c.code, wantType, c.want)
		}
	}
	if a := doCBOR(t, h, "POST", configMaps+"?fieldValidation=Warn", configMap("warned", m{"more": 1}), "Content-Type", cbor); a.code != 201 ||
		!reflect.DeepEqual(a.warned, []string{"cbor: found unknown field at map element index 2"}) {
		t.Errorf("warned of an unknown field: got %d %q", a.code, a.warned)
	}
}

// TestCBOROff refuses CBOR without the gate.
func TestCBOROff(t *testing.T) {
	h, _ := serve(t, nil)
	do(t, h, "POST", configMaps, `{"metadata":{"name":"a"}}`)
	body := cborOf(t, map[string]any{"metadata": map[string]any{"name": "b"}})
	for _, c := range []struct {
		method, path, kind, accept string
		code                       int
	}{
		{"POST", configMaps, wire.TypeCBOR, "", 415},
		{"PUT", configMaps + "/a", wire.TypeCBOR, "", 415},
		{"DELETE", configMaps + "/a", wire.TypeCBOR, "", 415},
		{"PATCH", configMaps + "/a", "application/apply-patch+cbor", "", 415},
		{"GET", configMaps + "/a", "", wire.TypeCBOR, 406},
		{"GET", configMaps, "", wire.TypeCBOR, 406},
		{"GET", configMaps + "?watch=1", "", "application/cbor-seq", 406},
	} {
		a := do(t, h, c.method, c.path, body, "Content-Type", c.kind, "Accept", c.accept)
		if a.code != c.code || strings.Contains(a.body, "cbor") || !json.Valid([]byte(a.body)) {
			t.Errorf("%s %s %s %s: got %d %s, want %d and no word of CBOR", c.method, c.path, c.kind, c.accept, a.code, a.body, c.code)
		}
	}
}

// TestCBORWatch reads a watch as a sequence of items.
func TestCBORWatch(t *testing.T) {
	h, _ := serve(t, nil)
	doCBOR(t, h, "POST", configMaps, cborOf(t, map[string]any{"metadata": map[string]any{"name": "a"}}), "Content-Type", wire.TypeCBOR)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := httptest.NewRequest("GET", configMaps+"?watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", nil).WithContext(ctx)
	r.Header.Set("Accept", wire.TypeCBOR)
	info, err := request.Parse(r)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.Route(w, r.WithContext(request.With(ctx, &request.Request{Info: info, Received: time.Now(), CBOR: true})))
	if got := w.Header().Get("Content-Type"); got != "application/cbor-seq" {
		t.Errorf("Content-Type: got %q, want application/cbor-seq", got)
	}
	var got []string
	for _, part := range bytes.Split(w.Body.Bytes(), []byte("\xd9\xd9\xf7\xa2"))[1:] {
		var event map[string]any
		if err := direct.Unmarshal(append([]byte("\xa2"), part...), &event); err != nil {
			t.Fatalf("%v in % x", err, part)
		}
		name, _, _ := unstructured.NestedString(event, "object", "metadata", "name")
		got = append(got, fmt.Sprint(event["type"], " ", name))
	}
	if want := []string{"ADDED a", "BOOKMARK "}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// things makes the resource of serve one of maps, as custom resources are.
func things(def *resource.Definition) {
	def.Group, def.Resource, def.Kind, def.ListKind, def.Namespaced, def.StoreCBOR = "example.com", "things", "Thing", "ThingList", false, true
	def.Versions = []resource.Version{{
		Name: "v1", New: func() resource.Object { return &unstructured.Unstructured{Object: map[string]any{}} },
		NewList: func() apiruntime.Object { return &unstructured.UnstructuredList{} },
		Prune: func(obj resource.Object, _ resource.Pruning) ([]string, error) {
			delete(obj.(*unstructured.Unstructured).Object, "unknown")
			return nil, nil
		},
	}}
}

// TestCBOROfMaps creates and reads custom resources, which are stored in CBOR.
func TestCBOROfMaps(t *testing.T) {
	h, backend := serve(t, things)
	const path = "/apis/example.com/v1/things"
	type m = map[string]any
	body := func(name string, more m) string {
		obj := m{"kind": "Thing", "apiVersion": "example.com/v1", "metadata": m{"name": name}, "spec": m{"n": 7, "f": 1.5, "s": "ü", "l": []any{nil, true}}}
		for k, v := range more {
			obj[k] = v
		}
		return cborOf(t, obj)
	}
	for _, c := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"POST", "", body("a", m{"unknown": 1}), 201, `"spec":{"f":1.5,"l":[null,true],"n":7,"s":"ü"}}`},
		{"GET", "/a", "", 200, `"spec":{"f":1.5,"l":[null,true],"n":7,"s":"ü"}}`},
		{"GET", "", "", 200, `"kind":"ThingList"`},
		{"POST", "", body("b", m{"kind": "Other"}), 422, `kind: Invalid value: \"Other\": must be Thing`},
		{"POST", "", body("b", m{"apiVersion": "example.com/v2"}), 400, "the API version in the data (example.com/v2) does not match the expected API version (example.com/v1)"},
		{"POST", "", cborOf(t, m{"metadata": m{"name": "b"}}), 400, "Object 'Kind' is missing in"},
		{"POST", "", "\x80", 400, "cannot unmarshal array"},
		{"POST", "", "\xff", 400, "break"},
	} {
		a := doCBOR(t, h, c.method, path+c.path, c.body, "Content-Type", wire.TypeCBOR, "Accept", wire.TypeCBOR)
		if a.code != c.code || !strings.Contains(a.body, c.want) {
			t.Errorf("%s %s % x: got %d %s, want %d %s", c.method, c.path, c.body, a.code, a.body, c.code, c.want)
		}
	}
	found := false
	page, err := backend.List(context.Background(), "/registry/example.com/things/", storage.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range page.Items {
		found = true
		if !wire.IsCBOR(kv.Value) {
			t.Errorf("%s: got %q in storage, want CBOR", kv.Key, kv.Value)
		}
	}
	if !found {
		t.Error("got nothing in storage, want an object")
	}
	if a := do(t, h, "GET", path+"/a", ""); a.code != 200 || !strings.Contains(a.body, `"spec":{"f":1.5,"l":[null,true],"n":7,"s":"ü"}}`) {
		t.Errorf("in JSON: got %d %s", a.code, a.body)
	}
}

// hostileCBOR are bodies that are small and claim, or become, much.
func hostileCBOR() map[string]string {
	return map[string]string{
		"deep arrays":          "\xa1\x44data" + strings.Repeat("\x81", 1<<20),
		"deep maps":            strings.Repeat("\xa1\x41a", 1<<20) + "\x01",
		"deep tags":            "\xa1\x44data" + strings.Repeat("\xc6", 1<<20) + "\x01",
		"deep indefinite":      "\xa1\x44data" + strings.Repeat("\x9f", 1<<20),
		"huge array":           "\xa1\x44data\x9b\x00\x00\x00\x00\x7f\xff\xff\xff",
		"huger array":          "\xa1\x44data\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
		"huge map":             "\xbb\x00\x00\x00\x00\x7f\xff\xff\xff",
		"huge bytes":           "\xa1\x44data\x5b\x7f\xff\xff\xff\xff\xff\xff\xff",
		"huge text":            "\xa1\x44data\x7b\x00\x00\x00\x01\x00\x00\x00\x00",
		"duplicate key":        "\xa2\x44data\xa0\x44data\xa0",
		"duplicate in data":    "\xa1\x44data\xa2\x41a\x41b\x41a\x41c",
		"text and bytes key":   "\xa1\x44data\xa2\x41a\x41b\x61a\x41c",
		"invalid UTF-8":        "\xa1\x44data\xa1\x61\xff\x41b",
		"NaN":                  "\xa1\x44data\xf9\x7e\x00",
		"bignum":               "\xa1\x44data\xc2\x49\x01\x00\x00\x00\x00\x00\x00\x00\x00",
		"undefined":            "\xa1\x44data\xf7",
		"break":                "\xff",
		"unfinished":           "\xbf\x44data",
		"integer as key":       "\xa1\x01\x02",
		"chunks of other type": "\xa1\x44data\x5f\x61a\xff",
		"trailing":             "\xa0\xa0",
	}
}

// TestHostileCBOR refuses bodies without spending memory on what they claim.
func TestHostileCBOR(t *testing.T) {
	structs, _ := serve(t, nil)
	maps, _ := serve(t, things)
	for name, body := range hostileCBOR() {
		for path, h := range map[string]*Handler{configMaps: structs, "/apis/example.com/v1/things": maps} {
			for _, c := range []struct{ method, path, kind string }{
				{"POST", path, wire.TypeCBOR},
				{"DELETE", path + "/x", wire.TypeCBOR},
			} {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				a := doCBOR(t, h, c.method, c.path, body, "Content-Type", c.kind)
				runtime.ReadMemStats(&after)
				if spent := after.TotalAlloc - before.TotalAlloc; a.code < 400 || a.code >= 500 || spent > 256<<20 {
					t.Errorf("%s, %s %s: got %d %.200s with %d bytes of memory, want an error of the client", name, c.method, c.path, a.code, a.body, spent)
				}
			}
		}
		if text, err := decodeCBORPatch([]byte(body)); err == nil {
			t.Errorf("%s as a patch: got %s, want an error", name, text)
		}
	}
}

// TestCBORPatchIsYAML applies what YAML would not take as it is.
func TestCBORPatchIsYAML(t *testing.T) {
	got, err := decodeCBORPatch([]byte(cborOf(t, map[string]any{"a": "\x7f\u0085\ufeffü<\U0001f600"})))
	if want := `{"a":"\u007f\u0085\ufeffü\u003c😀"}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

// FuzzCBOR sends bodies in CBOR to structs and maps. The server answers, and is never to
// blame.
func FuzzCBOR(f *testing.F) {
	for _, body := range hostileCBOR() {
		f.Add([]byte(body[:min(len(body), 4<<10)]))
	}
	f.Add([]byte(cborOf(f, map[string]any{"kind": "ConfigMap", "apiVersion": "v1", "metadata": map[string]any{"name": "x", "labels": map[string]any{"a": "b"}}, "data": map[string]any{"k": "v"}})))
	f.Add([]byte(cborOf(f, map[string]any{"kind": "Thing", "apiVersion": "example.com/v1", "metadata": map[string]any{"name": "x"}, "spec": []any{1, 1.5, nil, true, "t"}})))
	f.Add([]byte(cborOf(f, map[string]any{"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": []any{"All"}})))
	structs, _ := serve(f, nil)
	maps, _ := serve(f, things)
	f.Fuzz(func(t *testing.T, body []byte) {
		for path, h := range map[string]*Handler{configMaps: structs, "/apis/example.com/v1/things": maps} {
			readable(t, doCBOR(t, h, "POST", path+"?dryRun=All", string(body), "Content-Type", wire.TypeCBOR, "Accept", wire.TypeCBOR))
			readable(t, doCBOR(t, h, "DELETE", path+"/none", string(body), "Content-Type", wire.TypeCBOR))
		}
		if text, err := decodeCBORPatch(body); err == nil && !json.Valid(text) {
			t.Fatalf("patch: got %q, want JSON", text)
		}
	})
}

// TestHeavyBodiesByTheirMediaType checks that a body is weighed as what it is decoded as, whatever
// else its content type says.
func TestHeavyBodiesByTheirMediaType(t *testing.T) {
	h := serveConfigMaps(t, 1, 0, 0)
	h.Memory = budget.New(128 << 20)
	const path, count = "/api/v1/namespaces/default/configmaps", 200_000
	inJSON := `{"metadata":{"name":"heavy","ownerReferences":[` + strings.Repeat("{},", count) + `{}]}}`
	inCBOR := cborOf(t, map[string]any{"metadata": map[string]any{"name": "heavy", "ownerReferences": slices.Repeat([]any{map[string]any{}}, count)}})
	for media, body := range map[string]string{
		wire.TypeJSON: inJSON, wire.TypeJSON + "; x=cbor": inJSON, wire.TypeCBOR: inCBOR, "application/CBOR": inCBOR, " application/cbor ;x=y": inCBOR,
	} {
		if a := doCBOR(t, h, "POST", path, body, "Content-Type", media); a.code != http.StatusRequestEntityTooLarge {
			t.Errorf("%q: got %d %.200s, want %d", media, a.code, a.body, http.StatusRequestEntityTooLarge)
		}
	}
}
