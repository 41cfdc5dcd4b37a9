package controlplane

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func TestMetrics(t *testing.T) {
	dir := t.TempDir()
	start(t, Config{DataDir: dir, Storage: StorageMemory, Debug: Debug{NoProfiling: true}})
	c := newClient(t, KubeconfigFile(dir))
	c.ready()
	for _, path := range []string{"/api/v1/namespaces", "/api/v1/things", "/apis/none/v1/things", "/nowhere"} {
		c.do(http.MethodGet, path, "")
	}
	code, text := c.do(http.MethodGet, "/metrics", "")
	if code != http.StatusOK {
		t.Fatal(code, text)
	}
	for _, want := range []string{
		`apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="namespaces",scope="cluster",subresource="",verb="LIST",version="v1"} 1`,
		`apiserver_request_duration_seconds_count{component="apiserver",dry_run="",group="",resource="namespaces",scope="cluster",subresource="",verb="LIST",version="v1"} 1`,
		`apiserver_resource_objects{group="",resource="namespaces"} `,
		`apiserver_current_inflight_requests{request_kind="readOnly"} `,
		`apiserver_flowcontrol_nominal_limit_seats{priority_level="workload-low"} `,
		`apiserver_flowcontrol_dispatched_requests_total{flow_schema="exempt",priority_level="exempt"} `,
		`apiserver_flowcontrol_request_execution_seconds_count{flow_schema="exempt",priority_level="exempt",type="regular"} `,
		`apiserver_storage_size_bytes{storage_cluster_id="etcd-0"} `,
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(text, "things") || strings.Contains(text, "nowhere") {
		t.Error("clients can make series")
	}
	// Without profiling there are neither profiles nor a reset.
	if code, _ := c.do(http.MethodGet, "/debug/pprof/", ""); code != http.StatusNotFound {
		t.Errorf("profiles: %d", code)
	}
	if _, text := c.do(http.MethodDelete, "/metrics", ""); text == "metrics reset\n" {
		t.Error("the metrics were reset")
	}
}

// TestMetricsOfParts looks at what only some requests do.
func TestMetricsOfParts(t *testing.T) {
	dir := t.TempDir()
	start(t, Config{DataDir: dir, Storage: StorageMemory})
	c := newClient(t, KubeconfigFile(dir))
	c.ready()
	for _, r := range []struct {
		method, path, body string
		want               int
	}{
		{http.MethodGet, "/api/v1/namespaces/default/pods/none/log", "", http.StatusNotFound},
		{http.MethodGet, "/api/v1/namespaces/default/pods/none/log?insecureSkipTLSVerifyBackend=true", "", http.StatusNotFound},
		{http.MethodGet, "/api/v1/namespaces/default/pods/none/log?tailLines=-1", "", http.StatusUnprocessableEntity},
		{http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "things.example.com"},
			"spec": {"group": "example.com", "scope": "Cluster", "names": {"plural": "things", "kind": "Thing"}, "versions": [{
				"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {
					"n": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 1"}]}}}}}]}}`, http.StatusCreated},
	} {
		if code, text := c.do(r.method, r.path, r.body); code != r.want {
			t.Fatalf("%s %s: %d %s", r.method, r.path, code, text)
		}
	}
	c.until("/apis/example.com/v1/things", func(code int, _ string) bool { return code == http.StatusOK })
	for n, want := range []int{http.StatusUnprocessableEntity, http.StatusUnprocessableEntity, http.StatusCreated} {
		body := fmt.Sprintf(`{"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}, "n": %d}`, n)
		if code, text := c.do(http.MethodPost, "/apis/example.com/v1/things", body); code != want {
			t.Fatalf("%d: %d %s", n, code, text)
		}
	}
	_, text := c.do(http.MethodGet, "/metrics", "")
	for _, want := range []string{
		`kube_apiserver_pod_logs_insecure_backend_total{usage="enforce_tls"} 2`,
		`kube_apiserver_pod_logs_insecure_backend_total{usage="skip_tls_allowed"} 1`,
		`kube_apiserver_pod_logs_backend_tls_failure_total 0`,
		// Once to judge the definition, once to apply it.
		`apiserver_cel_compilation_duration_seconds_count 2`,
		`apiserver_cel_evaluation_duration_seconds_count 3`,
		`apiserver_kube_aggregator_x509_missing_san_total 0`,
		`apiserver_storage_data_key_generation_failures_total 0`,
		`apiserver_envelope_encryption_dek_cache_fill_percent 0`,
	} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}

// scrape reads the metrics as Prometheus does.
func (c *client) scrape() map[string]*dto.MetricFamily {
	c.t.Helper()
	_, text := c.do(http.MethodGet, "/metrics", "")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		c.t.Fatal(err)
	}
	return families
}

// TestFlood: whatever clients invent, they make no series.
func TestFlood(t *testing.T) {
	dir := t.TempDir()
	start(t, Config{DataDir: dir, Storage: StorageMemory})
	c := newClient(t, KubeconfigFile(dir))
	c.ready()
	flood := func(from, to int) {
		for i := from; i < to; i++ {
			word := fmt.Sprintf("invented%d", i)
			for _, r := range [][2]string{
				{http.MethodGet, "/apis/" + word + "/v1/" + word}, {http.MethodGet, "/api/v1/namespaces/" + word + "/pods/" + word},
				{http.MethodGet, "/api/v1/namespaces/default/pods/x/" + word}, {"INVENTED" + fmt.Sprint(i), "/api/v1/pods"},
				{http.MethodGet, "/" + word}, {http.MethodPatch, "/api/v1/namespaces/default/configmaps/x?dryRun=" + word},
				{http.MethodGet, "/readyz/" + word}, {http.MethodGet, "/api/v1/configmaps?fieldManager=" + word + "&labelSelector=" + word},
			} {
				req, err := http.NewRequestWithContext(t.Context(), r[0], c.url+r[1], nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("User-Agent", word)
				req.Header.Set("Content-Type", word)
				req.Header.Set("Accept", "application/json, "+word+"/json")
				if i%2 == 0 {
					req.Header.Set("Impersonate-User", word)
				}
				resp, err := c.http.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
			}
		}
	}
	series := func() (n int) {
		for _, family := range c.scrape() {
			n += len(family.Metric)
			for _, m := range family.Metric {
				for _, l := range m.Label {
					if strings.Contains(strings.ToLower(l.GetValue()), "invented") {
						t.Fatalf("%s has a series of %s", family.GetName(), l.GetValue())
					}
				}
			}
		}
		return n
	}
	flood(0, 4) // makes those that there are for all that is not known
	before := series()
	flood(4, 200)
	// The server itself does this and that meanwhile.
	if after := series(); after > before+100 {
		t.Errorf("%d series, before %d", after, before)
	}
}
