package crd

import (
	"maps"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/apikeel/kelson/resource"
)

// converter changes objects from one version to another.
type converter interface {
	// convert returns objects in a version. They may share memory with those
	// passed in.
	convert(objs []resource.Object, apiVersion string) ([]resource.Object, error)
	// dear tells that a call costs much, however many objects it is about.
	dear() bool
}

// converter returns how objects of a definition change their version.
func (s *Server) converter(crd *apiextensions.CustomResourceDefinition) converter {
	if c := crd.Spec.Conversion; c != nil && c.Strategy == apiextensions.WebhookConverter && c.Webhook != nil && s.Webhooks != nil {
		return newHook(s.Webhooks, c.Webhook)
	}
	return renaming{}
}

// renaming is the conversion that changes nothing but the name of the version.
type renaming struct{}

func (renaming) convert(objs []resource.Object, apiVersion string) ([]resource.Object, error) {
	out := make([]resource.Object, len(objs))
	for i, obj := range objs {
		// Who had the object may need it as it was.
		renamed := maps.Clone(content(obj))
		renamed["apiVersion"] = apiVersion
		out[i] = &unstructured.Unstructured{Object: renamed}
	}
	return out, nil
}

func (renaming) dear() bool { return false }

// conversions sets the functions of a version that convert.
func conversions(v *resource.Version, c converter, group, hub string) {
	to := func(apiVersion string) func(resource.Object) (resource.Object, error) {
		return func(obj resource.Object) (resource.Object, error) {
			out, err := c.convert([]resource.Object{obj}, apiVersion)
			if err != nil {
				return nil, err
			}
			return out[0], nil
		}
	}
	own := group + "/" + v.Name
	v.ToHub, v.FromHub = to(group+"/"+hub), to(own)
	if c.dear() {
		v.FromHubAll = func(objs []resource.Object) ([]resource.Object, error) { return c.convert(objs, own) }
	}
}
