package networking

import (
	"context"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// keepsRangeStatus is the feature gate of a status that is only written by its subresource.
const keepsRangeStatus = "ServiceCIDRStatusFieldWiping"

// ServiceCIDRs defines servicecidrs.
func ServiceCIDRs() resource.Definition {
	status := resource.Rules[*networkingv1.ServiceCIDR]{
		PrepareUpdate: func(_ context.Context, c, old *networkingv1.ServiceCIDR) {
			c.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&c.ObjectMeta, &old.ObjectMeta)
		},
		ValidateUpdate: func(context.Context, *networkingv1.ServiceCIDR, *networkingv1.ServiceCIDR) field.ErrorList {
			return nil
		},
	}.Strategy()
	status.Resets = []string{"metadata", "spec"}
	return resource.Definition{
		Group:      networkingv1.GroupName,
		Resource:   "servicecidrs",
		Singular:   "servicecidr",
		Kind:       "ServiceCIDR",
		StorageKey: "servicecidrs",
		Versions:   append([]resource.Version{resource.VersionOf[networkingv1.ServiceCIDR, networkingv1.ServiceCIDRList]("v1", nil)}, oldServiceCIDRs()...),
		Strategy: resource.Rules[*networkingv1.ServiceCIDR]{
			PrepareCreate: func(ctx context.Context, c *networkingv1.ServiceCIDR) {
				if features.From(ctx).Enabled(keepsRangeStatus) {
					c.Status = networkingv1.ServiceCIDRStatus{}
				}
			},
			PrepareUpdate: func(ctx context.Context, c, old *networkingv1.ServiceCIDR) {
				if features.From(ctx).Enabled(keepsRangeStatus) {
					c.Status = old.Status
				}
			},
			Validate: func(_ context.Context, c *networkingv1.ServiceCIDR) field.ErrorList { return validateRanges(&c.Spec) },
			ValidateUpdate: func(_ context.Context, c, old *networkingv1.ServiceCIDR) field.ErrorList {
				return validateRangesUpdate(&c.Spec, &old.Spec)
			},
		}.Strategy(),
		Subresources: []resource.Subresource{{Name: "status", Part: &status}},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "CIDRs", Type: "string", Description: networkingv1.ServiceCIDRSpec{}.SwaggerDoc()["cidrs"]},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(c *networkingv1.ServiceCIDR) []any {
			return []any{c.Name, strings.Join(c.Spec.CIDRs, ","), resource.Since(c.CreationTimestamp.Time)}
		}),
	}
}

func validateRanges(spec *networkingv1.ServiceCIDRSpec) field.ErrorList {
	path := field.NewPath("spec", "cidrs")
	switch len(spec.CIDRs) {
	case 0:
		return field.ErrorList{field.Required(path, "at least one CIDR required")}
	case 1, 2:
	default:
		return field.ErrorList{field.Invalid(path, rules.GoForm(spec), "may only hold up to 2 values")}
	}
	var errs field.ErrorList
	families := map[utilnet.IPFamily]int{}
	for i, cidr := range spec.CIDRs {
		errs = append(errs, validation.IsValidCIDR(path.Index(i), cidr)...)
		families[utilnet.IPFamilyOfCIDRString(cidr)]++
	}
	if families[utilnet.IPv4] > 1 || families[utilnet.IPv6] > 1 {
		errs = append(errs, field.Invalid(path, spec.CIDRs, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"))
	}
	return errs
}

// validateRangesUpdate checks that ranges are unchanged; a second one may be added.
func validateRangesUpdate(spec, old *networkingv1.ServiceCIDRSpec) field.ErrorList {
	path := field.NewPath("spec", "cidrs")
	added := len(old.CIDRs) == 1 && len(spec.CIDRs) == 2
	if len(spec.CIDRs) != len(old.CIDRs) && !added {
		return field.ErrorList{field.Invalid(path, spec.CIDRs, apivalidation.FieldImmutableErrorMsg)}
	}
	var errs field.ErrorList
	for i, cidr := range old.CIDRs {
		if cidr != spec.CIDRs[i] {
			errs = append(errs, field.Invalid(path.Index(i), spec.CIDRs[i], apivalidation.FieldImmutableErrorMsg))
		}
	}
	if added {
		errs = append(errs, validateRanges(spec)...)
	}
	return errs
}
