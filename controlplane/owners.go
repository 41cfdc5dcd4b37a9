package controlplane

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/managedfields"
	"github.com/apikeel/kelson/resource"
)

// owners keeps track of who owns which fields.
type owners = managedfields.Owners

func groupVersion(def *resource.Definition, v *resource.Version) schema.GroupVersion {
	group := def.Group
	if v.Group != "" {
		group = v.Group
	}
	return schema.GroupVersion{Group: group, Version: v.Name}
}
