package crd

import (
	"encoding/json"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// outline decodes a definition without its schemas, which are most of its size and are
// decoded only when the resource is used.
func outline(stored []byte) (*apiextensions.CustomResourceDefinition, error) {
	var in struct {
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			apiextensions.CustomResourceDefinitionSpec
			Versions []struct {
				apiextensions.CustomResourceDefinitionVersion
				Schema skipped `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
		Status apiextensions.CustomResourceDefinitionStatus `json:"status"`
	}
	if err := json.Unmarshal(stored, &in); err != nil {
		return nil, err
	}
	crd := &apiextensions.CustomResourceDefinition{ObjectMeta: in.ObjectMeta, Spec: in.Spec.CustomResourceDefinitionSpec, Status: in.Status}
	crd.ManagedFields = nil
	for i := range in.Spec.Versions {
		crd.Spec.Versions = append(crd.Spec.Versions, in.Spec.Versions[i].CustomResourceDefinitionVersion)
	}
	return crd, nil
}

// skipped is a JSON value that is not decoded.
type skipped struct{}

// UnmarshalJSON implements json.Unmarshaler.
func (*skipped) UnmarshalJSON([]byte) error { return nil }
