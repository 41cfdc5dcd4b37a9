package crd

import (
	"maps"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/apikeel/kelson/resource"
)

// converter converts objects between versions.
type converter interface {
	// convert returns the objects in another version. They may share memory with
	// objs.
	convert(objs []resource.Object, apiVersion string) ([]resource.Object, error)
	// isExpensive reports whether a call is expensive whatever the number of objects, as
	// that of a webhook is.
	isExpensive() bool
}

// converter returns the conversion strategy of a CustomResourceDefinition.
func (s *Server) converter(crd *apiextensions.CustomResourceDefinition) converter {
	if c := crd.Spec.Conversion; c != nil && c.Strategy == apiextensions.WebhookConverter && c.Webhook != nil && s.Webhooks != nil {
		h := newHook(s.Webhooks, c.Webhook)
		h.crd, h.metrics, h.log = crd.Name, s.Metrics, s.Logger
		return h
	}
	return noneConverter{}
}

// noneConverter is the conversion strategy None: only apiVersion changes.
type noneConverter struct{}

func (noneConverter) convert(objs []resource.Object, apiVersion string) ([]resource.Object, error) {
	out := make([]resource.Object, len(objs))
	for i, obj := range objs {
		// The caller may still use the original.
		renamed := maps.Clone(content(obj))
		renamed["apiVersion"] = apiVersion
		out[i] = &unstructured.Unstructured{Object: renamed}
	}
	return out, nil
}

func (noneConverter) isExpensive() bool { return false }

// conversions sets ToHub, FromHub and FromHubAll of a version. They prune what the
// version converted to does not have.
func (c *custom) conversions(v *resource.Version) {
	all := func(from, to string) func([]resource.Object) ([]resource.Object, error) {
		return func(objs []resource.Object) ([]resource.Object, error) {
			out, err := c.convert.convert(objs, c.group+"/"+to)
			for i := 0; err == nil && i < len(out); i++ {
				out[i], err = c.pruneConverted(out[i], from, to)
			}
			return out, err
		}
	}
	toHub, fromHub := all(v.Name, c.hub), all(c.hub, v.Name)
	v.ToHub = func(obj resource.Object) (resource.Object, error) { return one(toHub([]resource.Object{obj})) }
	v.FromHub = func(obj resource.Object) (resource.Object, error) { return one(fromHub([]resource.Object{obj})) }
	if c.convert.isExpensive() {
		v.FromHubAll = fromHub
	}
}

// between implements Definition.Between: it converts an object without pruning.
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

// pruneConverted prunes a converted object by the schema of its new version.
func (c *custom) pruneConverted(obj resource.Object, from, to string) (resource.Object, error) {
	schema, err := c.schemas[to].get()
	if err != nil {
		return nil, err
	}
	if !c.convert.isExpensive() {
		if same, err := c.schemas[from].get(); err != nil || same == schema {
			return obj, err
		}
		obj = obj.DeepCopyObject().(resource.Object) // the original shares its memory
	}
	_, err = c.prune(obj, to, resource.PruneStored)
	return obj, err
}
