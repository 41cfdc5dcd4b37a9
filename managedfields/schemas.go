package managedfields

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/schemaconv"
	"k8s.io/kube-openapi/pkg/validation/spec"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// Schemas implements Types for kinds with their own OpenAPI schemas: custom resources and
// the kinds of library users.
type Schemas struct {
	// Builtin has the types that the schemas refer to.
	Builtin *Builtin
	// Schema returns the OpenAPI v3 schema of a kind, nil if there is none.
	Schema func(kind schema.GroupVersionKind) *spec.Schema
}

// objectMeta is the type of metadata, to which every schema refers.
const objectMeta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

// Type implements Types.
func (s *Schemas) Type(kind schema.GroupVersionKind) (typed.ParseableType, bool) {
	own := s.Schema(kind)
	if own == nil {
		return typed.ParseableType{}, false
	}
	name := kind.Group + "/" + kind.Version + "." + kind.Kind
	made, err := schemaconv.ToSchemaFromOpenAPI(map[string]*spec.Schema{name: own}, false)
	if err != nil {
		return typed.ParseableType{}, false
	}
	s.Builtin.mu.Lock()
	defer s.Builtin.mu.Unlock()
	if s.Builtin.types == nil {
		s.Builtin.types, s.Builtin.kinds = map[string]smd.TypeDef{}, map[schema.GroupVersionKind]typed.ParseableType{}
	}
	seen := map[string]bool{}
	for i := range made.Types {
		seen[made.Types[i].Name] = true
	}
	s.Builtin.reach(objectMeta, seen, made)
	return typed.ParseableType{Schema: made, TypeRef: smd.TypeRef{NamedType: &name}}, true
}

// Forget drops the types of one Types from the cache.
func (c *Cache) Forget(types Types) {
	c.kinds.Range(func(key, _ any) bool {
		if key.(kindKey).types == types {
			c.kinds.Delete(key)
		}
		return true
	})
}
