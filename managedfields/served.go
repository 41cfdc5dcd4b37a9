package managedfields

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/apikeel/kelson/resource"
)

// Served implements Types for the kinds of a catalog: the built-in ones, and others by
// their schemas. A schema is converted when its kind is first asked for, and again when
// the definition has been replaced.
type Served struct {
	// Catalog returns the kinds that are served now.
	Catalog func() *resource.Catalog

	mu     sync.Mutex
	custom map[schema.GroupVersionKind]servedType
}

// servedType is the type that was made from a version; ok is false if it has none.
type servedType struct {
	version *resource.Version
	typ     typed.ParseableType
	ok      bool
}

// Type implements Types.
func (s *Served) Type(kind schema.GroupVersionKind) (typed.ParseableType, bool) {
	if known, ok := sharedBuiltin().Type(kind); ok {
		return known, true
	}
	served, ok := s.Catalog().LookupKind(kind)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ok || served.Version.Schema == nil {
		delete(s.custom, kind)
		return typed.ParseableType{}, false
	}
	known, ok := s.custom[kind]
	if !ok || known.version != served.Version {
		schemas := &Schemas{Builtin: sharedBuiltin(), Schema: func(schema.GroupVersionKind) *spec.Schema { return served.Version.Schema() }}
		known.version = served.Version
		known.typ, known.ok = schemas.Type(kind)
		if s.custom == nil {
			s.custom = map[schema.GroupVersionKind]servedType{}
		}
		s.custom[kind] = known
	}
	return known.typ, known.ok
}
