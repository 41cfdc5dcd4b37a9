package rest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const configMaps = "/api/v1/namespaces/ns/configmaps"

// serve returns a handler of config maps, whose definition can be changed.
func serve(t testing.TB, change func(*resource.Definition)) (*Handler, storage.Backend) {
	t.Helper()
	backend := memory.New(memory.Options{})
	t.Cleanup(func() { backend.Close() })
	s, err := store.Open(context.Background(), backend, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	def := resource.Definition{
		Resource: "configmaps", Kind: "ConfigMap", Namespaced: true,
		Versions: []resource.Version{{
			Name: "v1", New: func() resource.Object { return new(corev1.ConfigMap) },
			NewList: func() runtime.Object { return new(corev1.ConfigMapList) },
		}},
	}
	if change != nil {
		change(&def)
	}
	catalog, err := resource.NewCatalog(resource.Group{Name: def.Group, Resources: []resource.Definition{def}})
	if err != nil {
		t.Fatal(err)
	}
	return &Handler{Catalog: func() *resource.Catalog { return catalog }, Store: s}, backend
}

// answer is what came of a request.
type answer struct {
	code   int
	body   string
	object map[string]any
	header http.Header
	warned []string
}

func (a answer) message() string { m, _ := a.object["message"].(string); return m }

func (a answer) meta(field string) any {
	m, _ := a.object["metadata"].(map[string]any)
	return m[field]
}

// do sends a request; headers are names and values.
func do(t testing.TB, h *Handler, method, path, body string, headers ...string) answer {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	info, err := request.Parse(r)
	if err != nil {
		t.Fatal(err)
	}
	req := &request.Request{Info: info, Received: time.Now(), Warned: &request.Warnings{}}
	w := httptest.NewRecorder()
	if !h.Route(w, r.WithContext(request.With(r.Context(), req))) {
		t.Fatalf("%s %s is not known", method, path)
	}
	a := answer{code: w.Code, body: w.Body.String(), header: w.Header(), warned: req.Warnings()}
	_ = json.Unmarshal(w.Body.Bytes(), &a.object)
	return a
}

// aliases returns YAML that is small, and huge when it is expanded.
func aliases() string {
	b := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c <= 'i'; c++ {
		b += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 9), ","))
	}
	return b
}

func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return b.String()
}

// envelope returns an object as it is sent in protobuf.
func envelope(apiVersion, kind string, obj *corev1.ConfigMap) string {
	raw, err := obj.Marshal()
	if err != nil {
		panic(err)
	}
	return string(wire.AppendEnvelope(nil, apiVersion, kind, raw))
}

func TestBodies(t *testing.T) {
	h, _ := serve(t, nil)
	const js, ym, pb = wire.TypeJSON, wire.TypeYAML, wire.TypeProtobuf
	named := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	for _, c := range []struct {
		media, body string
		code        int
		message     string
	}{
		{js, `{"metadata":{"name":"j"}}`, 201, ""},
		{"", `{"metadata":{"name":"j2"}}`, 201, ""},
		{js + ";charset=utf-8", `{"metadata":{"name":"j3"}}`, 201, ""},
		{ym, "metadata: {name: ya}", 201, ""},
		{pb, envelope("v1", "ConfigMap", named), 201, ""},
		{"text/plain", `{}`, 415, "the body of the request was in an unknown format"},
		{"application/cbor", `{}`, 415, ""},
		{js, ``, 400, "couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)"},
		{js, `[]`, 400, "cannot unmarshal array"},
		{js, `{"metadata":{"name":"x"},"data":{"a":1}}`, 400, "cannot unmarshal number"},
		{js, `{"apiVersion":"a/b/c"}`, 400, "unexpected GroupVersion string: a/b/c"},
		{js, `{"kind":"Nope","apiVersion":"v1"}`, 400, `no kind "Nope" is registered for version "v1"`},
		{js, `{"kind":"ConfigMapList","apiVersion":"v1"}`, 400, "converting (v1.ConfigMapList) to (core.ConfigMap): unknown conversion"},
		{js, `{"metadata":{"name":"deep"},"x":` + strings.Repeat("[", 11000) + strings.Repeat("]", 11000) + `}`, 400, "exceeded max depth"},
		{js, `{"metadata":{"name":"big"},"data":{"a":"` + strings.Repeat("x", maxBody) + `"}}`, 413, "limit is 3145728"},
		{js, zipped(`{"metadata":{"name":"z"}}`), 400, ""},
		{ym, "metadata: {name: bomb}\n" + aliases(), 400, "excessive aliasing"},
		{ym, "metadata: {name: long}\ndata:\n  a: &a " + strings.Repeat("x", 500_000) + "\nc: [*a" + strings.Repeat(",*a", 26_000) + "]\n", 400, "excessive aliasing"},
		{ym, "a: [", 400, ""},
		{ym, strings.Repeat("[", 20000), 400, "exceeded max depth"},
		{pb, "", 400, "empty data"},
		{pb, "k8s\x00\xff", 400, ""},
		{pb, "{}", 400, "does not appear to be a protobuf message"},
		{pb, envelope("v1", "Pod", named), 400, `no kind "Pod"`},
		{pb, envelope("v1", "ConfigMap", named)[:12], 400, ""},
		{js, `{"metadata":{"name":"Bad Name"}}`, 422, "a lowercase RFC 1123 subdomain"},
		{js, `{"metadata":{"name":"j","generateName":"j"}}`, 409, "the server was not able to generate a unique name"},
		{js, `{"metadata":{"name":"rv","resourceVersion":"5"}}`, 500, "resourceVersion should not be set on objects to be created"},
	} {
		a := do(t, h, "POST", configMaps, c.body, "Content-Type", c.media)
		if a.code != c.code || !strings.Contains(a.message(), c.message) {
			t.Errorf("%s %.60q: %d %q", c.media, c.body, a.code, a.message())
		}
	}
}

func TestFieldValidation(t *testing.T) {
	h, _ := serve(t, nil)
	const asJSON, asYAML = `{"metadata":{"name":"x"},"bogus":1,"data":{"a":"1","a":"2"}}`, "metadata: {name: x}\nbogus: 1\ndata:\n  a: v\n  a: w\n"
	for _, c := range []struct {
		media, body, mode string
		code              int
		says              string
	}{
		{wire.TypeJSON, asJSON, "Strict", 400, `strict decoding error: unknown field "bogus", duplicate field "data.a"`},
		{wire.TypeJSON, asJSON, "", 201, `unknown field "bogus"|duplicate field "data.a"`},
		{wire.TypeJSON, asJSON, "Ignore", 201, ""},
		{wire.TypeJSON, asJSON, "Bogus", 422, `fieldValidation: Unsupported value: "Bogus"`},
		{wire.TypeYAML, asYAML, "Strict", 400, "strict decoding error: yaml: unmarshal errors:\n  line 5: key \"a\" already set in map, unknown field \"bogus\""},
		{wire.TypeYAML, asYAML, "Warn", 201, `line 5: key "a" already set in map|unknown field "bogus"`},
		{wire.TypeYAML, asYAML, "Ignore", 201, ""},
	} {
		a := do(t, h, "POST", configMaps+"?dryRun=All&fieldValidation="+c.mode, c.body, "Content-Type", c.media)
		says := strings.Join(a.warned, "|")
		if c.code != 201 {
			says = a.message()
		}
		if a.code != c.code || !strings.Contains(says, c.says) || c.says == "" && says != "" {
			t.Errorf("%s %s: %d %q", c.media, c.mode, a.code, says)
		}
	}
}

func TestPatches(t *testing.T) {
	h, _ := serve(t, nil)
	if a := do(t, h, "POST", configMaps, `{"metadata":{"name":"a"},"data":{"k":"v"}}`); a.code != 201 {
		t.Fatal(a.body)
	}
	const merge, ops, strategic = "application/merge-patch+json", "application/json-patch+json", "application/strategic-merge-patch+json"
	test := `{"op":"test","path":"/kind","value":"ConfigMap"}`
	for _, c := range []struct {
		media, body string
		code        int
		message     string
	}{
		{merge, `{"data":{"k":"w"}}`, 200, ""},
		{strategic, `{"data":{"$patch":"replace","q":"r"}}`, 200, ""},
		{ops, `[{"op":"add","path":"/data/z","value":"1"}]`, 200, ""},
		{merge, `{"metadata":{"creationTimestamp":"2001-01-01T00:00:00Z"}}`, 200, ""},
		{merge, `{"metadata":{"deletionTimestamp":"2030-01-01T00:00:00Z"}}`, 422, "metadata.deletionTimestamp: Invalid value"},
		{merge, `{"metadata":{"finalizers":["a b/c"]}}`, 422, "metadata.finalizers: Invalid value"},
		{merge, `{"metadata":{"uid":"other"}}`, 422, "metadata.uid: Invalid value: \"other\": field is immutable"},
		{merge, `{"metadata":{"name":"b"}}`, 400, "the name of the object (b) does not match the name on the URL (a)"},
		{merge, `{"metadata":{"resourceVersion":"1"}}`, 409, "the object has been modified"},
		{merge, `{"kind":"ConfigMapList"}`, 422, "converting (v1.ConfigMapList) to (core.ConfigMap): unknown conversion"},
		{merge, `[]`, 400, ""},
		{merge, `{"data":[]}`, 422, "cannot unmarshal array"},
		{ops, `{}`, 400, ""},
		{ops, `[{"op":"test","path":"/data/k","value":"no"}]`, 422, ""},
		{ops, `[` + strings.TrimSuffix(strings.Repeat(test+",", 10001), ",") + `]`, 413, "The allowed maximum operations in a JSON patch is 10000, got 10001"},
		{ops, `[` + strings.TrimSuffix(strings.Repeat(test+",", 10000), ",") + `]`, 200, ""},
		{merge, `{"data":{"k":"` + strings.Repeat("x", maxBody) + `"}}`, 413, "limit is 3145728"},
		{"application/json", `{}`, 415, "415: Unsupported Media Type"},
		{"application/apply-patch+cbor", `{}`, 415, ""},
	} {
		a := do(t, h, "PATCH", configMaps+"/a", c.body, "Content-Type", c.media)
		if a.code != c.code || !strings.Contains(a.message(), c.message) {
			t.Errorf("%s %.60q: %d %q", c.media, c.body, a.code, a.message())
		}
	}
}

func TestOwnerReferencesAreDistinct(t *testing.T) {
	h, _ := serve(t, nil)
	ref := `{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u","controller":true}`
	twice := `{"metadata":{"name":"a","ownerReferences":[` + ref + `,` + ref + `]}}`
	for _, c := range [][3]string{{"POST", "", ""}, {"PUT", "/a", ""}, {"PATCH", "/a", " after mutating admission happens"}} {
		a := do(t, h, c[0], configMaps+c[1], twice, "Content-Type", map[bool]string{true: "application/merge-patch+json", false: wire.TypeJSON}[c[0] == "PATCH"])
		refs, _ := a.meta("ownerReferences").([]any)
		if len(refs) != 1 || len(a.warned) != 1 || !strings.Contains(a.warned[0], "duplicate entries"+c[2]+"; API server") || !strings.HasSuffix(a.warned[0], "observed: u") {
			t.Errorf("%s: %d %v %q", c[0], a.code, refs, a.warned)
		}
	}
}

func TestPaging(t *testing.T) {
	h, backend := serve(t, nil)
	for i := range 5 {
		do(t, h, "POST", configMaps, fmt.Sprintf(`{"metadata":{"name":"c%d"}}`, i))
	}
	names := func(a answer) (out string) {
		items, _ := a.object["items"].([]any)
		for _, item := range items {
			out += item.(map[string]any)["metadata"].(map[string]any)["name"].(string)
		}
		return out
	}
	token := func(a answer) string { s, _ := a.meta("continue").(string); return url.QueryEscape(s) }
	first := do(t, h, "GET", configMaps+"?limit=2", "")
	if names(first) != "c0c1" || first.meta("remainingItemCount") != 3.0 || token(first) == "" {
		t.Fatal(first.body)
	}
	// Pages show one state, whatever happens meanwhile.
	do(t, h, "DELETE", configMaps+"/c2", "")
	do(t, h, "POST", configMaps, `{"metadata":{"name":"c9"}}`)
	second := do(t, h, "GET", configMaps+"?limit=2&continue="+token(first), "")
	if names(second) != "c2c3" || second.meta("resourceVersion") != first.meta("resourceVersion") {
		t.Error(second.body)
	}
	if a := do(t, h, "GET", configMaps+"?continue="+token(first)+"&resourceVersion=7", ""); a.code != 400 || a.message() != "specifying resource version is not allowed when using continue" {
		t.Error(a.body)
	}
	// One object is no page.
	if a := do(t, h, "GET", configMaps+"?limit=1&fieldSelector=metadata.name%3Dc1", ""); names(a) != "c1" || token(a) != "" {
		t.Error(a.body)
	}
	// An old state that nobody reads any more goes when the history does.
	revision, err := backend.Revision(t.Context())
	if err == nil {
		err = backend.Compact(t.Context(), revision)
	}
	if err != nil {
		t.Fatal(err)
	}
	old, _ := json.Marshal(continueToken{Version: continueVersion, Revision: 2, Start: "c1\x00"})
	expired := do(t, h, "GET", configMaps+"?limit=2&continue="+base64.RawURLEncoding.EncodeToString(old), "")
	if expired.code != 410 || expired.object["reason"] != "Expired" || token(expired) == "" {
		t.Fatal(expired.body)
	}
	rest := do(t, h, "GET", configMaps+"?continue="+token(expired), "")
	if names(rest) != "c3c4c9" {
		t.Error(rest.body)
	}
	if a := do(t, h, "GET", configMaps+"?resourceVersion=2&resourceVersionMatch=Exact", ""); a.code != 410 {
		t.Error(a.body)
	}
}

func TestListOptions(t *testing.T) {
	h, _ := serve(t, nil)
	for query, want := range map[string]string{
		"limit=":                                 `400 strconv.ParseInt: parsing "": invalid syntax`,
		"resourceVersion=x":                      `400 invalid resource version: resourceVersion: Invalid value: "x": strconv.ParseUint: parsing "x": invalid syntax`,
		"watch=1&resourceVersion=x":              `500 resourceVersion: Invalid value: "x": strconv.ParseUint: parsing "x": invalid syntax`,
		"resourceVersionMatch=Exact":             `422 ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided`,
		"sendInitialEvents=1":                    `422 ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list`,
		"watch=1&sendInitialEvents=1":            `422 ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan`,
		"watch=1&resourceVersionMatch=Exact":     `422 ListOptions.meta.k8s.io "" is invalid: [resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided, resourceVersionMatch: Unsupported value: "Exact": supported values: "NotOlderThan"]`,
		"watch=1&continue=x":                     `422 ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided`,
		"fieldSelector=spec.x%3D1":               `400 "spec.x" is not a known field selector: only "metadata.name", "metadata.namespace"`,
		"labelSelector=a%3D%3D%3Db":              `400 couldn't parse the selector string "a===b": unable to parse requirement: found '=', expected: identifier`,
		"continue=W10":                           `400 invalid continue token: continue key is not valid: json: cannot unmarshal array into Go value of type storage.continueToken`,
		"continue=W10&resourceVersion=x":         `400 invalid continue token: continue key is not valid: json: cannot unmarshal array into Go value of type storage.continueToken`,
		"resourceVersion=0&limit=1&pretty=false": `200 `,

		"resourceVersion=x&continue=" + encodeContinue("a", "", 5): `400 specifying resource version is not allowed when using continue`,
	} {
		a := do(t, h, "GET", configMaps+"?"+query, "")
		if got := fmt.Sprint(a.code, " ", a.message()); got != want {
			if !strings.HasPrefix(query, "labelSelector") || a.code != 400 {
				t.Errorf("%s\ngot  %s\nwant %s", query, got, want)
			}
		}
	}
}

// What is meant for people ends without a line of its own, as clients know it.
func TestPretty(t *testing.T) {
	h, _ := serve(t, nil)
	for query, end := range map[string]string{"": "}\n", "?pretty=true": "\n}", "?pretty=1": "\n}"} {
		if a := do(t, h, "GET", configMaps+query, ""); !strings.HasSuffix(a.body, end) || a.code != 200 {
			t.Errorf("%s: %d %q", query, a.code, a.body)
		}
	}
}

func TestNegotiate(t *testing.T) {
	const table = ";as=Table;v=v1;g=meta.k8s.io"
	for _, c := range []struct {
		accept string
		watch  bool
		want   string
	}{
		{"", false, "application/json"},
		{"*/*", false, "application/json"},
		{"application/*", false, "406: Not Acceptable"},
		{"text/html", false, "406: Not Acceptable"},
		{"text/html, application/yaml;q=0.1", false, "application/yaml"},
		{"application/json" + table, false, "application/json table"},
		{"application/vnd.kubernetes.protobuf" + table, false, "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf"},
		{"application/vnd.kubernetes.protobuf" + table + ", application/json", false, "application/json"},
		{"application/json;as=Nope;v=v1;g=meta.k8s.io", false, "only the following"},
		{"application/json;v=v1", false, "only the following"},
		{"application/json;as=Table;v=v2;g=meta.k8s.io", false, "only the following"},
		{"application/vnd.kubernetes.protobuf;stream=watch", true, "application/vnd.kubernetes.protobuf;stream=watch"},
		{"application/json;stream=other", true, "only the following"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Accept", c.accept)
		s := &scope{r: r, req: &request.Request{Info: request.Info{Verb: map[bool]string{true: request.Watch, false: request.Get}[c.watch]}}, def: &resource.Definition{}, served: &resource.Served{}}
		out, err := s.negotiate()
		got := out.ContentType()
		if out.Shape == wire.ShapeTable {
			got += " table"
		}
		if err != nil {
			got = err.Error()
		}
		if err == nil && got != c.want || err != nil && !strings.HasPrefix(got, c.want) {
			t.Errorf("%q: got %q, want %q", c.accept, got, c.want)
		}
	}
}
