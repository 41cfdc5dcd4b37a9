package core

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"github.com/apikeel/kelson/builtin/rules"
)

// maxAffinitySeconds bounds the timeout of session affinity: a day.
const maxAffinitySeconds = 86400

const onlyLoadBalancers = "may only be used when `type` is 'LoadBalancer'"

func internalPolicies() []corev1.ServiceInternalTrafficPolicy {
	return []corev1.ServiceInternalTrafficPolicy{corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal}
}

// mustBeOneOf checks that a value is set and known.
func mustBeOneOf[T ~string](path *field.Path, value T, known ...T) field.ErrorList {
	var errs rules.Errors
	rules.OneOfOrRequired(&errs, path, value, known...)
	return field.ErrorList(errs)
}

// validateService validates a service with the values that the server has allocated. Some
// values are validated by older, laxer rules if old has them; old is nil on create.
func validateService(ctx context.Context, s, old *corev1.Service) field.ErrorList {
	var before corev1.Service
	if old != nil {
		before = *old
	}
	spec := field.NewPath("spec")
	var errs field.ErrorList
	add := func(more ...*field.Error) { errs = append(errs, more...) }

	hints, hasHints := s.Annotations[topologyHintsAnnotation]
	mode, hasMode := s.Annotations[topologyModeAnnotation]
	if hasHints && hasMode && hints != mode {
		add(field.Invalid(field.NewPath("metadata", "annotations").Key(topologyModeAnnotation), mode,
			fmt.Sprintf("must match annotations[%s] when both are specified", topologyHintsAnnotation)))
	}

	if len(s.Spec.Ports) == 0 && !isHeadless(s) && !isExternalName(s) {
		add(field.Required(spec.Child("ports"), ""))
	}
	if wantsNodePorts(s) && isHeadless(s) {
		add(field.Invalid(spec.Child("clusterIPs").Index(0), s.Spec.ClusterIPs[0], fmt.Sprintf("may not be set to 'None' for %s services", s.Spec.Type)))
	}
	if isExternalName(s) {
		add(validateExternalName(s, spec)...)
	}
	add(validateServicePorts(s, spec.Child("ports"))...)
	if s.Spec.Selector != nil {
		add(metavalidation.ValidateLabels(s.Spec.Selector, spec.Child("selector"))...)
	}
	add(validateAffinity(s, spec)...)
	add(validateClusterIPs(ctx, s, old)...)

	for i, ip := range s.Spec.ExternalIPs {
		at := spec.Child("externalIPs").Index(i)
		if bad := validation.IsValidIPForLegacyField(at, ip, rules.StrictIPs(ctx), before.Spec.ExternalIPs); len(bad) > 0 {
			add(bad...)
		} else {
			add(rules.ValidateEndpointIP(ip, at)...)
		}
	}
	add(mustBeOneOf(spec.Child("type"), s.Spec.Type, corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort)...)
	add(validatePortNumbers(s, spec.Child("ports"))...)
	add(validateSourceRanges(ctx, s, &before, spec)...)

	if allocate := s.Spec.AllocateLoadBalancerNodePorts; allocate != nil && !isLoadBalancer(s) {
		add(field.Forbidden(spec.Child("allocateLoadBalancerNodePorts"), onlyLoadBalancers))
	} else if allocate == nil && isLoadBalancer(s) {
		add(field.Required(field.NewPath("allocateLoadBalancerNodePorts"), ""))
	}
	add(validateLoadBalancerClass(s, spec.Child("loadBalancerClass"))...)
	add(validateTraffic(s, spec)...)
	return errs
}

func validateLoadBalancerClass(s *corev1.Service, path *field.Path) field.ErrorList {
	switch c := s.Spec.LoadBalancerClass; {
	case c == nil:
		return nil
	case !isLoadBalancer(s):
		return field.ErrorList{field.Forbidden(path, onlyLoadBalancers)}
	default:
		return rules.Invalid(path, *c, validation.IsQualifiedName(*c))
	}
}

func validateExternalName(s *corev1.Service, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"clusterIPs", len(s.Spec.ClusterIPs) > 0},
		{"ipFamilies", len(s.Spec.IPFamilies) > 0},
		{"ipFamilyPolicy", s.Spec.IPFamilyPolicy != nil},
	} {
		if f.set {
			errs = append(errs, field.Forbidden(spec.Child(f.name), "may not be set for ExternalName services"))
		}
	}
	path := spec.Child("externalName")
	name := strings.TrimSuffix(s.Spec.ExternalName, ".")
	if name == "" {
		return append(errs, field.Required(path, ""))
	}
	return append(errs, rules.Invalid(path, name, validation.IsDNS1123Subdomain(name))...)
}

func validateServicePorts(s *corev1.Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i, p := range s.Spec.Ports {
		at := path.Index(i)
		if p.Name != "" {
			errs = append(errs, rules.Invalid(at.Child("name"), p.Name, validation.IsDNS1123Label(p.Name))...)
			if names[p.Name] {
				errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
			}
			names[p.Name] = true
		} else if len(s.Spec.Ports) > 1 {
			errs = append(errs, field.Required(at.Child("name"), ""))
		}
		errs = append(errs, rules.Invalid(at.Child("port"), p.Port, validation.IsValidPortNum(int(p.Port)))...)
		errs = append(errs, mustBeOneOf(at.Child("protocol"), p.Protocol, corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)...)
		switch target := at.Child("targetPort"); p.TargetPort.Type {
		case intstr.Int:
			errs = append(errs, rules.Invalid(target, p.TargetPort.IntValue(), validation.IsValidPortNum(p.TargetPort.IntValue()))...)
		case intstr.String:
			errs = append(errs, rules.Invalid(target, p.TargetPort.StrVal, validation.IsValidPortName(p.TargetPort.StrVal))...)
		default:
			errs = append(errs, field.InternalError(target, fmt.Errorf("unknown type: %v", p.TargetPort.Type)))
		}
		if p.AppProtocol != nil {
			errs = append(errs, rules.Invalid(at.Child("appProtocol"), *p.AppProtocol, validation.IsQualifiedName(*p.AppProtocol))...)
		}
	}
	return errs
}

// validatePortNumbers checks that port and protocol, and node port and protocol, are unique
// within the service.
func validatePortNumbers(s *corev1.Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, p := range s.Spec.Ports {
		if p.NodePort != 0 && s.Spec.Type == corev1.ServiceTypeClusterIP {
			errs = append(errs, field.Forbidden(path.Index(i).Child("nodePort"), "may not be used when `type` is 'ClusterIP'"))
		}
	}
	type number struct {
		protocol corev1.Protocol
		port     int32
	}
	seen := map[number]bool{}
	for i, p := range s.Spec.Ports {
		if n := (number{p.Protocol, p.NodePort}); p.NodePort != 0 {
			if seen[n] {
				errs = append(errs, field.Duplicate(path.Index(i).Child("nodePort"), p.NodePort))
			}
			seen[n] = true
		}
	}
	clear(seen)
	for i, p := range s.Spec.Ports {
		n := number{p.Protocol, p.Port}
		if seen[n] {
			errs = append(errs, field.Duplicate(path.Index(i), rules.GoForm(corev1.ServicePort{Protocol: p.Protocol, Port: p.Port})))
		}
		seen[n] = true
	}
	return errs
}

func validateAffinity(s *corev1.Service, spec *field.Path) field.ErrorList {
	errs := mustBeOneOf(spec.Child("sessionAffinity"), s.Spec.SessionAffinity, corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone)
	config, path := s.Spec.SessionAffinityConfig, spec.Child("sessionAffinityConfig")
	required := fmt.Sprintf("when session affinity type is %s", corev1.ServiceAffinityClientIP)
	switch {
	case s.Spec.SessionAffinity == corev1.ServiceAffinityNone && config != nil:
		errs = append(errs, field.Forbidden(path, fmt.Sprintf("must not be set when session affinity is %s", corev1.ServiceAffinityNone)))
	case s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP:
	case config == nil:
		errs = append(errs, field.Required(path, required))
	case config.ClientIP == nil:
		errs = append(errs, field.Required(path.Child("clientIP"), required))
	case config.ClientIP.TimeoutSeconds == nil:
		errs = append(errs, field.Required(path.Child("clientIP", "timeoutSeconds"), required))
	default:
		if t := *config.ClientIP.TimeoutSeconds; t <= 0 || t > maxAffinitySeconds {
			errs = append(errs, field.Invalid(path.Child("clientIP", "timeoutSeconds"), t,
				fmt.Sprintf("must be greater than 0 and less than %d", maxAffinitySeconds)))
		}
	}
	return errs
}

// validateSourceRanges validates loadBalancerSourceRanges, or the annotation that precedes
// it. Entries of both may be padded with spaces.
func validateSourceRanges(ctx context.Context, s, old *corev1.Service, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	forbid := func(path *field.Path) {
		if !isLoadBalancer(s) {
			errs = append(errs, field.Forbidden(path, onlyLoadBalancers))
		}
	}
	if len(s.Spec.LoadBalancerSourceRanges) > 0 {
		path := spec.Child("LoadBalancerSourceRanges")
		forbid(path)
		had := make([]string, len(old.Spec.LoadBalancerSourceRanges))
		for i, cidr := range old.Spec.LoadBalancerSourceRanges {
			had[i] = strings.TrimSpace(cidr)
		}
		for i, cidr := range s.Spec.LoadBalancerSourceRanges {
			errs = append(errs, validation.IsValidCIDRForLegacyField(path.Index(i), strings.TrimSpace(cidr), rules.StrictIPs(ctx), had)...)
		}
		return errs
	}
	value, ok := s.Annotations[sourceRangesAnnotation]
	if !ok {
		return nil
	}
	path := field.NewPath("metadata", "annotations").Key(sourceRangesAnnotation)
	forbid(path)
	if value == old.Annotations[sourceRangesAnnotation] || strings.TrimSpace(value) == "" {
		return errs
	}
	for cidr := range strings.SplitSeq(strings.TrimSpace(value), ",") {
		errs = append(errs, validation.IsValidCIDRForLegacyField(path, strings.TrimSpace(cidr), rules.StrictIPs(ctx), nil)...)
	}
	return errs
}

func validateTraffic(s *corev1.Service, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	external, health := spec.Child("externalTrafficPolicy"), spec.Child("healthCheckNodePort")
	if externallyAccessible(s) {
		errs = append(errs, mustBeOneOf(external, s.Spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)...)
	} else if s.Spec.ExternalTrafficPolicy != "" {
		errs = append(errs, field.Invalid(external, s.Spec.ExternalTrafficPolicy, "may only be set for externally-accessible services"))
	}

	switch port := s.Spec.HealthCheckNodePort; {
	case !wantsHealthPort(s) && port != 0:
		errs = append(errs, field.Invalid(health, port, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
	case wantsHealthPort(s) && port == 0:
		errs = append(errs, field.Required(health, ""))
	case wantsHealthPort(s):
		errs = append(errs, rules.Invalid(health, port, validation.IsValidPortNum(int(port)))...)
	}

	internal := spec.Child("internalTrafficPolicy")
	if p := s.Spec.InternalTrafficPolicy; p != nil && !slices.Contains(internalPolicies(), *p) {
		errs = append(errs, field.NotSupported(internal, *p, internalPolicies()))
	} else if p == nil && (wantsNodePorts(s) || s.Spec.Type == corev1.ServiceTypeClusterIP) {
		errs = append(errs, field.Required(internal, ""))
	}

	known := []string{corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode}
	if d := s.Spec.TrafficDistribution; d != nil && !slices.Contains(known, *d) {
		errs = append(errs, field.NotSupported(spec.Child("trafficDistribution"), *d, known))
	}
	return errs
}

// validateClusterIPs validates clusterIP, clusterIPs, ipFamilies and ipFamilyPolicy, which
// depend on each other.
func validateClusterIPs(ctx context.Context, s, old *corev1.Service) field.ErrorList {
	if isExternalName(s) {
		return nil
	}
	var errs field.ErrorList
	spec := field.NewPath("spec")
	path, families, ips := spec.Child("clusterIPs"), spec.Child("ipFamilies"), s.Spec.ClusterIPs

	switch {
	case s.Spec.ClusterIP == "" && len(ips) > 0:
		errs = append(errs, field.Invalid(path, ips, "must be empty when `clusterIP` is not specified"))
	case s.Spec.ClusterIP != "" && len(ips) == 0:
		errs = append(errs, field.Required(path, ""))
	case s.Spec.ClusterIP != "" && ips[0] != s.Spec.ClusterIP:
		errs = append(errs, field.Invalid(path, ips, "first value must match `clusterIP`"))
	}
	for i, f := range s.Spec.IPFamilies {
		if f != corev1.IPv4Protocol && f != corev1.IPv6Protocol {
			errs = append(errs, field.NotSupported(families.Index(i), f, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}))
		}
		if slices.Contains(s.Spec.IPFamilies[:i], f) {
			errs = append(errs, field.Duplicate(families.Index(i), f))
		}
	}
	known := []corev1.IPFamilyPolicy{corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack, corev1.IPFamilyPolicySingleStack}
	if p := s.Spec.IPFamilyPolicy; p != nil && !slices.Contains(known, *p) {
		errs = append(errs, field.NotSupported(spec.Child("ipFamilyPolicy"), *p, known))
	}

	var had []string
	if old != nil {
		had = old.Spec.ClusterIPs
	}
	broken := false
	for i, ip := range ips {
		var bad field.ErrorList
		if i > 0 || ip != corev1.ClusterIPNone {
			bad = validation.IsValidIPForLegacyField(path.Index(i), ip, rules.StrictIPs(ctx), had)
		} else if len(ips) > 1 {
			bad = field.ErrorList{field.Invalid(path, ips, "'None' must be the first and only value")}
		}
		broken = broken || len(bad) > 0
		errs = append(errs, bad...)
	}
	if len(ips) > 2 {
		errs = append(errs, field.Invalid(path, ips, "may only hold up to 2 values"))
	}
	if broken {
		return errs
	}

	if len(ips) > 1 {
		dual, err := utilnet.IsDualStackIPStrings(ips)
		if err != nil {
			errs = append(errs, field.InternalError(path, fmt.Errorf("failed to check for dual stack with error:%v", err)))
		}
		if !dual {
			errs = append(errs, field.Invalid(path, ips, "may specify no more than one IP for each IP family"))
		}
	}
	if isHeadless(s) {
		return errs
	}
	for i := range min(len(ips), len(s.Spec.IPFamilies)) {
		if want := s.Spec.IPFamilies[i]; want != familyOf(ips[i]) && (want == corev1.IPv4Protocol || want == corev1.IPv6Protocol) {
			errs = append(errs, field.Invalid(path.Index(i), ips[i], fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%v]`", want, i)))
		}
	}
	return errs
}

func familyOf(ip string) corev1.IPFamily {
	if utilnet.IsIPv6String(ip) {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// validateServiceUpdate checks that the primary cluster IP and IP family are unchanged. A
// secondary one may be added and, with the policy SingleStack, removed. Everything may change
// when a service becomes ExternalName or ceases to be.
func validateServiceUpdate(s, old *corev1.Service) field.ErrorList {
	var errs field.ErrorList
	spec := field.NewPath("spec")
	if !isExternalName(s) && !isExternalName(old) {
		if !isHeadless(s) || !isHeadless(old) {
			errs = append(errs, validateKept(s, s.Spec.ClusterIPs, old.Spec.ClusterIPs, "clusterIP", s.Spec.ClusterIPs, s.Spec.ClusterIPs)...)
		}
		if !isHeadless(s) && !isHeadless(old) {
			// As in kube-apiserver, the error shows the addresses if the number of families
			// changes.
			errs = append(errs, validateKept(s, s.Spec.IPFamilies, old.Spec.IPFamilies, "ipFamily", s.Spec.IPFamilies, s.Spec.ClusterIPs)...)
		}
	}
	if isLoadBalancer(s) && isLoadBalancer(old) && !equalPtr(s.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass) {
		errs = append(errs, field.Invalid(spec.Child("loadBalancerClass"), s.Spec.LoadBalancerClass, "may not change once set"))
	}
	errs = append(errs, validateLoadBalancerClass(s, spec.Child("loadBalancerClass"))...)
	if wantsHealthPort(s) && wantsHealthPort(old) && s.Spec.HealthCheckNodePort != old.Spec.HealthCheckNodePort {
		errs = append(errs, field.Forbidden(spec.Child("healthCheckNodePort"), "field is immutable"))
	}
	return errs
}

// validateKept compares the addresses or the families of a service; name is the singular.
// same and other are the values that errors show.
func validateKept[T comparable](s *corev1.Service, now, before []T, name string, same, other any) field.ErrorList {
	var errs field.ErrorList
	plural := name + "s"
	if name == "ipFamily" {
		plural = "ipFamilies"
	}
	path := field.NewPath("spec", plural)
	const fixed = "may not change once set"
	if len(now) == len(before) {
		for i := range before {
			at := path.Index(i)
			if name == "ipFamily" {
				at = path.Index(0)
			}
			if now[i] != before[i] {
				errs = append(errs, field.Invalid(at, same, fixed))
			}
		}
		return errs
	}
	if len(now) < len(before) && len(s.Spec.ClusterIPs) == 0 {
		errs = append(errs, field.Invalid(path.Index(0), same, fmt.Sprintf("primary %s can not be unset", name)))
	}
	if len(now) > 0 && len(before) > 0 && now[0] != before[0] {
		errs = append(errs, field.Invalid(path.Index(0), other, fixed))
	}
	if p := s.Spec.IPFamilyPolicy; len(now) < len(before) && len(now) == 1 && (p == nil || *p != corev1.IPFamilyPolicySingleStack) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), p,
			fmt.Sprintf("must be set to 'SingleStack' when releasing the secondary %s", name)))
	}
	return errs
}

func validateServiceStatus(ctx context.Context, s, old *corev1.Service) field.ErrorList {
	path := field.NewPath("status", "loadBalancer", "ingress")
	if !isLoadBalancer(s) {
		if len(s.Status.LoadBalancer.Ingress) > 0 {
			return field.ErrorList{field.Forbidden(path, "may only be used when `spec.type` is 'LoadBalancer'")}
		}
		return nil
	}
	var had []string
	for _, in := range old.Status.LoadBalancer.Ingress {
		had = append(had, in.IP)
	}
	var errs field.ErrorList
	for i, in := range s.Status.LoadBalancer.Ingress {
		at := path.Index(i)
		if in.IP != "" {
			errs = append(errs, validation.IsValidIPForLegacyField(at.Child("ip"), in.IP, rules.StrictIPs(ctx), had)...)
		}
		modes := []corev1.LoadBalancerIPMode{corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP}
		switch mode := at.Child("ipMode"); {
		case in.IPMode == nil && in.IP != "":
			errs = append(errs, field.Required(mode, "must be specified when `ip` is set"))
		case in.IPMode != nil && in.IP == "":
			errs = append(errs, field.Forbidden(mode, "may not be specified when `ip` is not set"))
		case in.IPMode != nil && !slices.Contains(modes, *in.IPMode):
			errs = append(errs, field.NotSupported(mode, *in.IPMode, modes))
		}
		if in.Hostname != "" {
			errs = append(errs, rules.Invalid(at.Child("hostname"), in.Hostname, validation.IsDNS1123Subdomain(in.Hostname))...)
			if utilnet.ParseIPSloppy(in.Hostname) != nil {
				errs = append(errs, field.Invalid(at.Child("hostname"), in.Hostname, "must be a DNS name, not an IP address"))
			}
		}
	}
	return errs
}
