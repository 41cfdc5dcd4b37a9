package core

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// setFamilies sets ipFamilyPolicy and ipFamilies from each other, from the addresses, from the
// old service (nil on create) and from the families of the cluster, and refuses families that
// the cluster does not have.
func (h *allocation) setFamilies(s, old *corev1.Service) error {
	if isExternalName(s) || old != nil && samePreferredStack(s, old) {
		return nil
	}
	spec := &s.Spec
	bare := spec.ClusterIP == corev1.ClusterIPNone && len(spec.Selector) == 0
	if spec.IPFamilyPolicy == nil {
		switch {
		case old != nil && old.Spec.IPFamilyPolicy != nil:
			spec.IPFamilyPolicy = new(*old.Spec.IPFamilyPolicy)
		case bare:
			spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
		default:
			spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
		}
	}
	if errs := validateClusterIPs(h.ctx, s, old); len(errs) > 0 {
		return invalidService(s, errs...)
	}
	single := *spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack

	if errs := matchPolicy(s, old, single); len(errs) > 0 {
		return invalidService(s, append(errs, h.inferFamilies(s)...)...)
	}
	if errs := h.inferFamilies(s); len(errs) > 0 {
		return invalidService(s, errs...)
	}

	configured := h.alloc.Families()
	if !bare {
		var errs field.ErrorList
		if *spec.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack && len(configured) < 2 {
			errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services"))
		}
		for i, f := range spec.IPFamilies {
			if !slices.Contains(configured, f) {
				errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilies").Index(i), f, "not configured on this cluster"))
			}
		}
		if len(errs) > 0 {
			return invalidService(s, errs...)
		}
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{configured[0]}
	}
	// Endpoints of a headless service without a selector can be of families that the
	// cluster does not have.
	if !single && len(spec.IPFamilies) == 1 && (bare || len(configured) == 2) {
		spec.IPFamilies = append(spec.IPFamilies, otherFamily(spec.IPFamilies[0]))
	}
	return nil
}

// matchPolicy checks the number of addresses and families against the policy. A change to
// SingleStack alone is enough to drop the second ones.
func matchPolicy(s, old *corev1.Service, single bool) field.ErrorList {
	var errs field.ErrorList
	spec := &s.Spec
	refuse := func(message string) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), spec.IPFamilyPolicy, message))
	}
	if old != nil && single {
		if len(spec.ClusterIPs) > 1 && slices.Equal(spec.ClusterIPs, old.Spec.ClusterIPs) {
			spec.ClusterIPs = spec.ClusterIPs[:1]
		}
		if len(spec.IPFamilies) > 1 && slices.Equal(spec.IPFamilies, old.Spec.IPFamilies) {
			spec.IPFamilies = spec.IPFamilies[:1]
		}
	} else if old != nil {
		if n := len(spec.ClusterIPs); n > 0 && n < len(old.Spec.ClusterIPs) {
			refuse("must be 'SingleStack' to release the secondary cluster IP")
		}
		if n := len(spec.IPFamilies); n > 0 && n < len(old.Spec.IPFamilies) {
			refuse("must be 'SingleStack' to release the secondary IP family")
		}
	}
	if single && len(spec.ClusterIPs) == 2 {
		refuse("must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified")
	}
	if single && len(spec.IPFamilies) == 2 {
		refuse("must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified")
	}
	return errs
}

// inferFamilies adds the families of addresses that have none in ipFamilies.
func (h *allocation) inferFamilies(s *corev1.Service) field.ErrorList {
	var errs field.ErrorList
	for i, ip := range s.Spec.ClusterIPs {
		if ip == corev1.ClusterIPNone {
			break
		}
		if i < len(s.Spec.IPFamilies) {
			continue
		}
		if family := familyOf(ip); slices.Contains(h.alloc.Families(), family) {
			s.Spec.IPFamilies = append(s.Spec.IPFamilies, family)
		} else {
			errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs").Index(i), s.Spec.ClusterIPs, fmt.Sprintf("%s is not configured on this cluster", family)))
		}
	}
	return errs
}

// samePreferredStack reports whether a PreferDualStack service is unchanged in policy,
// families and addresses. It then keeps its families when the cluster gains or loses one.
func samePreferredStack(s, old *corev1.Service) bool {
	p, q := s.Spec.IPFamilyPolicy, old.Spec.IPFamilyPolicy
	return p != nil && *p == corev1.IPFamilyPolicyPreferDualStack && (q == nil || *q == corev1.IPFamilyPolicyPreferDualStack) &&
		s.Spec.Type == old.Spec.Type && (s.Spec.Type == corev1.ServiceTypeClusterIP || wantsNodePorts(s)) &&
		slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) && slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies)
}

// complete returns a service with ipFamilies and clusterIPs, which services of very old
// servers lack.
func (b booking) complete(s *corev1.Service) *corev1.Service {
	if isExternalName(s) || len(s.Spec.IPFamilies) > 0 && len(s.Spec.ClusterIPs) > 0 {
		return s
	}
	s = s.DeepCopy()
	spec := &s.Spec
	if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if len(spec.IPFamilies) > 0 {
		return s
	}
	first := b.alloc.Families()[0]
	policy := corev1.IPFamilyPolicySingleStack
	switch {
	case spec.ClusterIP != corev1.ClusterIPNone:
		for _, ip := range spec.ClusterIPs {
			spec.IPFamilies = append(spec.IPFamilies, familyOf(ip))
		}
		if len(spec.IPFamilies) == 2 {
			policy = corev1.IPFamilyPolicyRequireDualStack
		}
	case len(spec.Selector) == 0:
		spec.IPFamilies = []corev1.IPFamily{first, otherFamily(first)}
		policy = corev1.IPFamilyPolicyRequireDualStack
	default:
		spec.IPFamilies = []corev1.IPFamily{first}
	}
	spec.IPFamilyPolicy = &policy
	return s
}

func otherFamily(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}
