package networking

import (
	"encoding/json"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

func TestOldIngresses(t *testing.T) {
	const old = `{
		"metadata": {"name": "i"},
		"spec": {
			"backend": {"serviceName": "all", "servicePort": 80},
			"rules": [
				{"host": "a.example", "http": {"paths": [
					{"path": "/x", "backend": {"serviceName": "x", "servicePort": "http"}},
					{"path": "/y", "pathType": "Exact", "backend": {"resource": {"kind": "Bucket", "name": "b"}}}
				]}},
				{"host": "b.example"}
			]
		}
	}`
	const hub = `{
		"metadata": {"name": "i"},
		"spec": {
			"defaultBackend": {"service": {"name": "all", "port": {"number": 80}}},
			"rules": [
				{"host": "a.example", "http": {"paths": [
					{"path": "/x", "pathType": "ImplementationSpecific", "backend": {"service": {"name": "x", "port": {"name": "http"}}}},
					{"path": "/y", "pathType": "Exact", "backend": {"resource": {"kind": "Bucket", "name": "b"}}}
				]}},
				{"host": "b.example"}
			]
		}
	}`
	var want networkingv1.Ingress
	if err := json.Unmarshal([]byte(hub), &want); err != nil {
		t.Fatal(err)
	}
	for _, v := range oldIngresses() {
		t.Run(v.Group, func(t *testing.T) {
			obj := v.New()
			if err := json.Unmarshal([]byte(old), obj); err != nil {
				t.Fatal(err)
			}
			v.Default(obj)
			got, err := v.ToHub(obj)
			if err != nil || !equality.Semantic.DeepEqual(got, &want) {
				t.Errorf("the hub has %+v, %v", got, err)
			}
			back, err := v.FromHub(got)
			if err != nil || !equality.Semantic.DeepEqual(back, obj) {
				t.Errorf("%+v comes back as %+v, %v", obj, back, err)
			}
			if !v.Off || !strings.Contains(v.Deprecation, "v1beta1 Ingress is deprecated in v1.14+") && !strings.Contains(v.Deprecation, "v1beta1 Ingress is deprecated in v1.19+") {
				t.Errorf("off: %v, deprecation %q", v.Off, v.Deprecation)
			}
		})
	}
}
