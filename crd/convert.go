package crd

import (
	"maps"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

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
		h.crd, h.metrics = crd.Name, s.Metrics
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

// conversions sets the functions of a version that convert. What is read in a
// version has nothing that it does not know. What is written keeps what the hub
// does not know until it is stored: it is judged as it was sent.
func (c *custom) conversions(v *resource.Version) {
	name := v.Name
	whole := func(objs []resource.Object, version string) ([]resource.Object, error) {
		return c.convert.convert(objs, c.group+"/"+version)
	}
	to := func(objs []resource.Object, version string) ([]resource.Object, error) {
		out, err := whole(objs, version)
		for i := 0; err == nil && version != c.hub && i < len(out); i++ {
			out[i], err = c.fit(out[i], version)
		}
		return out, err
	}
	one := func(how func([]resource.Object, string) ([]resource.Object, error), version string) func(resource.Object) (resource.Object, error) {
		return func(obj resource.Object) (resource.Object, error) {
			out, err := how([]resource.Object{obj}, version)
			if err != nil {
				return nil, err
			}
			return out[0], nil
		}
	}
	v.ToHub, v.FromHub, v.FromHubWhole = one(to, c.hub), one(to, name), one(whole, name)
	if c.convert.dear() {
		toHub := v.ToHub
		v.ToHub = func(obj resource.Object) (resource.Object, error) {
			hub, err := toHub(obj)
			if err != nil {
				return nil, c.blame(obj, name, err)
			}
			return hub, nil
		}
		v.FromHubAll = func(objs []resource.Object) ([]resource.Object, error) { return to(objs, name) }
	}
}

// blame returns why an object could not be converted: because it is wrong in its
// own version, if it is, for then nobody could.
func (c *custom) blame(obj resource.Object, version string, err error) error {
	s, broken := c.schemas[version].get()
	if broken != nil {
		return err
	}
	own := maps.Clone(content(obj))
	if c.status[version] {
		delete(own, "status") // which is not taken over
	}
	if errs := s.Validate(own); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: c.group, Kind: c.kind}, obj.GetName(), errs)
	}
	return err
}
