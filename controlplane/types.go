package controlplane

import (
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/schemaconv"
	"k8s.io/kube-openapi/pkg/validation/spec"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/apikeel/kelson/managedfields"
	"github.com/apikeel/kelson/resource"
)

// types knows how the fields of kinds merge: those of built-in kinds, and those
// of custom resources by their schemas, which are read when a kind is first asked
// for and forgotten with its definition.
type types struct {
	builtin *managedfields.Builtin
	catalog func() *resource.Catalog

	mu     sync.Mutex
	custom map[schema.GroupVersionKind]customType
}

type customType struct {
	version *resource.Version
	kind    typed.ParseableType
	ok      bool
}

func newTypes(builtin *managedfields.Builtin, catalog func() *resource.Catalog) *types {
	return &types{builtin: builtin, catalog: catalog, custom: map[schema.GroupVersionKind]customType{}}
}

func (t *types) of(kind schema.GroupVersionKind) (typed.ParseableType, bool) {
	if known, ok := t.builtin.Type(kind); ok {
		return known, true
	}
	served, ok := t.catalog().LookupKind(kind)
	if !ok || served.Version.Schema == nil {
		return typed.ParseableType{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	known, ok := t.custom[kind]
	if !ok || known.version != served.Version {
		known.version = served.Version
		known.kind, known.ok = t.read(served.Version.Schema(), kind)
		t.custom[kind] = known
	}
	return known.kind, known.ok
}

// read makes a type of a schema, with that of the metadata of built-in kinds.
func (t *types) read(s *spec.Schema, kind schema.GroupVersionKind) (typed.ParseableType, bool) {
	const root = "root"
	converted, err := schemaconv.ToSchemaFromOpenAPI(map[string]*spec.Schema{root: s}, false)
	if err != nil {
		return typed.ParseableType{}, false
	}
	meta, ok := t.builtin.Type(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"})
	if !ok {
		return typed.ParseableType{}, false
	}
	for _, def := range meta.Schema.Types {
		if strings.HasPrefix(def.Name, "io.k8s.apimachinery.") {
			converted.Types = append(converted.Types, def)
		}
	}
	name := root
	return typed.ParseableType{Schema: converted, TypeRef: smd.TypeRef{NamedType: &name}}, true
}
