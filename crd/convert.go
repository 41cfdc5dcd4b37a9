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
		h := newHook(s.Webhooks, c.Webhook)
		h.crd, h.metrics, h.log = crd.Name, s.Metrics, s.Logger
		return h
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

// conversions sets the functions of a version that convert. What is converted has
// nothing that the version does not know.
func (c *custom) conversions(v *resource.Version) {
	all := func(from, to string) func([]resource.Object) ([]resource.Object, error) {
		return func(objs []resource.Object) ([]resource.Object, error) {
			out, err := c.convert.convert(objs, c.group+"/"+to)
			for i := 0; err == nil && i < len(out); i++ {
				out[i], err = c.fit(out[i], from, to)
			}
			return out, err
		}
	}
	toHub, fromHub := all(v.Name, c.hub), all(c.hub, v.Name)
	v.ToHub = func(obj resource.Object) (resource.Object, error) { return one(toHub([]resource.Object{obj})) }
	v.FromHub = func(obj resource.Object) (resource.Object, error) { return one(fromHub([]resource.Object{obj})) }
	if c.convert.dear() {
		v.FromHubAll = fromHub
	}
}

// between converts an object, and leaves in it what the version does not know.
func (c *custom) between(obj resource.Object, version string) (resource.Object, error) {
	return one(c.convert.convert([]resource.Object{obj}, c.group+"/"+version))
}

// one returns the only object of a conversion.
func one(objs []resource.Object, err error) (resource.Object, error) {
	if err != nil {
		return nil, err
	}
	return objs[0], nil
}

// fit takes out of an object that has been converted what the version does not
// know.
func (c *custom) fit(obj resource.Object, from, to string) (resource.Object, error) {
	schema, err := c.schemas[to].get()
	if err != nil {
		return nil, err
	}
	if !c.convert.dear() {
		if same, err := c.schemas[from].get(); err != nil || same == schema {
			return obj, err
		}
		obj = obj.DeepCopyObject().(resource.Object) // it shares memory with what was converted
	}
	_, err = c.prune(obj, to, resource.PruneStored)
	return obj, err
}
