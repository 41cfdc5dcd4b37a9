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
	var asked atomic.Int64
	f.register("old.example.com", f.backend("old.example.com", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/openapi/v2" {
			http.NotFound(w, r)
			return
		}
		asked.Add(1)
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
	before := asked.Load()
	a := f.do(http.MethodGet, index.Paths["apis/old.example.com/v1"].ServerRelativeURL, "")
	if a.code != http.StatusOK || !strings.Contains(a.body, `"$ref":"#/components/schemas/com.example.Thing"`) || !strings.Contains(a.header.Get("Cache-Control"), "immutable") {
		t.Errorf("%+v", a)
	}
	if a = f.do(http.MethodGet, "/openapi/v2", ""); !strings.Contains(a.body, "com.example.Thing") || !strings.Contains(a.body, path) {
		t.Errorf("%d %.300s", a.code, a.body)
	}
	if now := asked.Load(); now != before {
		t.Errorf("requests for documents have made %d requests to the backend", now-before)
	}
}
