package builtin_test

import (
	"cmp"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/resource"
)

// TestDeprecations: versions whose types say that they are deprecated tell
// clients so.
func TestDeprecations(t *testing.T) {
	for _, g := range builtin.Groups(builtin.Config{}) {
		for _, d := range g.Resources {
			for _, v := range d.Versions {
				kind := schema.GroupVersionKind{Group: cmp.Or(v.Group, d.Group), Version: v.Name, Kind: d.Kind}
				if want := resource.Deprecation(v.New(), kind); v.Deprecation != want {
					t.Errorf("%v: the warning is %q, want %q", kind, v.Deprecation, want)
				}
			}
		}
	}
}
