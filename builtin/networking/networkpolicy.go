package networking

import (
	"context"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// NetworkPolicies defines networkpolicies.
func NetworkPolicies() resource.Definition {
	return resource.Definition{
		Group:      networkingv1.GroupName,
		Resource:   "networkpolicies",
		Singular:   "networkpolicy",
		Kind:       "NetworkPolicy",
		ShortNames: []string{"netpol"},
		Namespaced: true,
		StorageKey: "networkpolicies",
		Versions:   append([]resource.Version{resource.VersionOf[networkingv1.NetworkPolicy, networkingv1.NetworkPolicyList]("v1", defaultPolicy)}, oldNetworkPolicies()...),
		Strategy: resource.Rules[*networkingv1.NetworkPolicy]{
			// Here an empty list differs from a missing one.
			Generation: func(p, old *networkingv1.NetworkPolicy) bool { return !reflect.DeepEqual(p.Spec, old.Spec) },
			Validate: func(ctx context.Context, p *networkingv1.NetworkPolicy) field.ErrorList {
				return validatePolicy(ctx, &p.Spec, nil)
			},
			ValidateUpdate: func(ctx context.Context, p, old *networkingv1.NetworkPolicy) field.ErrorList {
				return validatePolicy(ctx, &p.Spec, &old.Spec)
			},
			Warnings: func(_ context.Context, p, _ *networkingv1.NetworkPolicy) []string {
				var warnings []string
				eachPeer(&p.Spec, func(peer *networkingv1.NetworkPolicyPeer, path *field.Path) {
					if b := peer.IPBlock; b != nil {
						path := path.Child("ipBlock")
						warnings = append(warnings, validation.GetWarningsForCIDR(path.Child("cidr"), b.CIDR)...)
						for i, cidr := range b.Except {
							warnings = append(warnings, validation.GetWarningsForCIDR(path.Child("except").Index(i), cidr)...)
						}
					}
				})
				return warnings
			},
		}.Strategy(),
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Pod-Selector", Type: "string", Description: networkingv1.NetworkPolicySpec{}.SwaggerDoc()["podSelector"]},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(p *networkingv1.NetworkPolicy) []any {
			return []any{p.Name, metav1.FormatLabelSelector(&p.Spec.PodSelector), resource.Since(p.CreationTimestamp.Time)}
		}),
	}
}

func defaultPolicy(p *networkingv1.NetworkPolicy) {
	ports := func(ports []networkingv1.NetworkPolicyPort) {
		for i := range ports {
			if ports[i].Protocol == nil {
				ports[i].Protocol = new(corev1.ProtocolTCP)
			}
		}
	}
	for i := range p.Spec.Ingress {
		ports(p.Spec.Ingress[i].Ports)
	}
	for i := range p.Spec.Egress {
		ports(p.Spec.Egress[i].Ports)
	}
	if len(p.Spec.PolicyTypes) == 0 {
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
}

// eachPeer calls f for the peers of all rules.
func eachPeer(spec *networkingv1.NetworkPolicySpec, f func(peer *networkingv1.NetworkPolicyPeer, path *field.Path)) {
	path := field.NewPath("spec")
	for i := range spec.Ingress {
		for j := range spec.Ingress[i].From {
			f(&spec.Ingress[i].From[j], path.Child("ingress").Index(i).Child("from").Index(j))
		}
	}
	for i := range spec.Egress {
		for j := range spec.Egress[i].To {
			f(&spec.Egress[i].To[j], path.Child("egress").Index(i).Child("to").Index(j))
		}
	}
}

// validatePolicy validates a policy; errors that the old one, nil on create, has too are
// tolerated.
func validatePolicy(ctx context.Context, spec, old *networkingv1.NetworkPolicySpec) field.ErrorList {
	var errs field.ErrorList
	var had []string
	labels := metavalidation.LabelSelectorValidationOptions{}
	if old != nil {
		eachPeer(old, func(peer *networkingv1.NetworkPolicyPeer, _ *field.Path) {
			if peer.IPBlock != nil {
				had = append(append(had, peer.IPBlock.CIDR), peer.IPBlock.Except...)
			}
		})
		labels.AllowInvalidLabelValueInSelector = len(metavalidation.ValidateLabelSelector(&old.PodSelector, labels, nil)) > 0
	}
	path := field.NewPath("spec")
	errs = append(errs, metavalidation.ValidateLabelSelector(&spec.PodSelector, labels, path.Child("podSelector"))...)
	judge := func(ports []networkingv1.NetworkPolicyPort, peers []networkingv1.NetworkPolicyPeer, rule *field.Path, side string) {
		errs = append(errs, validatePolicyPorts(ports, rule.Child("ports"))...)
		for i := range peers {
			errs = append(errs, validatePeer(ctx, &peers[i], labels, had, rule.Child(side).Index(i))...)
		}
	}
	for i, rule := range spec.Ingress {
		judge(rule.Ports, rule.From, path.Child("ingress").Index(i), "from")
	}
	for i, rule := range spec.Egress {
		judge(rule.Ports, rule.To, path.Child("egress").Index(i), "to")
	}
	known := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	if len(spec.PolicyTypes) > len(known) {
		return append(errs, field.Invalid(path.Child("policyTypes"), &spec.PolicyTypes, "may not specify more than two policyTypes"))
	}
	for i, t := range spec.PolicyTypes {
		if !slices.Contains(known, t) {
			errs = append(errs, field.NotSupported(path.Child("policyTypes").Index(i), t, known))
		}
	}
	return errs
}

func validatePeer(ctx context.Context, peer *networkingv1.NetworkPolicyPeer, labels metavalidation.LabelSelectorValidationOptions, had []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if peer.PodSelector != nil {
		errs = append(errs, metavalidation.ValidateLabelSelector(peer.PodSelector, labels, path.Child("podSelector"))...)
	}
	if peer.NamespaceSelector != nil {
		errs = append(errs, metavalidation.ValidateLabelSelector(peer.NamespaceSelector, labels, path.Child("namespaceSelector"))...)
	}
	if peer.IPBlock != nil {
		errs = append(errs, validateIPBlock(ctx, peer.IPBlock, path.Child("ipBlock"), had)...)
	}
	switch selects := peer.PodSelector != nil || peer.NamespaceSelector != nil; {
	case !selects && peer.IPBlock == nil:
		errs = append(errs, field.Required(path, "must specify a peer"))
	case selects && peer.IPBlock != nil:
		errs = append(errs, field.Forbidden(path, "may not specify both ipBlock and another peer"))
	}
	return errs
}

func validatePolicyPorts(ports []networkingv1.NetworkPolicyPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	known := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	for i := range ports {
		p := &ports[i]
		port, end := path.Index(i).Child("port"), path.Index(i).Child("endPort")
		if p.Protocol != nil && !slices.Contains(known, *p.Protocol) {
			errs = append(errs, field.NotSupported(path.Index(i).Child("protocol"), *p.Protocol, known))
		}
		switch {
		case p.Port == nil && p.EndPort != nil:
			errs = append(errs, field.Invalid(end, *p.EndPort, "may not be specified when `port` is not specified"))
		case p.Port == nil:
		case p.Port.Type == intstr.String:
			if p.EndPort != nil {
				errs = append(errs, field.Invalid(end, *p.EndPort, "may not be specified when `port` is non-numeric"))
			}
			errs = append(errs, rules.Invalid(port, p.Port.StrVal, validation.IsValidPortName(p.Port.StrVal))...)
		default:
			errs = append(errs, rules.Invalid(port, p.Port.IntVal, validation.IsValidPortNum(int(p.Port.IntVal)))...)
			if p.EndPort == nil {
				break
			}
			if *p.EndPort < p.Port.IntVal {
				errs = append(errs, field.Invalid(end, *p.EndPort, "must be greater than or equal to `port`"))
			}
			errs = append(errs, rules.Invalid(end, *p.EndPort, validation.IsValidPortNum(int(*p.EndPort)))...)
		}
	}
	return errs
}

// validateIPBlock validates a CIDR and its exceptions. A CIDR that the old policy has is
// accepted.
func validateIPBlock(ctx context.Context, b *networkingv1.IPBlock, path *field.Path, had []string) field.ErrorList {
	if b.CIDR == "" {
		return resource.DeclaredBeta(field.Required(path.Child("cidr"), ""))
	}
	errs := validation.IsValidCIDRForLegacyField(path.Child("cidr"), b.CIDR, rules.StrictIPs(ctx), had)
	_, whole, err := utilnet.ParseCIDRSloppy(b.CIDR)
	if err != nil {
		return errs
	}
	size, _ := whole.Mask.Size()
	for i, cidr := range b.Except {
		at := path.Child("except").Index(i)
		errs = append(errs, validation.IsValidCIDRForLegacyField(at, cidr, rules.StrictIPs(ctx), had)...)
		_, part, err := utilnet.ParseCIDRSloppy(cidr)
		if err != nil {
			continue
		}
		if partSize, _ := part.Mask.Size(); !whole.Contains(part.IP) || size >= partSize {
			errs = append(errs, field.Invalid(at, cidr, "must be a strict subset of `cidr`"))
		}
	}
	return errs
}
