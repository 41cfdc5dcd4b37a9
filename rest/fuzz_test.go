package rest

import (
	"encoding/json"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/wire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// readable checks that an answer says something, and that the server is not to
// blame for what the client sent.
func readable(t *testing.T, a answer) {
	t.Helper()
	if !json.Valid([]byte(a.body)) {
		t.Fatalf("%d %q", a.code, a.body)
	}
	// A resourceVersion that is no number is the one thing of a client's that is
	// answered like this.
	if a.code == 500 && !strings.Contains(a.message(), "strconv.ParseUint") {
		t.Fatalf("%d %s", a.code, a.body)
	}
}

// FuzzBody sends bodies in all formats.
func FuzzBody(f *testing.F) {
	formats := []string{wire.TypeJSON, wire.TypeYAML, wire.TypeProtobuf}
	for _, body := range []string{
		`{"metadata":{"name":"x"},"data":{"a":"b"}}`, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"generateName":"x"}}`, `{"metadata":null}`, `[`,
		"metadata: {name: x}\n", "a: &a [1]\nb: *a\n", "a: b\na: c\n", "%YAML 1.1\n---\n", "? x\n", "",
		envelope("v1", "ConfigMap", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Data: map[string]string{"k": "v"}}), "k8s\x00\n\x00",
	} {
		for i := range formats {
			f.Add(i, body)
		}
	}
	h, _ := serve(f, nil)
	f.Fuzz(func(t *testing.T, format int, body string) {
		if format < 0 || format >= len(formats) {
			return
		}
		readable(t, do(t, h, "POST", configMaps+"?dryRun=All", body, "Content-Type", formats[format]))
		readable(t, do(t, h, "DELETE", configMaps+"/none", body, "Content-Type", formats[format]))
	})
}

// FuzzPatch sends patches of all kinds.
func FuzzPatch(f *testing.F) {
	kinds := []string{"application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json"}
	for _, body := range []string{
		`[{"op":"add","path":"/data/k","value":"v"}]`, `[{"op":"move","from":"/data","path":"/metadata"}]`, `[{"op":"remove","path":""}]`, `[{}]`,
		`{"data":{"a":null}}`, `{"metadata":{"name":"b"}}`, `{"$patch":"delete"}`, `{"data":{"$retainKeys":["a"]}}`, `{"kind":{}}`, `null`, `1`,
	} {
		for i := range kinds {
			f.Add(i, body)
		}
	}
	h, _ := serve(f, nil)
	do(f, h, "POST", configMaps, `{"metadata":{"name":"a","labels":{"l":"v"}},"data":{"a":"1"}}`)
	f.Fuzz(func(t *testing.T, kind int, body string) {
		if kind < 0 || kind >= len(kinds) {
			return
		}
		readable(t, do(t, h, "PATCH", configMaps+"/a?dryRun=All", body, "Content-Type", kinds[kind]))
	})
}

// FuzzContinue reads tokens; what can be read goes on below the prefix.
func FuzzContinue(f *testing.F) {
	f.Add(encodeContinue("/registry/configmaps/ns/a", "/registry/configmaps/", 7))
	f.Add(encodeContinue("/registry/configmaps/ns/a", "/registry/configmaps/", -1))
	f.Add("eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6Miwic3RhcnQiOiIuLi9hIn0")
	f.Add("W10")
	f.Fuzz(func(t *testing.T, token string) {
		const prefix = "/registry/configmaps/"
		start, revision, err := decodeContinue(token, prefix)
		if err == nil && (!strings.HasPrefix(start, prefix) || strings.Contains(start, "/../") || revision == 0) {
			t.Fatalf("%q goes on at %q of %d", token, start, revision)
		}
	})
}

// FuzzQuery sends lists with any parameters and any Accept header.
func FuzzQuery(f *testing.F) {
	for _, q := range []string{"limit=1", "labelSelector=a in (b)", "fieldSelector=metadata.name=x", "resourceVersion=0&resourceVersionMatch=Exact", "continue=x", "timeoutSeconds=x", "%zz", "pretty=1"} {
		f.Add(q, "*/*")
	}
	f.Add("", "application/json;as=Table;v=v1;g=meta.k8s.io, application/json")
	f.Add("includeObject=x", "application/json;as=Table;v=v1beta1;g=meta.k8s.io")
	f.Add("", ";,q=;a=\"")
	h, _ := serve(f, nil)
	do(f, h, "POST", configMaps, `{"metadata":{"name":"a"}}`)
	f.Fuzz(func(t *testing.T, query, accept string) {
		values, err := url.ParseQuery(query)
		if err != nil || values.Has("watch") || values.Get("resourceVersion") > "0" || strings.Contains(accept, "yaml") || strings.Contains(accept, "protobuf") || strings.ContainsAny(accept, "\r\n") {
			return // streams, and waits for what will never be
		}
		readable(t, do(t, h, "GET", configMaps+"?"+values.Encode(), "", "Accept", accept))
	})
}

// FuzzAccept reads Accept headers.
func FuzzAccept(f *testing.F) {
	for _, a := range []string{"", "*/*", "application/json;q=0.5,application/yaml", "a/b;c=\"d", ";;", "application/json;as=Table;g=meta.k8s.io;v=v1"} {
		f.Add(a)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header["Accept"] = []string{accept}
		for _, cbor := range []bool{false, true} {
			s := scope{r: r, req: &request.Request{CBOR: cbor}, served: &resource.Served{Definition: &resource.Definition{}}}
			out, err := s.negotiateHeader(accept, true)
			if err == nil && (out.Media == wire.CBOR && !cbor ||
				out.Shape == wire.ShapeTable && (out.Media == wire.Protobuf || out.Media == wire.CBOR)) {
				t.Fatalf("%q with CBOR %v: %+v", accept, cbor, out)
			}
		}
	})
}
