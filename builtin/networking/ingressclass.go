package networking

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// maxController bounds the length of spec.controller.
const maxController = 250

// IngressClasses defines ingressclasses.
func IngressClasses() resource.Definition {
	return resource.Definition{
		Group:      networkingv1.GroupName,
		Resource:   "ingressclasses",
		Singular:   "ingressclass",
		Kind:       "IngressClass",
		Versions:   append([]resource.Version{resource.VersionOf[networkingv1.IngressClass, networkingv1.IngressClassList]("v1", defaultIngressClass)}, oldIngressClasses()...),
		StorageKey: "ingressclasses",
		Strategy: resource.Rules[*networkingv1.IngressClass]{
			NameOnUpdate: true,
			Generation: func(c, old *networkingv1.IngressClass) bool {
				return !equality.Semantic.DeepEqual(c.Spec, old.Spec)
			},
			Validate: func(_ context.Context, c *networkingv1.IngressClass) field.ErrorList {
				return validateIngressClass(&c.Spec)
			},
			ValidateUpdate: func(_ context.Context, c, old *networkingv1.IngressClass) field.ErrorList {
				errs := apivalidation.ValidateImmutableField(c.Spec.Controller, old.Spec.Controller, field.NewPath("spec", "controller"))
				return append(errs, validateIngressClass(&c.Spec)...)
			},
		}.Strategy(),
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Controller", Type: "string", Description: "Controller that is responsible for handling this class"},
			{Name: "Parameters", Type: "string", Description: "A reference to a resource with additional parameters"},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(c *networkingv1.IngressClass) []any {
			name, parameters := c.Name, "<none>"
			if c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true" {
				name += " (default)"
			}
			if p := c.Spec.Parameters; p != nil {
				parameters = p.Kind
				if p.APIGroup != nil {
					parameters += "." + *p.APIGroup
				}
				parameters += "/" + p.Name
			}
			return []any{name, c.Spec.Controller, parameters, resource.Since(c.CreationTimestamp.Time)}
		}),
	}
}

func defaultIngressClass(c *networkingv1.IngressClass) {
	if p := c.Spec.Parameters; p != nil && p.Scope == nil {
		p.Scope = new(networkingv1.IngressClassParametersReferenceScopeCluster)
	}
}

func validateIngressClass(spec *networkingv1.IngressClassSpec) field.ErrorList {
	var errs field.ErrorList
	controller, path := field.NewPath("spec", "controller"), field.NewPath("spec", "parameters")
	if len(spec.Controller) > maxController {
		errs = append(errs, field.TooLong(controller, "", maxController))
	}
	errs = append(errs, validation.IsDomainPrefixedPath(controller, spec.Controller)...)
	p := spec.Parameters
	if p == nil {
		return errs
	}
	if g := p.APIGroup; g != nil {
		errs = append(errs, rules.Invalid(path.Child("apiGroup"), *g, validation.IsDNS1123Subdomain(*g))...)
	}
	errs = append(errs, declaredSegment(p.Kind, path.Child("kind"))...)
	errs = append(errs, declaredSegment(p.Name, path.Child("name"))...)
	namespace := path.Child("namespace")
	const cluster, namespaced = networkingv1.IngressClassParametersReferenceScopeCluster, networkingv1.IngressClassParametersReferenceScopeNamespace
	switch {
	case p.Scope == nil:
		errs = append(errs, field.Required(path.Child("scope"), ""))
	case *p.Scope != cluster && *p.Scope != namespaced:
		errs = append(errs, field.NotSupported(path.Child("scope"), *p.Scope, []string{cluster, namespaced}))
	case *p.Scope == namespaced && p.Namespace == nil:
		errs = append(errs, field.Required(namespace, "`parameters.scope` is set to 'Namespace'"))
	case *p.Scope == namespaced:
		errs = append(errs, rules.Invalid(namespace, *p.Namespace, apivalidation.ValidateNamespaceName(*p.Namespace, false))...)
	case p.Namespace != nil:
		errs = append(errs, field.Forbidden(namespace, "`parameters.scope` is set to 'Cluster'"))
	}
	return errs
}
