package openapi

import (
	"testing"

	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/resource"
)

// TestSchema checks that a schema has everything in its place.
func TestSchema(t *testing.T) {
	catalog, err := resource.NewCatalog(builtin.Groups(builtin.Config{})...)
	if err != nil {
		t.Fatal(err)
	}
	served, ok := catalog.Lookup("apps", "v1", "deployments")
	if !ok {
		t.Fatal("no deployments")
	}
	s, err := Schema(served)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"spec", "template", "spec", "containers"} {
		p, ok := s.Properties[name]
		if !ok || referred(&p) != "" {
			t.Fatalf("%s is not in its place", name)
		}
		s = &p
	}
	if image := s.Items.Schema.Properties["image"]; !image.Type.Contains("string") {
		t.Errorf("%v", image)
	}
	var check func(s *spec.Schema)
	check = func(s *spec.Schema) {
		if referred(s) != "" {
			t.Errorf("there is a reference to %s", referred(s))
		}
		for _, p := range s.Properties {
			check(&p)
		}
		if s.Items != nil {
			check(s.Items.Schema)
		}
	}
	check(s)
}
