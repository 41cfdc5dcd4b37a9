// Package render turns the schemas that kube-openapi's generator makes from Go
// types into a pack.
package render

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	openapiv3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	builderutil "k8s.io/kube-openapi/pkg/builder3/util"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/schemamutation"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/apikeel/kelson/openapi/internal/pack"
)

const (
	gvkExtension = "x-kubernetes-group-version-kind"
	// shared is the package of what every group has.
	shared = "io.k8s.apimachinery.pkg.apis.meta.v1"
)

// Write makes a pack.
func Write(file string, definitions common.GetOpenAPIDefinitions) error {
	v3 := definitions(refs("#/components/schemas/"))
	v2 := definitions(refs("#/definitions/"))
	kinds, err := kindsByName()
	if err != nil {
		return err
	}
	var all []pack.Definition
	for _, typeName := range slices.Sorted(maps.Keys(v3)) {
		d, err := render(typeName, v3[typeName], v2[typeName], kinds)
		if err != nil {
			return fmt.Errorf("%s: %w", typeName, err)
		}
		all = append(all, d)
	}
	data, err := pack.Write(all)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o666)
}

func refs(prefix string) common.ReferenceCallback {
	return func(typeName string) spec.Ref {
		return spec.MustCreateRef(prefix + definitionName(typeName))
	}
}

// definitionName is the name of a type in documents: its own if it has one,
// otherwise that of its package with the domain reversed.
func definitionName(typeName string) string {
	if strings.Contains(typeName, "/") {
		return util.ToRESTFriendlyName(typeName)
	}
	return typeName
}

func render(typeName string, v3, v2 common.OpenAPIDefinition, kinds map[string][]any) (pack.Definition, error) {
	d := pack.Definition{Name: definitionName(typeName)}
	d.Root = kinds[d.Name] != nil || pack.Of(d.Name) == shared
	for _, dependency := range v3.Dependencies {
		d.Refs = append(d.Refs, definitionName(dependency))
	}

	three := v3.Schema
	two := v2.Schema
	own, replaced := two.Extensions[common.ExtensionV2Schema].(spec.Schema)
	delete(three.Extensions, common.ExtensionV2Schema)
	delete(two.Extensions, common.ExtensionV2Schema)
	if gvks := kinds[d.Name]; gvks != nil {
		two.AddExtension(gvkExtension, gvks)
		// Types that every group has get their kinds when a document is built.
		if !pack.Everywhere(d.Name) {
			three.AddExtension(gvkExtension, gvks)
		}
	}
	if replaced {
		two = own
	}
	// Schemas of version 2 have never had defaults, and clients may act on them.
	two = *withoutDefaults(&two)

	var err error
	if d.Texts[pack.V3], err = json.Marshal(builderutil.WrapRefs(&three)); err != nil {
		return d, err
	}
	// Unlike json.Marshal, this leaves <, > and & alone, as documents of
	// version 2 always have.
	if d.Texts[pack.V2], err = two.MarshalJSON(); err != nil {
		return d, err
	}
	doc3, err := openapiv3.ParseDocument(fmt.Appendf(nil, `{"openapi":"3.0.0","info":{"title":"","version":""},"paths":{},"components":{"schemas":{%q:%s}}}`, d.Name, d.Texts[pack.V3]))
	if err != nil {
		return d, err
	}
	d.Texts[pack.V3Proto], err = proto.Marshal(doc3.Components.Schemas.AdditionalProperties[0])
	return d, err
}

func withoutDefaults(s *spec.Schema) *spec.Schema {
	w := schemamutation.Walker{
		SchemaCallback: func(s *spec.Schema) *spec.Schema {
			if s.Default == nil {
				return s
			}
			c := *s
			c.Default = nil
			return &c
		},
		RefCallback: schemamutation.RefCallbackNoop,
	}
	return w.WalkSchema(s)
}

// kindsByName returns under which groups, versions and kinds a type is known.
func kindsByName() (map[string][]any, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensions.AddToScheme, apiregistration.AddToScheme} {
		if err := add(s); err != nil {
			return nil, err
		}
	}
	// These groups are part of the API, though not of that scheme; only the
	// types that every group shares are needed of them.
	for _, gv := range []schema.GroupVersion{
		{Group: "apiextensions.k8s.io", Version: "v1"}, {Group: "apiextensions.k8s.io", Version: "v1beta1"},
		{Group: "apiregistration.k8s.io", Version: "v1"}, {Group: "apiregistration.k8s.io", Version: "v1beta1"},
		{Group: "admission.k8s.io", Version: "v1"}, {Group: "admission.k8s.io", Version: "v1beta1"},
		{Group: "imagepolicy.k8s.io", Version: "v1alpha1"},
	} {
		metav1.AddToGroupVersion(s, gv)
	}
	byName := map[string][]schema.GroupVersionKind{}
	for gvk := range s.AllKnownTypes() {
		if gvk.Version == runtime.APIVersionInternal {
			continue
		}
		name, err := s.ToOpenAPIDefinitionName(gvk)
		if err != nil {
			return nil, err
		}
		byName[name] = append(byName[name], gvk)
	}
	kinds := map[string][]any{}
	for name, gvks := range byName {
		slices.SortFunc(gvks, func(a, b schema.GroupVersionKind) int {
			return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Kind, b.Kind))
		})
		for _, gvk := range gvks {
			kinds[name] = append(kinds[name], map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind})
		}
	}
	return kinds, nil
}
