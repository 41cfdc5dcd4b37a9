package crd

import (
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/wire"
)

// beta returns the version v1beta1, in which kube-apiserver stores
// CustomResourceDefinitions. It is not served; it is needed to read what kube-apiserver
// has stored.
func beta() resource.Version {
	v := resource.VersionOf[v1beta1.CustomResourceDefinition, v1beta1.CustomResourceDefinitionList]("v1beta1", v1beta1.SetObjectDefaults_CustomResourceDefinition)
	v.Off = true
	v.ToHub = func(obj resource.Object) (resource.Object, error) {
		var common apiextensions.CustomResourceDefinition
		if err := v1beta1.Convert_v1beta1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(obj.(*v1beta1.CustomResourceDefinition), &common, nil); err != nil {
			return nil, err
		}
		out := &v1.CustomResourceDefinition{}
		return out, v1.Convert_apiextensions_CustomResourceDefinition_To_v1_CustomResourceDefinition(&common, out, nil)
	}
	v.FromHub = func(obj resource.Object) (resource.Object, error) {
		var common apiextensions.CustomResourceDefinition
		if err := v1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(obj.(*v1.CustomResourceDefinition), &common, nil); err != nil {
			return nil, err
		}
		out := &v1beta1.CustomResourceDefinition{}
		return out, v1beta1.Convert_apiextensions_CustomResourceDefinition_To_v1beta1_CustomResourceDefinition(&common, out, nil)
	}
	return v
}

// Plain returns the JSON of a definition in v1, given its stored bytes.
func Plain(def *resource.Definition, stored []byte) ([]byte, error) {
	if wire.StoredJSONIsHub(def, stored) {
		return stored, nil
	}
	obj, err := wire.DecodeStored(def, stored)
	if err != nil {
		return nil, err
	}
	return wire.EncodeStored(def, obj)
}
