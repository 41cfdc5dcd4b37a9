package networking

import (
	"context"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// IPAddresses defines ipaddresses. The name is the address, so an address exists at most once.
func IPAddresses() resource.Definition {
	return resource.Definition{
		Group:      networkingv1.GroupName,
		Resource:   "ipaddresses",
		Singular:   "ipaddress",
		Kind:       "IPAddress",
		ShortNames: []string{"ip"},
		StorageKey: "ipaddresses",
		Versions:   append([]resource.Version{resource.VersionOf[networkingv1.IPAddress, networkingv1.IPAddressList]("v1", nil)}, oldIPAddresses()...),
		Strategy: resource.Rules[*networkingv1.IPAddress]{
			ValidateName: validateAddressName,
			Validate: func(_ context.Context, ip *networkingv1.IPAddress) field.ErrorList {
				return validateParent(ip.Spec.ParentRef)
			},
			ValidateUpdate: func(_ context.Context, ip, old *networkingv1.IPAddress) field.ErrorList {
				ref, before := ip.Spec.ParentRef, old.Spec.ParentRef
				changed := (ref == nil) != (before == nil) || ref != nil && *ref != *before
				errs := validateParent(ref)
				if ip.GenerateName != "" {
					errs = append(errs, rules.Invalid(field.NewPath("metadata", "generateName"), ip.GenerateName, validateAddressName(ip.GenerateName, true))...)
				}
				if changed {
					errs = append(errs, resource.ImmutableValue(field.NewPath("spec", "parentRef"), rules.GoForm(ref))...)
				}
				return errs
			},
		}.Strategy(),
		// As in kube-apiserver, the age has a cell but no column.
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "ParentRef", Type: "string", Description: networkingv1.IPAddressSpec{}.SwaggerDoc()["parentRef"]},
		},
		Cells: resource.CellsFunc(func(ip *networkingv1.IPAddress) []any {
			parent := "<none>"
			if ref := ip.Spec.ParentRef; ref != nil {
				parent = strings.ToLower(schema.GroupResource{Group: ref.Group, Resource: ref.Resource}.String())
				if ref.Namespace != "" {
					parent += "/" + ref.Namespace
				}
				parent += "/" + ref.Name
			}
			return []any{ip.Name, parent, resource.Since(ip.CreationTimestamp.Time)}
		}),
	}
}

func validateAddressName(name string, _ bool) []string {
	var messages []string
	for _, err := range validation.IsValidIP(nil, name) {
		messages = append(messages, err.Detail)
	}
	return messages
}

// validateParent validates spec.parentRef.
func validateParent(ref *networkingv1.ParentReference) field.ErrorList {
	path := field.NewPath("spec", "parentRef")
	if ref == nil {
		return resource.DeclaredBeta(field.Required(path, ""))
	}
	var errs field.ErrorList
	if ref.Group != "" {
		errs = append(errs, rules.Invalid(path.Child("group"), ref.Group, validation.IsDNS1123Subdomain(ref.Group))...)
	}
	errs = append(errs, declaredSegment(ref.Resource, path.Child("resource"))...)
	errs = append(errs, declaredSegment(ref.Name, path.Child("name"))...)
	if ref.Namespace != "" {
		errs = append(errs, validateSegment(ref.Namespace, path.Child("namespace"))...)
	}
	return errs
}
