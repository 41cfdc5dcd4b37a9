package rules

import (
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/resource"
)

// AnyName is the Strategy.ValidateName of kinds whose Validate checks the name.
func AnyName(string, bool) []string { return nil }

// ValidateLongName returns the declared errors (resource.DeclaredBeta) of the name of
// a new object that must be a DNS subdomain. An empty name is reported by the
// checks that all metadata goes through, not here.
func ValidateLongName(name string) field.ErrorList {
	if name == "" {
		return nil
	}
	return resource.DeclaredBeta(Invalid(field.NewPath("metadata", "name"), name, content.IsDNS1123Subdomain(name))...)
}

// ValidateFinalizers returns an error for each finalizer without a domain that
// is not one of the standard finalizers of Kubernetes. Only some groups have
// this rule, on top of the rules for all metadata.
func ValidateFinalizers(finalizers []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, f := range finalizers {
		errs = append(errs, ValidateFinalizerDomain(f, path.Index(i))...)
	}
	return errs
}

// ValidateFinalizerDomain is the rule of ValidateFinalizers for one finalizer.
func ValidateFinalizerDomain(name string, path *field.Path) field.ErrorList {
	switch {
	case strings.Contains(name, "/"):
	case name == string(corev1.FinalizerKubernetes), name == metav1.FinalizerOrphanDependents, name == metav1.FinalizerDeleteDependents:
	default:
		return field.ErrorList{field.Invalid(path, name, "name is neither a standard finalizer name nor is it fully qualified")}
	}
	return nil
}

// ValidateTemplateMeta returns everything that is wrong with the metadata of a
// template. Only labels and annotations may be set.
func ValidateTemplateMeta(meta *metav1.ObjectMeta, p *field.Path) field.ErrorList {
	var e Errors
	e.Add(apivalidation.ValidateAnnotations(meta.Annotations, p.Child("annotations"))...)
	e.Add(metavalidation.ValidateLabels(meta.Labels, p.Child("labels"))...)
	ForbidOthers(&e, *meta, "cannot be set", p, "Annotations", "Labels")
	return field.ErrorList(e)
}

// ForbidOthers reports every field of the struct value that is set and whose Go
// name is not in allowed; detail is the message.
func ForbidOthers(e *Errors, value any, detail string, p *field.Path, allowed ...string) {
	v := reflect.ValueOf(value)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if !v.Field(i).IsZero() && !slices.Contains(allowed, name) {
			e.Forbidden(p.Child(lowerFirst(name)), detail)
		}
	}
}

func lowerFirst(name string) string { return string(name[0]|0x20) + name[1:] }
