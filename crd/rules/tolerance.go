package rules

import (
	"slices"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/crd/schema"
	"github.com/apikeel/kelson/internal/boundedregexp"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/webhook"
)

// tolerance is which errors are accepted in a definition because the old one has them too.
type tolerance struct {
	reviews       bool // no known version of ConversionReview
	noSchemas     bool
	types         bool // unknown types
	nonStructural bool
	unpruned      bool // defaults with unknown fields
	sets          bool // sets whose items are not atomic
	keys          bool // keys of map lists that are neither required nor defaulted
	ca            bool
	// selectable are the versions that have too many selectable fields; "" stands for
	// all versions.
	selectable map[string]bool
	// stored are the expressions of the old definition.
	stored map[string]bool
	// same are the versions whose schemas are unchanged: their cost was accepted
	// before.
	same map[string]bool

	// none says that no errors in schemas are tolerated.
	none bool
	// accepted caches valid schemas.
	accepted *accepted
	// metrics measures the compilation of rules.
	metrics measure.Sink
	// work is what may be spent on compiling them.
	work *boundedregexp.Work

	// structural and costly apply to the schema that is being validated.
	structural, costly bool
}

// of returns the tolerance for the schema of a version.
func (t *tolerance) of(version string, structural bool) *tolerance {
	out := *t
	out.structural, out.costly = structural, t.same[version]
	return &out
}

func toleranceOf(crd, old *v1.CustomResourceDefinition) *tolerance {
	t := &tolerance{selectable: map[string]bool{}, stored: map[string]bool{}, same: map[string]bool{}}
	if c := old.Spec.Conversion; c != nil && c.Webhook != nil {
		t.reviews = len(c.Webhook.ConversionReviewVersions) > 0 && !knowsReview(c.Webhook.ConversionReviewVersions)
	}
	t.ca = !established(old) || invalidCA(old)
	index := map[string]int{}
	for i := range slices.Backward(crd.Spec.Versions) {
		index[crd.Spec.Versions[i].Name] = i
	}
	for i := range old.Spec.Versions {
		before := &old.Spec.Versions[i]
		t.schema(schemaOf(before.Schema))
		at, ok := index[before.Name]
		if !ok {
			continue
		}
		now := &crd.Spec.Versions[at]
		t.same[now.Name] = Equal(now.Schema, before.Schema)
		if len(before.SelectableFields) > maxSelectable && Equal(now.SelectableFields, before.SelectableFields) {
			t.selectable[now.Name] = true
		}
	}
	was, is := hoistShared(&old.Spec).selectable, hoistShared(&crd.Spec).selectable
	t.selectable[""] = len(was) > maxSelectable && Equal(was, is)
	return t
}

// schema records the errors in a schema of the old definition.
func (t *tolerance) schema(p *v1.JSONSchemaProps) {
	if p == nil {
		t.noSchemas = true
		return
	}
	t.nonStructural = t.nonStructural || unsupported(p) != nil || len(validateStructural(p, nil)) > 0
	t.unpruned = t.unpruned || hasDefaults(p) && !schema.PrunedDefaults(p)
	has(p, func(p *v1.JSONSchemaProps) bool {
		t.types = t.types || p.Type != "" && !slices.Contains(valueTypes(), p.Type)
		t.sets = t.sets || notAtomic(p) != ""
		t.keys = t.keys || len(validateKeys(p, nil)) > 0
		for i := range p.XValidations {
			t.stored[p.XValidations[i].Rule] = true
			t.stored[p.XValidations[i].MessageExpression] = true
		}
		return false
	})
}

func established(crd *v1.CustomResourceDefinition) bool {
	return slices.ContainsFunc(crd.Status.Conditions, func(c v1.CustomResourceDefinitionCondition) bool {
		return c.Type == v1.Established && c.Status == v1.ConditionTrue
	})
}

func invalidCA(crd *v1.CustomResourceDefinition) bool {
	c := crd.Spec.Conversion
	if c == nil || c.Webhook == nil || c.Webhook.ClientConfig == nil || len(c.Webhook.ClientConfig.CABundle) == 0 {
		return false
	}
	return len(webhook.ValidateCABundle(field.NewPath("caBundle"), c.Webhook.ClientConfig.CABundle)) > 0
}

// has reports whether holds is true for a schema or one inside of it.
func has(p *v1.JSONSchemaProps, holds func(p *v1.JSONSchemaProps) bool) bool {
	found := false
	visit(p, func(p *v1.JSONSchemaProps) bool {
		found = found || holds(p)
		return !found
	})
	return found
}

// visit calls f with a schema and all schemas inside of it, until f returns false.
func visit(p *v1.JSONSchemaProps, f func(p *v1.JSONSchemaProps) bool) bool {
	if p == nil {
		return true
	}
	if !f(p) {
		return false
	}
	if p.Items != nil && !(visit(p.Items.Schema, f) && visitAll(p.Items.JSONSchemas, f)) {
		return false
	}
	if !visitAll(p.AllOf, f) || !visitAll(p.AnyOf, f) || !visitAll(p.OneOf, f) || !visit(p.Not, f) {
		return false
	}
	for _, below := range []map[string]v1.JSONSchemaProps{p.Properties, p.PatternProperties, p.Definitions} {
		for _, name := range sorted(below) {
			member := below[name]
			if !visit(&member, f) {
				return false
			}
		}
	}
	if p.AdditionalProperties != nil && !visit(p.AdditionalProperties.Schema, f) {
		return false
	}
	if p.AdditionalItems != nil && !visit(p.AdditionalItems.Schema, f) {
		return false
	}
	for _, d := range p.Dependencies {
		if !visit(d.Schema, f) {
			return false
		}
	}
	return true
}

func visitAll(list []v1.JSONSchemaProps, f func(p *v1.JSONSchemaProps) bool) bool {
	for i := range list {
		if !visit(&list[i], f) {
			return false
		}
	}
	return true
}

func hasDefaults(p *v1.JSONSchemaProps) bool {
	return has(p, func(p *v1.JSONSchemaProps) bool { return p.Default != nil })
}

// hasExtensions reports whether a schema uses extensions that require a structural schema.
func hasExtensions(p *v1.JSONSchemaProps) bool {
	return has(p, func(p *v1.JSONSchemaProps) bool {
		return p.XEmbeddedResource || p.XPreserveUnknownFields != nil || p.XIntOrString || len(p.XListMapKeys) > 0 || p.XListType != nil || len(p.XValidations) > 0
	})
}
