package rules

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/apikeel/kelson/crd/schema"
)

// Warnings returns the warnings for a definition; old is nil on create.
func Warnings(crd, old *v1.CustomResourceDefinition) (warnings []string) {
	formats, sets := collectWarnings(&crd.Spec)
	var knownFormats, knownSets []string
	if old != nil {
		knownFormats, knownSets = collectWarnings(&old.Spec)
	}
	for _, f := range formats {
		if !slices.Contains(knownFormats, f) {
			warnings = append(warnings, fmt.Sprintf("unrecognized format %q", f))
		}
	}
	for _, w := range sets {
		if !slices.Contains(knownSets, w) {
			warnings = append(warnings, w)
		}
	}
	return warnings
}

// collectWarnings returns the formats that are not validated, and the warnings about sets whose
// items are not scalars.
func collectWarnings(spec *v1.CustomResourceDefinitionSpec) (formats, sets []string) {
	s := hoistShared(spec)
	all := []*v1.JSONSchemaProps{schemaOf(s.schema)}
	for i := range s.versions {
		all = append(all, schemaOf(s.versions[i].Schema))
	}
	odd := map[string]bool{}
	for _, p := range all {
		visit(p, func(p *v1.JSONSchemaProps) bool {
			if p.Format != "" && !schema.ChecksFormat(p.Type, p.Format) {
				formats = append(formats, p.Format)
			}
			if p.XListType != nil && *p.XListType == "set" && p.Items != nil && p.Items.Schema != nil {
				if t := p.Items.Schema.Type; t == "object" || t == "array" {
					odd[fmt.Sprintf("x-kubernetes-list-type: set for items of type %q is not supported by server-side apply or CEL validation rules", t)] = true
				}
			}
			return true
		})
	}
	return formats, slices.Sorted(maps.Keys(odd))
}
