package aggregator_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// TestOldDocuments has a backend that knows OpenAPI v2 only.
func TestOldDocuments(t *testing.T) {
	f := newFixture(t)
	const path = "/apis/old.example.com/v1/things"
	var silent atomic.Bool
	f.register("old.example.com", f.backend("old.example.com", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/openapi/v2" {
			http.NotFound(w, r)
			return
		}
		if silent.Load() {
			http.Error(w, "not now", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Etag", `"1"`)
		if r.Header.Get("If-None-Match") == `"1"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		fmt.Fprint(w, `{"swagger":"2.0","info":{"title":"old","version":"1"},"paths":{"`+path+`":{"get":{"operationId":"listThings","produces":["application/json"],
			"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/com.example.Thing"}}}}}},
			"definitions":{"com.example.Thing":{"type":"object","properties":{"size":{"type":"integer"}}}}}`)
	}))
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	f.until(func() bool {
		a := f.do(http.MethodGet, "/openapi/v3", "")
		return json.Unmarshal([]byte(a.body), &index) == nil && index.Paths["apis/old.example.com/v1"].ServerRelativeURL != ""
	}, func() any { return index })
	silent.Store(true) // nobody needs it for what follows
	a := f.do(http.MethodGet, index.Paths["apis/old.example.com/v1"].ServerRelativeURL, "")
	if a.code != http.StatusOK || !strings.Contains(a.body, `"$ref":"#/components/schemas/com.example.Thing"`) || !strings.Contains(a.header.Get("Cache-Control"), "immutable") {
		t.Errorf("%+v", a)
	}
	if a = f.do(http.MethodGet, "/openapi/v2", ""); !strings.Contains(a.body, "com.example.Thing") || !strings.Contains(a.body, path) {
		t.Errorf("%d %.300s", a.code, a.body)
	}
}

// TestNewDocuments has a backend that knows OpenAPI v3 only.
func TestNewDocuments(t *testing.T) {
	f := newFixture(t)
	const path = "/apis/new.example.com/v1/things"
	f.register("new.example.com", f.backend("new.example.com", func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/openapi/v3":
			fmt.Fprint(w, `{"paths":{"apis/new.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/new.example.com/v1?hash=1"}}}`)
		case "/openapi/v3/apis/new.example.com/v1":
			fmt.Fprint(w, `{"openapi":"3.0.0","paths":{"`+path+`":{"parameters":[{"name":"pretty","in":"query","schema":{"type":"string","uniqueItems":true}}],"post":{"operationId":"createThing",
				"requestBody":{"required":true,"content":{"*/*":{"schema":{"$ref":"#/components/schemas/com.example.Thing"}}}},
				"responses":{"200":{"description":"OK","content":{"application/json":{"schema":{"$ref":"#/components/schemas/com.example.Thing"}}}}}}}},
				"components":{"schemas":{"com.example.Thing":{"type":"object","properties":{"port":{"oneOf":[{"type":"integer"},{"type":"string"}]}}}}}}`)
		default:
			http.NotFound(w, r)
		}
	}))
	var document struct {
		Paths       map[string]json.RawMessage
		Definitions map[string]json.RawMessage
	}
	f.until(func() bool {
		a := f.do(http.MethodGet, "/openapi/v2", "")
		return json.Unmarshal([]byte(a.body), &document) == nil && document.Paths[path] != nil
	}, func() any { return "it is not in the document" })
	const item = `{"parameters":[{"in":"query","name":"pretty","type":"string","uniqueItems":true}],"post":{"consumes":["*/*"],"operationId":"createThing",` +
		`"parameters":[{"in":"body","name":"body","required":true,"schema":{"$ref":"#/definitions/com.example.Thing"}}],"produces":["application/json"],` +
		`"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/com.example.Thing"}}}}}`
	if got := string(document.Paths[path]); got != item {
		t.Errorf("%s", got)
	}
	if got := string(document.Definitions["com.example.Thing"]); got != `{"properties":{"port":{"type":"string"}},"type":"object"}` {
		t.Errorf("%s", got)
	}
}

// TestDiscoveryOfUnavailable: a backend that fails the check but has aggregated discovery
// is in that of the server, as with kube-apiserver.
func TestDiscoveryOfUnavailable(t *testing.T) {
	f := newFixture(t)
	const group, aggregated = "odd.example.com", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	f.register(group, f.serve(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis" {
			http.Error(w, "not here", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", aggregated)
		fmt.Fprintf(w, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[{"metadata":{"name":%q},"versions":[{"version":"v1","resources":[{"resource":"jobs","verbs":["get"]}]}]}]}`, group)
	}))
	f.until(func() bool {
		versions := f.versions(group)
		return len(versions) == 1 && versions[0].Freshness == "Current" && len(versions[0].Resources) == 1
	}, func() any { return f.versions(group) })
}
