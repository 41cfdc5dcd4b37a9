package controlplane

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/apikeel/kelson/flow"
)

// TestServiceMetrics: what services have is counted, also by a server whose own
// service has a node port, and that knows no priorities.
func TestServiceMetrics(t *testing.T) {
	dir := t.TempDir()
	start(t, Config{DataDir: dir, Storage: StorageMemory, ServiceNodePort: 30001, Flow: flow.Config{Off: true}})
	c := newClient(t, KubeconfigFile(dir))
	c.ready()
	if _, text := c.do(http.MethodGet, "/api/v1/namespaces/default/services/kubernetes", ""); !strings.Contains(text, `"nodePort":30001`) || !strings.Contains(text, `"type":"NodePort"`) {
		t.Error(text)
	}
	const services = "/api/v1/namespaces/default/services"
	for name, spec := range map[string]string{"a": "", "b": `"clusterIP":"10.0.0.9",`, "c": `"clusterIP":"10.0.0.9",`, "d": `"type":"NodePort",`} {
		c.do(http.MethodPost, services, `{"metadata":{"name":"`+name+`"},"spec":{`+spec+`"ports":[{"port":80}]}}`)
	}
	c.do(http.MethodDelete, services+"/a", "")
	_, text := c.do(http.MethodGet, "/metrics", "")
	for _, want := range []string{
		`kube_apiserver_clusterip_allocator_allocated_ips{cidr="10.0.0.0/24"} 3`,
		`kube_apiserver_clusterip_allocator_available_ips{cidr="10.0.0.0/24"} 251`,
		`kube_apiserver_clusterip_allocator_allocation_total{cidr="10.0.0.0/24",scope="dynamic"} 2`,
		`kube_apiserver_clusterip_allocator_allocation_total{cidr="10.0.0.0/24",scope="static"} 2`,
		`kube_apiserver_clusterip_allocator_allocation_errors_total{cidr="10.0.0.0/24",scope="static"} 1`,
		`kube_apiserver_nodeport_allocator_allocated_ports 2`, `kube_apiserver_nodeport_allocator_available_ports 2766`,
		`kube_apiserver_nodeport_allocator_allocation_total{scope="dynamic"} 1`, `kube_apiserver_nodeport_allocator_allocation_total{scope="static"} 1`,
		`apiserver_current_inflight_requests{request_kind="readOnly"} `,
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("no %s", want)
		}
	}
}

func TestUsable(t *testing.T) {
	for cidr, want := range map[string]float64{"10.0.0.0/24": 254, "10.0.0.0/31": 0, "10.0.0.0/32": 0, "fd00::/112": 65535, "fd00::/64": 1<<63 - 1} {
		if got := usable(netip.MustParsePrefix(cidr)); got != want {
			t.Errorf("%s: %v, want %v", cidr, got, want)
		}
	}
}
