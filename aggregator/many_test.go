package aggregator_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/internal/peertest"
	"github.com/apikeel/kelson/internal/testsize"
)

// TestMany has APIServices of which half have no server: 200 with KELSON_LONG, and
// fewer otherwise. What others ask must not take longer for it.
func TestMany(t *testing.T) {
	services := testsize.Pick(20, 20, 200)
	f := newFixture(t)
	live := f.serve(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/")
		if len(parts) != 4 || parts[1] != "apis" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"%s/v1","resources":[{"name":"things","kind":"Thing","namespaced":true,"verbs":["get"]}]}`, parts[2])
	})
	dead := fmt.Sprintf("https://localhost:%d", peertest.FreePort(t))
	const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	paths := map[string][]string{
		"one object":           {"/api/v1/namespaces/default"},
		"groups":               {"/apis"},
		"aggregated discovery": {"/apis", "Accept", aggregated},
		"resources":            {"/apis/apps/v1"},
		"readiness":            {"/readyz"},
		"OpenAPI":              {"/openapi/v3"},
	}
	before := map[string]time.Duration{}
	for name, path := range paths {
		before[name] = f.median(path)
	}
	begin := time.Now()
	for i := range services {
		f.register(fmt.Sprintf("g%d.example.com", i), []string{live, dead}[i%2])
	}
	f.until(func() bool {
		list, err := f.objects.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		counts := map[string]int{}
		for _, item := range list.Items {
			if strings.HasSuffix(item.GetName(), ".example.com") {
				conditions, _ := item.Object["status"].(map[string]any)["conditions"].([]any)
				if len(conditions) == 1 {
					counts[fmt.Sprint(conditions[0].(map[string]any)["status"])]++
				}
			}
		}
		return counts["True"] == services/2 && counts["False"] == services/2
	}, func() any { return "not all have a condition" })
	t.Logf("%d APIServices are there, and have a condition, after %v", services, time.Since(begin).Round(time.Millisecond))
	for name, path := range paths {
		now := f.median(path)
		t.Logf("%s: %v without them, %v with them", name, before[name], now)
		if now > time.Second { // far more than it should, but machines may be busy
			t.Errorf("%s takes %v", name, now)
		}
	}
	for i, want := range []string{"Current", "Stale"} {
		if v := f.versions(fmt.Sprintf("g%d.example.com", i)); len(v) != 1 || string(v[0].Freshness) != want {
			t.Errorf("discovery: %+v", v)
		}
	}
}

// median returns how long an answer usually takes.
func (f *fixture) median(path []string) time.Duration {
	f.Helper()
	var took []time.Duration
	for range 21 {
		begin := time.Now()
		if a := f.do(http.MethodGet, path[0], "", path[1:]...); a.code != http.StatusOK {
			f.Fatalf("%s: %+v", path, a)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	return took[len(took)/2].Round(time.Microsecond)
}
