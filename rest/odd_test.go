package rest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Requests that clients rarely send, and what kube-apiserver says to them.
func TestOddRequests(t *testing.T) {
	const (
		merge     = "application/merge-patch+json"
		strict    = "?fieldValidation=Strict"
		converts  = "converting (v1.%s) to (v1.DeleteOptions): unknown conversion"
		nameless  = "the name of the object (a based on URL) was undeterminable: name must be provided"
		patches   = "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml"
		configMap = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`
	)
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		code                     int
		message                  string // its end
	}{
		{"all types of one format", "GET", "/a", "", []string{"Accept", "*/json"}, 406, "application/vnd.kubernetes.protobuf"},
		{"watch of what is liked best", "GET", "?watch=1", "", []string{"Accept", "application/json;q=0.1, application/yaml"}, 406, ""},
		{"patch type in capitals", "PATCH", "/a", "{}", []string{"Content-Type", "APPLICATION/MERGE-PATCH+JSON"}, 415, "415: Unsupported Media Type"},
		{"two patch types", "PATCH", "/a", "{}", []string{"Content-Type", merge + ",application/json"}, 415, patches},
		{"patch with a character set", "PATCH", "/a", "{}", []string{"Content-Type", merge + ";charset=utf-8"}, 200, ""},
		{"patch without a kind", "PATCH", "/a", `{"kind":null}`, []string{"Content-Type", merge}, 200, ""},
		{"patch without a version", "PATCH", "/a", `{"apiVersion":null}`, []string{"Content-Type", merge}, 400, nameless},
		{"strict patch without a version", "PATCH", "/a" + strict, `{"apiVersion":null}`, []string{"Content-Type", merge}, 422, `strict decoding error: unknown field "metadata"`},
		{"patch to an unknown kind", "PATCH", "/a", `{"apiVersion":null,"kind":"X"}`, []string{"Content-Type", merge}, 422, `no kind "X" is registered for the internal version of group "" in scheme "pkg/runtime/scheme.go:111"`},
		{"patch to half a version", "PATCH", "/a", `{"apiVersion":"v1/"}`, []string{"Content-Type", merge}, 422, `"}}'`},
		{"kind in capitals", "POST", "", `{"APIVERSION":"v1","KIND":"X","metadata":{"name":"b"}}`, nil, 400, `no kind "X" is registered for version "v1" in scheme "pkg/runtime/scheme.go:111"`},
		{"half a version", "POST", "", `{"apiVersion":"v1/","kind":"ConfigMap"}`, nil, 400, `Object 'apiVersion' is missing in '{"apiVersion":"v1/","kind":"ConfigMap"}'`},
		{"space in front of YAML", "POST", "", " \n\t{", []string{"Content-Type", "application/yaml"}, 400, "(200a097b)"},
		{"update of a name that is none", "PUT", "/a%25b", `{"metadata":{"name":"a%b"}}`, nil, 400, `Name parameter invalid: "a%b": may not contain '%'`},
		{"namespace that is none", "GET", "/..", "", nil, 500, ""},
		{"delete with a Status", "DELETE", "/a", `{"apiVersion":"x/v2","kind":"Status"}`, nil, 400, fmt.Sprintf(converts, "Status")},
		{"delete with list options", "DELETE", "/a", `{"kind":"ListOptions"}`, nil, 400, fmt.Sprintf(converts, "ListOptions")},
		{"delete with half a version", "DELETE", "/a", `{"apiVersion":"x/"}`, nil, 400, `Object 'apiVersion' is missing in '{"apiVersion":"x/"}'`},
		{"delete of another one", "DELETE", "/a?uid=x", "", nil, 409, "The object might have been deleted and then recreated"},
		{"delete of another version", "DELETE", "/a?resourceVersion=1", "", nil, 409, "The object might have been modified"},
		{"unsafe delete with a grace period", "DELETE", "/a?ignoreStoreReadErrorWithClusterBreakingPotential=true&gracePeriodSeconds=1", "", nil, 422, "cannot be set together with .gracePeriodSeconds"},
		{"selector of another version", "GET", "?fieldSelector=hub%3Dx", "", nil, 400, "field label not supported: hub"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, _ := serve(t, func(d *resource.Definition) {
				d.Fields = []resource.Field{{Path: "hub", Get: func(resource.Object) string { return "" }}}
				d.Versions[0].FieldNames = map[string]string{"spoke": "hub"}
			})
			do(t, h, "POST", configMaps, configMap)
			path := configMaps + c.path
			if strings.HasPrefix(c.path, "/..") {
				path = "/api/v1/namespaces/../configmaps"
			}
			a := do(t, h, c.method, path, c.body, c.headers...)
			if a.code != c.code || !strings.HasSuffix(a.message(), c.message) {
				t.Errorf("%d %q, want %d …%q", a.code, a.message(), c.code, c.message)
			}
		})
	}
}

// A watch that begins with what there is ends that with a bookmark, also if the
// client does not ask for it in so many words. Events of it are not lists.
func TestWatchBeginning(t *testing.T) {
	t.Parallel() // it takes the seconds that the watches last
	h, _ := serve(t, func(d *resource.Definition) {
		d.Bookmark = func(obj resource.Object) { obj.SetLabels(map[string]string{"in": "bookmarks"}) }
	})
	do(t, h, "POST", configMaps, `{"metadata":{"name":"a"}}`)
	for _, version := range []string{"", "&resourceVersion=0"} {
		a := do(t, h, "GET", configMaps+"?watch=1&timeoutSeconds=1&allowWatchBookmarks=1"+version, "")
		if !strings.Contains(a.body, `"labels":{"in":"bookmarks"},"annotations":{"k8s.io/initial-events-end":"true"}`) {
			t.Errorf("with %q: %s", version, a.body)
		}
	}
	list := "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	if a := do(t, h, "GET", configMaps+"?watch=1", "", "Accept", list); a.code != 200 || a.body != "" {
		t.Errorf("%d %s", a.code, a.body)
	}
}

// With WatchList disabled, a watch that does not ask for initial events goes on as it always
// did, and one that asks is refused.
func TestWatchWithoutInitialEvents(t *testing.T) {
	t.Parallel() // it takes the seconds that the watches last
	h, _ := serve(t, nil)
	h.NoInitialEvents = true
	do(t, h, "POST", configMaps, `{"metadata":{"name":"a"}}`)
	for _, version := range []string{"", "&resourceVersion=0"} {
		a := do(t, h, "GET", configMaps+"?watch=1&timeoutSeconds=1"+version, "")
		if a.code != 200 || !strings.Contains(a.body, `"name":"a"`) {
			t.Errorf("with %q: got %d %s, want 200 and the object", version, a.code, a.body)
		}
	}
	a := do(t, h, "GET", configMaps+"?watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", "")
	if a.code != 422 || !strings.Contains(a.message(), "WatchList feature gate") {
		t.Errorf("got %d %s, want 422 that names the feature gate", a.code, a.message())
	}
}

// What kube-apiserver reads from storage has a bad resourceVersion as a bad request, and
// heeds the limit of lists of any state.
func TestReadsWithoutWatchCache(t *testing.T) {
	for _, uncached := range []bool{false, true} {
		h, _ := serve(t, func(d *resource.Definition) { d.Uncached = uncached })
		for _, name := range []string{"a", "b"} {
			do(t, h, "POST", configMaps, `{"metadata":{"name":"`+name+`"}}`)
		}
		do(t, h, "GET", configMaps, "") // after which the cache has both
		code, items := 500, 2
		if uncached {
			code, items = 400, 1
		}
		if a := do(t, h, "GET", configMaps+"/a?resourceVersion=x", ""); a.code != code {
			t.Errorf("uncached %v: got %d for a bad resourceVersion, want %d", uncached, a.code, code)
		}
		if a := do(t, h, "GET", configMaps+"?limit=1&resourceVersion=0", ""); strings.Count(a.body, `"uid"`) != items {
			t.Errorf("uncached %v: got %s, want %d objects", uncached, a.body, items)
		}
	}
}

// An object that cannot be shown as JSON breaks the response off.
func TestEmbeddedValueThatIsNoJSON(t *testing.T) {
	h, _ := serve(t, func(d *resource.Definition) {
		d.Versions[0].Check = func(obj resource.Object) error {
			if obj.GetName() == "bad" {
				return fmt.Errorf("data: %w", resource.ErrNotJSON)
			}
			return nil
		}
	})
	defer func() {
		if cause := recover(); cause != http.ErrAbortHandler {
			t.Errorf("got the panic %v, want %v", cause, http.ErrAbortHandler)
		}
	}()
	if a := do(t, h, "POST", configMaps, `{"metadata":{"name":"good"}}`); a.code != 201 {
		t.Errorf("got %d for what can be shown, want 201", a.code)
	}
	a := do(t, h, "POST", configMaps, `{"metadata":{"name":"bad"}}`)
	t.Errorf("got %d, want no response", a.code)
}

// Errors name keys as they are in etcd.
func TestErrorsNameKeysOfEtcd(t *testing.T) {
	h, _ := serve(t, nil)
	do(t, h, "POST", configMaps, `{"metadata":{"name":"a"}}`)
	const body = `{"metadata":{"name":"a","uid":"other"}}`
	for root, want := range map[string]string{"": "Key: /registry/configmaps/", "/elsewhere": "Key: /elsewhere/configmaps/", "a/b/": "Key: /a/b/configmaps/"} {
		h.KeyRoot = root
		if a := do(t, h, "PUT", configMaps+"/a", body); a.code != 409 || !strings.Contains(a.message(), want) {
			t.Errorf("below %q: got %d %s, want 409 and %s", root, a.code, a.message(), want)
		}
	}
	if a := do(t, h, "PUT", configMaps+"/a?dryRun=All", body); !strings.Contains(a.message(), "Key: /configmaps/") {
		t.Errorf("in a dry run: got %s, want a key without the root", a.message())
	}
}

// Ages in the tables of a watch count until the event is sent: an object may be younger
// than the watch.
func TestWatchShowsAgesOfNow(t *testing.T) {
	t.Parallel() // it takes the seconds that the watches last
	h, _ := serve(t, func(d *resource.Definition) {
		d.Columns = []resource.Column{{Name: "Age", Type: "string"}}
		d.Cells = func(obj resource.Object) ([]any, error) {
			return []any{resource.Since(obj.GetCreationTimestamp().Time)}, nil
		}
	})
	do(t, h, "POST", configMaps, `{"metadata":{"name":"a"}}`)
	later := func() time.Time { return time.Now().Add(150 * time.Minute) }
	for want, clock := range map[string]func() time.Time{`"cells":["150m"]`: later, `"cells":["`: nil} {
		r := httptest.NewRequest("GET", configMaps+"?watch=1&timeoutSeconds=1", nil)
		r.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
		info, err := request.Parse(r)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.Route(w, r.WithContext(request.With(r.Context(), &request.Request{Info: info, Received: time.Now().Add(-time.Hour), Clock: clock})))
		if got := w.Body.String(); !strings.Contains(got, want) || strings.Contains(got, "invalid") {
			t.Errorf("got %s, want %s with the age of now", got, want)
		}
	}
}

// What stands for a field is not metadata, and a list of a kind without columns of
// its own has no rows, rather than none.
func TestMetadataAndTables(t *testing.T) {
	h, _ := serve(t, func(d *resource.Definition) { d.FieldAnnotations = []string{"hidden"} })
	const table, meta = "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	if a := do(t, h, "GET", configMaps, "", "Accept", table); !strings.HasSuffix(a.body, `"rows":null}`+"\n") {
		t.Error(a.body)
	}
	do(t, h, "POST", configMaps, `{"metadata":{"name":"a","annotations":{"hidden":"1","g":"2"}}}`)
	for _, accept := range []string{table, meta} {
		if a := do(t, h, "GET", configMaps+"/a", "", "Accept", accept); !strings.Contains(a.body, `"annotations":{"g":"2"}`) {
			t.Error(a.body)
		}
	}
	const proto, as = "application/vnd.kubernetes.protobuf", ";as=PartialObjectMetadata%s;v=v1;g=meta.k8s.io"
	for path, list := range map[string]string{"": "List", "/a": ""} {
		a := do(t, h, "GET", configMaps+path, "", "Accept", proto+fmt.Sprintf(as, list))
		if a.code != 200 || strings.Contains(a.body, "hidden") {
			t.Errorf("%d %q", a.code, a.body)
		}
		if a := do(t, h, "GET", configMaps+path, "", "Accept", proto); !strings.Contains(a.body, "hidden") {
			t.Errorf("%d %q", a.code, a.body)
		}
	}
	if a := do(t, h, "GET", configMaps+"/a", ""); !strings.Contains(a.body, `"hidden":"1"`) {
		t.Error(a.body)
	}
}
