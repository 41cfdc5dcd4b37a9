// Package rules validates CustomResourceDefinitions. Start at Judge, and at walk
// (schema.go), which validates a schema. It must not know the store: what was accepted
// before comes in as the old definition (tolerance.go).
//
// kube-apiserver validates definitions in an internal type in which fields that are equal in
// all versions are hoisted to the spec. Clients know the paths of that form from its errors,
// so a definition is brought into it first (see shared).
package rules

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/internal/boundedregexp"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/webhook"
)

// Judge validates definitions. The zero value is ready to use; it must not be copied.
type Judge struct {
	// Metrics may be nil.
	Metrics  measure.Sink
	accepted accepted
}

// Validate returns the errors of a new definition.
func (j *Judge) Validate(ctx context.Context, crd *v1.CustomResourceDefinition) field.ErrorList {
	errs := validateMeta(crd)
	errs = append(errs, validate(ctx, crd, &tolerance{ca: true, none: true, accepted: &j.accepted, metrics: j.Metrics})...)
	return append(errs, validateRest(crd, nil)...)
}

// ValidateUpdate returns the errors of an update. Most errors that the old definition has
// are tolerated.
func (j *Judge) ValidateUpdate(ctx context.Context, crd, old *v1.CustomResourceDefinition) field.ErrorList {
	t := toleranceOf(crd, old)
	t.accepted, t.metrics = &j.accepted, j.Metrics
	errs := validate(ctx, crd, t)
	spec := field.NewPath("spec")
	if established(old) {
		errs = append(errs, apivalidation.ValidateImmutableField(crd.Spec.Scope, old.Spec.Scope, spec.Child("scope"))...)
		errs = append(errs, apivalidation.ValidateImmutableField(crd.Spec.Names.Kind, old.Spec.Names.Kind, spec.Child("names", "kind"))...)
	}
	errs = append(errs, apivalidation.ValidateImmutableField(crd.Spec.Group, old.Spec.Group, spec.Child("group"))...)
	errs = append(errs, apivalidation.ValidateImmutableField(crd.Spec.Names.Plural, old.Spec.Names.Plural, spec.Child("names", "plural"))...)
	return append(errs, validateRest(crd, old)...)
}

// ValidateStatusUpdate returns the errors of an update of the status.
func ValidateStatusUpdate(crd, _ *v1.CustomResourceDefinition) field.ErrorList {
	return validateNames(&crd.Status.AcceptedNames, field.NewPath("status", "acceptedNames"))
}

// validateMeta checks the metadata, and that the name is <plural>.<group>.
func validateMeta(crd *v1.CustomResourceDefinition) field.ErrorList {
	want := crd.Spec.Names.Plural + "." + crd.Spec.Group
	named := func(name string, prefix bool) []string {
		wrong := apivalidation.NameIsDNSSubdomain(name, prefix)
		if name != want {
			wrong = append(wrong, `must be spec.names.plural+"."+spec.group`)
		}
		return wrong
	}
	return apivalidation.ValidateObjectMeta(&crd.ObjectMeta, false, named, field.NewPath("metadata"))
}

// shared is a spec with the fields that are equal in all versions hoisted out of them.
type shared struct {
	*v1.CustomResourceDefinitionSpec
	versions     []v1.CustomResourceDefinitionVersion
	schema       *v1.CustomResourceValidation
	subresources *v1.CustomResourceSubresources
	columns      []v1.CustomResourceColumnDefinition
	selectable   []v1.SelectableField
}

func hoistShared(spec *v1.CustomResourceDefinitionSpec) *shared {
	s := &shared{CustomResourceDefinitionSpec: spec, versions: slices.Clone(spec.Versions)}
	if len(s.versions) == 0 {
		return s
	}
	first := spec.Versions[0]
	all := func(same func(v *v1.CustomResourceDefinitionVersion) bool) bool {
		for i := range spec.Versions[1:] {
			if !same(&spec.Versions[i+1]) {
				return false
			}
		}
		return true
	}
	same := Equal
	schema := all(func(v *v1.CustomResourceDefinitionVersion) bool { return same(v.Schema, first.Schema) })
	subresources := all(func(v *v1.CustomResourceDefinitionVersion) bool { return same(v.Subresources, first.Subresources) })
	columns := all(func(v *v1.CustomResourceDefinitionVersion) bool {
		return same(v.AdditionalPrinterColumns, first.AdditionalPrinterColumns)
	})
	selectable := all(func(v *v1.CustomResourceDefinitionVersion) bool {
		return same(v.SelectableFields, first.SelectableFields)
	})
	if schema {
		s.schema = first.Schema
	}
	if subresources {
		s.subresources = first.Subresources
	}
	if columns {
		s.columns = first.AdditionalPrinterColumns
	}
	if selectable {
		s.selectable = first.SelectableFields
	}
	for i := range s.versions {
		v := &s.versions[i]
		if schema {
			v.Schema = nil
		}
		if subresources {
			v.Subresources = nil
		}
		if columns {
			v.AdditionalPrinterColumns = nil
		}
		if selectable {
			v.SelectableFields = nil
		}
	}
	return s
}

// old returns the versions in the internal type, for errors that print them.
func (s *shared) old() []apiextensions.CustomResourceDefinitionVersion {
	var out apiextensions.CustomResourceDefinitionSpec
	_ = v1.Convert_v1_CustomResourceDefinitionSpec_To_apiextensions_CustomResourceDefinitionSpec(s.CustomResourceDefinitionSpec, &out, nil)
	return out.Versions
}

// schemaOf returns the schema of a validation, nil if there is none.
func schemaOf(v *v1.CustomResourceValidation) *v1.JSONSchemaProps {
	if v == nil {
		return nil
	}
	return v.OpenAPIV3Schema
}

// schemas returns all schemas of a spec.
func schemas(spec *v1.CustomResourceDefinitionSpec) (all []*v1.JSONSchemaProps) {
	for i := range spec.Versions {
		if s := schemaOf(spec.Versions[i].Schema); s != nil {
			all = append(all, s)
		}
	}
	return all
}

// validate checks the spec, without comparing it with an old one.
func validate(ctx context.Context, crd *v1.CustomResourceDefinition, t *tolerance) field.ErrorList {
	t.work = boundedregexp.NewWork(ctx, boundedregexp.MaxWork)
	path := field.NewPath("spec")
	s := hoistShared(&crd.Spec)
	errs := validateGroup(s, path)
	errs = append(errs, validateSchemasThere(s, t, path)...)
	if s.PreserveUnknownFields && slices.ContainsFunc(schemas(s.CustomResourceDefinitionSpec), hasDefaults) {
		errs = append(errs, field.Invalid(path.Child("preserveUnknownFields"), true, "must be false in order to use defaults in the schema"))
	}
	// Only preserveUnknownFields allows a schema that is not structural.
	structural := !t.nonStructural || !s.PreserveUnknownFields || slices.ContainsFunc(schemas(s.CustomResourceDefinitionSpec), func(p *v1.JSONSchemaProps) bool {
		return hasDefaults(p) || hasExtensions(p)
	})
	storage, names, unique := 0, map[string]bool{}, true
	for i := range s.versions {
		v := &s.versions[i]
		at := path.Child("versions").Index(i)
		if v.Storage {
			storage++
		}
		unique = unique && !names[v.Name]
		names[v.Name] = true
		if problems := validation.IsDNS1035Label(v.Name); len(problems) > 0 {
			errs = append(errs, field.Invalid(at.Child("name"), v.Name, strings.Join(problems, ",")))
		}
		errs = append(errs, validateVersion(ctx, s, v, at, t.of(v.Name, structural))...)
	}
	if !unique {
		errs = append(errs, field.Invalid(path.Child("versions"), s.old(), "must contain unique version names"))
	}
	if storage != 1 {
		errs = append(errs, field.Invalid(path.Child("versions"), s.old(), "must have exactly one version marked as storage version"))
	}
	first := ""
	if len(s.versions) > 0 {
		first = s.versions[0].Name
	}
	if problems := validation.IsDNS1035Label(first); first != "" && len(problems) > 0 {
		errs = append(errs, field.Invalid(path.Child("version"), first, strings.Join(problems, ",")))
	}
	errs = append(errs, requireNames(&s.Names, path.Child("names"))...)
	errs = append(errs, validateNames(&s.Names, path.Child("names"))...)
	errs = append(errs, validateSchema(ctx, s.schema, s.anyStatus(), path.Child("validation"), t.of(first, structural))...)
	errs = append(errs, validateSubresources(s.subresources, path.Child("subresources"))...)
	errs = append(errs, validateColumns(s.columns, path.Child("additionalPrinterColumns"))...)
	if len(s.selectable) > 0 {
		if s.schema == nil {
			errs = append(errs, field.Invalid(path.Child("selectableFields"), "", "may only be set when validations.schema is included"))
		} else {
			errs = append(errs, validateSelectable(s.selectable, s.schema.OpenAPIV3Schema, path, t.selectable[""])...)
		}
	}
	errs = append(errs, validateConversion(s, path.Child("conversion"), t)...)
	return errs
}

// validateRest checks status and annotations; old is nil on create.
func validateRest(crd, old *v1.CustomResourceDefinition) field.ErrorList {
	errs := validateNames(&crd.Status.AcceptedNames, field.NewPath("status", "acceptedNames"))
	errs = append(errs, validateStored(crd, field.NewPath("status", "storedVersions"))...)
	errs = append(errs, validateApproval(crd, old)...)
	return append(errs, validatePreserve(crd, old)...)
}

func validateGroup(s *shared, path *field.Path) (errs field.ErrorList) {
	at := path.Child("group")
	switch problems := validation.IsDNS1123Subdomain(s.Group); {
	case s.Group == "":
		errs = append(errs, field.Required(at, ""))
	case len(problems) > 0:
		errs = append(errs, field.Invalid(at, s.Group, strings.Join(problems, ",")))
	case !strings.Contains(s.Group, "."):
		errs = append(errs, field.Invalid(at, s.Group, "should be a domain with at least one dot"))
	}
	return append(errs, validateOneOf(path.Child("scope"), string(s.Scope), string(v1.ClusterScoped), string(v1.NamespaceScoped))...)
}

func validateOneOf(path *field.Path, value string, allowed ...string) field.ErrorList {
	switch {
	case value == "":
		return field.ErrorList{field.Required(path, "")}
	case !slices.Contains(allowed, value):
		return field.ErrorList{field.NotSupported(path, value, allowed)}
	}
	return nil
}

// validateSchemasThere checks that every version has a schema.
func validateSchemasThere(s *shared, t *tolerance, path *field.Path) (errs field.ErrorList) {
	if schemaOf(s.schema) != nil {
		return nil
	}
	for i := range s.versions {
		v := &s.versions[i]
		at := path.Child("versions").Index(i).Child("schema", "openAPIV3Schema")
		switch {
		case schemaOf(v.Schema) != nil:
		case !t.noSchemas:
			errs = append(errs, field.Required(at, ""))
		case !s.PreserveUnknownFields && v.Served:
			errs = append(errs, field.Required(at, "because otherwise all fields are pruned"))
		}
	}
	return errs
}

func (s *shared) anyStatus() bool {
	return slices.ContainsFunc(s.Versions, func(v v1.CustomResourceDefinitionVersion) bool {
		return v.Subresources != nil && v.Subresources.Status != nil
	})
}

func validateVersion(ctx context.Context, s *shared, v *v1.CustomResourceDefinitionVersion, path *field.Path, t *tolerance) (errs field.ErrorList) {
	for _, problem := range checkWarning(v) {
		errs = append(errs, field.Invalid(path.Child("deprecationWarning"), v.DeprecationWarning, problem))
	}
	subresources := v.Subresources
	if s.subresources != nil {
		subresources = s.subresources
	}
	errs = append(errs, validateSchema(ctx, v.Schema, subresources != nil && subresources.Status != nil, path.Child("schema"), t)...)
	errs = append(errs, validateSubresources(v.Subresources, path.Child("subresources"))...)
	errs = append(errs, validateColumns(v.AdditionalPrinterColumns, path.Child("additionalPrinterColumns"))...)
	if len(v.SelectableFields) == 0 {
		return errs
	}
	if schemaOf(v.Schema) == nil {
		return append(errs, field.Invalid(path.Child("selectableFields"), "", "may only be set when `version.schema.openAPIV3Schema` is not included"))
	}
	return append(errs, validateSelectable(v.SelectableFields, v.Schema.OpenAPIV3Schema, path, t.selectable[v.Name])...)
}

// maxWarning is the limit of deprecationWarning.
const maxWarning = 256

func checkWarning(v *v1.CustomResourceDefinitionVersion) (problems []string) {
	if v.DeprecationWarning == nil {
		return nil
	}
	if !v.Deprecated {
		return []string{"can only be set for deprecated versions"}
	}
	text := *v.DeprecationWarning
	if len(text) > maxWarning {
		problems = append(problems, fmt.Sprintf("must be <= %d characters long", maxWarning))
	}
	if text == "" {
		problems = append(problems, "must not be an empty string")
	}
	for i, r := range text {
		if !unicode.IsPrint(r) {
			problems = append(problems, fmt.Sprintf("must only contain printable UTF-8 characters; non-printable character found at index %d", i))
			break
		}
	}
	if !utf8.ValidString(text) {
		problems = append(problems, "must only contain printable UTF-8 characters")
	}
	return problems
}

func requireNames(names *v1.CustomResourceDefinitionNames, path *field.Path) (errs field.ErrorList) {
	for _, n := range []struct{ name, value string }{
		{"plural", names.Plural}, {"singular", names.Singular}, {"kind", names.Kind}, {"listKind", names.ListKind},
	} {
		if n.value == "" {
			errs = append(errs, field.Required(path.Child(n.name), ""))
		}
	}
	return errs
}

func validateNames(names *v1.CustomResourceDefinitionNames, path *field.Path) (errs field.ErrorList) {
	label := func(at *field.Path, name, text, say string) {
		if problems := validation.IsDNS1035Label(text); len(problems) > 0 {
			errs = append(errs, field.Invalid(at, name, say+strings.Join(problems, ",")))
		}
	}
	const mixed = "may have mixed case, but should otherwise match: "
	if names.Plural != "" {
		label(path.Child("plural"), names.Plural, names.Plural, "")
	}
	if names.Singular != "" {
		label(path.Child("singular"), names.Singular, names.Singular, "")
	}
	if names.Kind != "" {
		label(path.Child("kind"), names.Kind, strings.ToLower(names.Kind), mixed)
	}
	if names.ListKind != "" {
		label(path.Child("listKind"), names.ListKind, strings.ToLower(names.ListKind), mixed)
	}
	for i, n := range names.ShortNames {
		label(path.Child("shortNames").Index(i), n, n, "")
	}
	if names.Kind != "" && names.Kind == names.ListKind {
		errs = append(errs, field.Invalid(path.Child("listKind"), names.ListKind, "kind and listKind may not be the same"))
	}
	for i, n := range names.Categories {
		label(path.Child("categories").Index(i), n, n, "")
	}
	return errs
}

func validateConversion(s *shared, path *field.Path, t *tolerance) (errs field.ErrorList) {
	c := s.Conversion
	if c == nil {
		return nil
	}
	if c.Strategy != v1.NoneConverter && s.PreserveUnknownFields {
		errs = append(errs, field.Invalid(path.Child("strategy"), c.Strategy, "must be None if spec.preserveUnknownFields is true"))
	}
	errs = append(errs, validateOneOf(path.Child("strategy"), string(c.Strategy), string(v1.NoneConverter), string(v1.WebhookConverter))...)
	var config *v1.WebhookClientConfig
	var versions []string
	if c.Webhook != nil {
		config, versions = c.Webhook.ClientConfig, c.Webhook.ConversionReviewVersions
	}
	at, reviews := path.Child("webhookClientConfig"), path.Child("conversionReviewVersions")
	if c.Strategy != v1.WebhookConverter {
		const unused = "should not be set when strategy is not set to Webhook"
		if config != nil {
			errs = append(errs, field.Forbidden(at, unused))
		}
		if len(versions) > 0 {
			errs = append(errs, field.Forbidden(reviews, unused))
		}
		return errs
	}
	switch {
	case config == nil:
		errs = append(errs, field.Required(at, "required when strategy is set to Webhook"))
	case (config.URL == nil) == (config.Service == nil):
		errs = append(errs, field.Required(at, "exactly one of url or service is required"))
	case config.URL != nil:
		errs = append(errs, webhook.ValidateURL(at.Child("url"), *config.URL)...)
	default:
		port := int32(443)
		if config.Service.Port != nil {
			port = *config.Service.Port
		}
		errs = append(errs, webhook.ValidateService(at.Child("service"), config.Service.Namespace, config.Service.Name, config.Service.Path, port)...)
	}
	if config != nil && len(config.CABundle) > 0 && !t.ca {
		errs = append(errs, webhook.ValidateCABundle(at.Child("caBundle"), config.CABundle)...)
	}
	return append(errs, validateReviews(versions, t.reviews, reviews)...)
}

// validateReviews checks conversionReviewVersions.
func validateReviews(versions []string, anyVersion bool, path *field.Path) (errs field.ErrorList) {
	if len(versions) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	seen := map[string]bool{}
	for i, v := range versions {
		if seen[v] {
			errs = append(errs, field.Invalid(path.Index(i), v, "duplicate version"))
			continue
		}
		seen[v] = true
		for _, problem := range validation.IsDNS1035Label(v) {
			errs = append(errs, field.Invalid(path.Index(i), v, problem))
		}
	}
	if !anyVersion && !knowsReview(versions) {
		errs = append(errs, field.Invalid(path, versions, "must include at least one of v1, v1beta1"))
	}
	return errs
}

func knowsReview(versions []string) bool {
	return slices.Contains(versions, "v1") || slices.Contains(versions, "v1beta1")
}

// validateStored checks that status.storedVersions names versions of the spec.
func validateStored(crd *v1.CustomResourceDefinition, path *field.Path) (errs field.ErrorList) {
	stored := crd.Status.StoredVersions
	if len(stored) == 0 {
		return field.ErrorList{field.Invalid(path, stored, "must have at least one stored version")}
	}
	seen := map[string]bool{}
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		// Of two versions with the same name only the first can be the storage version.
		if v.Storage && (seen[v.Name] || !slices.Contains(stored, v.Name)) {
			errs = append(errs, field.Invalid(path, stored, "must have the storage version "+v.Name))
		}
		seen[v.Name] = true
	}
	last := map[string]int{}
	for i, name := range stored {
		last[name] = i
	}
	for i, name := range stored {
		if seen[name] || last[name] > i {
			continue
		}
		errs = append(errs, field.Invalid(path.Index(i), name, fmt.Sprintf("missing from spec.versions; %[1]s was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in %[1]s and removes %[1]s from status.storedVersions", name)))
	}
	return errs
}

func validatePreserve(crd, old *v1.CustomResourceDefinition) field.ErrorList {
	if !crd.Spec.PreserveUnknownFields || old != nil && old.Spec.PreserveUnknownFields {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("spec", "preserveUnknownFields"), true,
		"cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead")}
}
