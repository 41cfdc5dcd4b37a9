package crd

import (
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/apikeel/kelson/resource"
)

// converter changes objects from one version to another.
type converter interface {
	// convert converts objects, which it may change, to a version.
	convert(objs []resource.Object, apiVersion string) ([]resource.Object, error)
	// dear tells that a call costs much, however many objects it is about.
	dear() bool
}

// converter returns how objects of a definition change their version.
func (s *Server) converter(crd *apiextensions.CustomResourceDefinition) converter {
	if c := crd.Spec.Conversion; c != nil && c.Strategy == apiextensions.WebhookConverter && s.Webhooks != nil {
		return s.Webhooks(crd)
	}
	return renaming{}
}

// renaming is the conversion that changes nothing but the name of the version.
type renaming struct{}

func (renaming) convert(objs []resource.Object, apiVersion string) ([]resource.Object, error) {
	for _, obj := range objs {
		content(obj)["apiVersion"] = apiVersion
	}
	return objs, nil
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
