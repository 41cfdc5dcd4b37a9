package discovery

import (
	"context"
	"encoding/json"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/apikeel/kelson/request"
)

func TestOldEndpointSlices(t *testing.T) {
	const old = `{"addressType": "IPv4", "ports": [{"port": 80}], "endpoints": [
		{"addresses": ["10.0.0.1"], "topology": {"kubernetes.io/hostname": "n", "topology.kubernetes.io/zone": "z"}},
		{"addresses": ["10.0.0.2"], "topology": {"topology.kubernetes.io/zone": "z"}, "nodeName": "n"},
		{"addresses": ["10.0.0.3"]}
	]}`
	const hub = `{"addressType": "IPv4", "ports": [{"name": "", "protocol": "TCP", "port": 80}], "endpoints": [
		{"addresses": ["10.0.0.1"], "deprecatedTopology": {"kubernetes.io/hostname": "n"}, "zone": "z"},
		{"addresses": ["10.0.0.2"], "zone": "z", "nodeName": "n"},
		{"addresses": ["10.0.0.3"]}
	]}`
	var want discoveryv1.EndpointSlice
	if err := json.Unmarshal([]byte(hub), &want); err != nil {
		t.Fatal(err)
	}
	v := oldEndpointSlices()[0]
	obj := v.New()
	if err := json.Unmarshal([]byte(old), obj); err != nil {
		t.Fatal(err)
	}
	v.Default(obj)
	before := obj.DeepCopyObject()
	got, err := v.ToHub(obj)
	if err != nil || !equality.Semantic.DeepEqual(got, &want) {
		t.Errorf("the hub has %+v, %v", got, err)
	}
	back, err := v.FromHub(got)
	if err != nil || !equality.Semantic.DeepEqual(back, before) || !equality.Semantic.DeepEqual(obj, before) {
		t.Errorf("%+v comes back as %+v, %v", before, back, err)
	}
}

func TestDropTopology(t *testing.T) {
	endpoint := func(node string, topology map[string]string) discoveryv1.Endpoint {
		e := discoveryv1.Endpoint{Addresses: []string{"10.0.0.1"}, DeprecatedTopology: topology}
		if node != "" {
			e.NodeName = &node
		}
		return e
	}
	hostname := func(name string) map[string]string { return map[string]string{"kubernetes.io/hostname": name} }
	slice := func(endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{Endpoints: endpoints}
	}
	old := slice(endpoint("", hostname("n")))
	for name, tt := range map[string]struct {
		version        string
		old, new, want *discoveryv1.EndpointSlice
	}{
		"create":           {"v1", nil, slice(endpoint("", hostname("n"))), slice(endpoint("", nil))},
		"create in beta":   {"v1beta1", nil, slice(endpoint("", hostname("n"))), slice(endpoint("", hostname("n")))},
		"unchanged":        {"v1", old, slice(endpoint("", hostname("n"))), slice(endpoint("", hostname("n")))},
		"known node":       {"v1", old, slice(endpoint("", hostname("n")), endpoint("", nil)), slice(endpoint("n", nil), endpoint("", nil))},
		"another node":     {"v1", old, slice(endpoint("", hostname("m"))), slice(endpoint("", nil))},
		"has a node since": {"v1", old, slice(endpoint("m", hostname("n"))), slice(endpoint("m", nil))},
	} {
		req := &request.Request{Info: request.Info{Version: tt.version}}
		dropTopology(request.With(context.Background(), req), tt.new, tt.old)
		if !equality.Semantic.DeepEqual(tt.new, tt.want) {
			t.Errorf("%s: %+v, want %+v", name, tt.new, tt.want)
		}
	}
}
