package controlplane

import (
	"net/http"
	"strings"
	"testing"
)

func TestMetrics(t *testing.T) {
	dir := t.TempDir()
	start(t, Config{DataDir: dir, Storage: StorageMemory, NoProfiling: true})
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
