package core

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// Deprecated annotations that fields have replaced.
const (
	topologyHintsAnnotation = corev1.DeprecatedAnnotationTopologyAwareHints
	topologyModeAnnotation  = corev1.AnnotationTopologyMode
	sourceRangesAnnotation  = corev1.AnnotationLoadBalancerSourceRangesKey
)

// Services defines services. Cluster IPs for each IP family, and node ports where the type
// needs them, are allocated before validation, so that validation sees them.
func Services(alloc Allocator, log *slog.Logger) resource.Definition {
	book := booking{alloc: alloc, log: log}
	prepare := func(_ context.Context, s *corev1.Service) {
		s.Status = corev1.ServiceStatus{}
		dropInternalPolicy(s)
	}
	validate := func(ctx context.Context, s *corev1.Service) field.ErrorList { return validateService(ctx, s, nil) }
	return resource.Definition{
		Resource:   "services",
		Kind:       "Service",
		ShortNames: []string{"svc"},
		Categories: []string{"all"},
		Namespaced: true,
		StorageKey: "services/specs",
		Versions:   []resource.Version{resource.VersionOf[corev1.Service, corev1.ServiceList]("v1", defaultService)},
		Strategy: resource.Rules[*corev1.Service]{
			ValidateName:   apivalidation.NameIsDNSLabel,
			CreateOnUpdate: true,
			ReturnDeleted:  true,
			Begin:          book.begin,
			PrepareCreate:  prepare,
			PrepareUpdate: func(_ context.Context, s, old *corev1.Service) {
				s.Status = old.Status
				dropOutdated(s, old)
				dropInternalPolicy(s)
			},
			Validate: validate,
			ValidateUpdate: func(ctx context.Context, s, old *corev1.Service) field.ErrorList {
				return append(validateServiceUpdate(s, old), validateService(ctx, s, old)...)
			},
			Warnings: func(_ context.Context, s, _ *corev1.Service) []string { return serviceWarnings(s) },
		}.Strategy(),
		Subresources: []resource.Subresource{{
			Name: "status",
			Part: new(resource.Rules[*corev1.Service]{
				// As in kube-apiserver, a PUT to the status can create a service, which then has no
				// addresses.
				ValidateName:   apivalidation.NameIsDNSLabel,
				CreateOnUpdate: true,
				PrepareCreate:  prepare,
				Validate:       validate,
				PrepareUpdate:  func(_ context.Context, s, old *corev1.Service) { s.Spec = old.Spec },
				ValidateUpdate: func(ctx context.Context, s, old *corev1.Service) field.ErrorList {
					return validateServiceStatus(ctx, s, old)
				},
				Warnings: func(_ context.Context, s, old *corev1.Service) []string {
					if old == nil {
						return serviceWarnings(s)
					}
					var warnings []string
					for i, in := range s.Status.LoadBalancer.Ingress {
						if in.IP != "" {
							warnings = append(warnings, validation.GetWarningsForIP(field.NewPath("status", "loadBalancer", "ingress").Index(i), in.IP)...)
						}
					}
					return warnings
				},
			}.Strategy()),
		}},
		Columns: serviceColumns(),
		Cells:   resource.CellsFunc(serviceCells),
		Fields: []resource.Field{
			resource.FieldFunc("spec.clusterIP", func(s *corev1.Service) string { return s.Spec.ClusterIP }),
			resource.FieldFunc("spec.type", func(s *corev1.Service) string { return string(s.Spec.Type) }),
		},
	}
}

func defaultService(s *corev1.Service) {
	spec := &s.Spec
	spec.SessionAffinity = cmp.Or(spec.SessionAffinity, corev1.ServiceAffinityNone)
	switch c := spec.SessionAffinityConfig; spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		spec.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(corev1.DefaultClientIPServiceAffinitySeconds)},
			}
		}
	}
	spec.Type = cmp.Or(spec.Type, corev1.ServiceTypeClusterIP)
	for i := range spec.Ports {
		p := &spec.Ports[i]
		p.Protocol = cmp.Or(p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if externallyAccessible(s) {
		spec.ExternalTrafficPolicy = cmp.Or(spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if spec.InternalTrafficPolicy == nil && (spec.Type == corev1.ServiceTypeClusterIP || wantsNodePorts(s)) {
		spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		if spec.AllocateLoadBalancerNodePorts == nil {
			spec.AllocateLoadBalancerNodePorts = new(true)
		}
		for i := range s.Status.LoadBalancer.Ingress {
			if in := &s.Status.LoadBalancer.Ingress[i]; in.IP != "" && in.IPMode == nil {
				in.IPMode = new(corev1.LoadBalancerIPModeVIP)
			}
		}
	}
}

// Predicates on the type of a service. An ExternalName service is only a DNS alias.

func isExternalName(s *corev1.Service) bool { return s.Spec.Type == corev1.ServiceTypeExternalName }

func isLoadBalancer(s *corev1.Service) bool { return s.Spec.Type == corev1.ServiceTypeLoadBalancer }

func isHeadless(s *corev1.Service) bool {
	return len(s.Spec.ClusterIPs) == 1 && s.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

// wantsNodePorts reports whether the type uses node ports.
func wantsNodePorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || isLoadBalancer(s)
}

// getsNodePorts reports whether ports without a node port are given one.
func getsNodePorts(s *corev1.Service) bool {
	no := s.Spec.AllocateLoadBalancerNodePorts
	return s.Spec.Type == corev1.ServiceTypeNodePort || isLoadBalancer(s) && (no == nil || *no)
}

func wantsHealthPort(s *corev1.Service) bool {
	return isLoadBalancer(s) && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func externallyAccessible(s *corev1.Service) bool {
	return wantsNodePorts(s) || s.Spec.Type == corev1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0
}

func nodePorts(s *corev1.Service) []int32 {
	var ports []int32
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 {
			ports = append(ports, p.NodePort)
		}
	}
	return ports
}

// equalPtr reports whether two pointers are both nil or point to equal values.
func equalPtr[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// dropOutdated clears fields that do not apply to the new type of a service. The server may
// have set them, so a client that changes the type and leaves them as they were does not want
// them. If the client changes them too, validation reports that they do not fit.
func dropOutdated(s, old *corev1.Service) {
	if isExternalName(s) && !isExternalName(old) {
		followClusterIP(s, old)
		if s.Spec.ClusterIP == old.Spec.ClusterIP && slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
		}
		if slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies) {
			s.Spec.IPFamilies = nil
		}
		if equalPtr(s.Spec.IPFamilyPolicy, old.Spec.IPFamilyPolicy) {
			s.Spec.IPFamilyPolicy = nil
		}
	}
	if wantsNodePorts(old) && !wantsNodePorts(s) {
		had := nodePorts(old)
		if !slices.ContainsFunc(nodePorts(s), func(p int32) bool { return !slices.Contains(had, p) }) {
			for i := range s.Spec.Ports {
				s.Spec.Ports[i].NodePort = 0
			}
		}
	}
	if wantsHealthPort(old) && !wantsHealthPort(s) && s.Spec.HealthCheckNodePort == old.Spec.HealthCheckNodePort {
		s.Spec.HealthCheckNodePort = 0
	}
	if isLoadBalancer(old) && !isLoadBalancer(s) {
		if equalPtr(s.Spec.AllocateLoadBalancerNodePorts, old.Spec.AllocateLoadBalancerNodePorts) {
			s.Spec.AllocateLoadBalancerNodePorts = nil
		}
		if equalPtr(s.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass) {
			s.Spec.LoadBalancerClass = nil
		}
	}
	if externallyAccessible(old) && !externallyAccessible(s) && s.Spec.ExternalTrafficPolicy == old.Spec.ExternalTrafficPolicy {
		s.Spec.ExternalTrafficPolicy = ""
	}
	if !isLoadBalancer(s) {
		s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	}
}

// dropInternalPolicy clears a valid internalTrafficPolicy of an ExternalName service, which
// does not use it. An invalid one stays for validation to report.
func dropInternalPolicy(s *corev1.Service) {
	if p := s.Spec.InternalTrafficPolicy; isExternalName(s) && p != nil && slices.Contains(internalPolicies(), *p) {
		s.Spec.InternalTrafficPolicy = nil
	}
}

func serviceWarnings(s *corev1.Service) []string {
	var warnings []string
	add := func(w ...string) { warnings = append(warnings, w...) }
	spec := field.NewPath("spec")
	if _, ok := s.Annotations[topologyHintsAnnotation]; ok {
		add(fmt.Sprintf("annotation %s is deprecated, please use %s instead", topologyHintsAnnotation, topologyModeAnnotation))
	}
	headless := s.Spec.Type == corev1.ServiceTypeClusterIP && s.Spec.ClusterIP == corev1.ClusterIPNone
	if s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone {
		for i, ip := range s.Spec.ClusterIPs {
			add(validation.GetWarningsForIP(spec.Child("clusterIPs").Index(i), ip)...)
		}
	}
	if headless {
		if s.Spec.LoadBalancerIP != "" {
			add("spec.loadBalancerIP is ignored for headless services")
		}
		if len(s.Spec.ExternalIPs) > 0 {
			add("spec.externalIPs is ignored for headless services")
		}
		if s.Spec.SessionAffinity != corev1.ServiceAffinityNone {
			add("spec.SessionAffinity is ignored for headless services")
		}
	}
	for i, ip := range s.Spec.ExternalIPs {
		add(validation.GetWarningsForIP(spec.Child("externalIPs").Index(i), ip)...)
	}
	if len(s.Spec.ExternalIPs) > 0 && !headless && !isExternalName(s) {
		add("spec.externalIPs is deprecated and may no longer be implemented in some clusters")
	}
	if s.Spec.LoadBalancerIP != "" {
		add(validation.GetWarningsForIP(spec.Child("loadBalancerIP"), s.Spec.LoadBalancerIP)...)
	}
	for i, cidr := range s.Spec.LoadBalancerSourceRanges {
		add(validation.GetWarningsForCIDR(spec.Child("loadBalancerSourceRanges").Index(i), cidr)...)
	}
	if isExternalName(s) && len(s.Spec.ExternalIPs) > 0 {
		add(fmt.Sprintf("spec.externalIPs is ignored when spec.type is %q", corev1.ServiceTypeExternalName))
	}
	if !isExternalName(s) && s.Spec.ExternalName != "" {
		add(fmt.Sprintf("spec.externalName is ignored when spec.type is not %q", corev1.ServiceTypeExternalName))
	}
	if d := s.Spec.TrafficDistribution; d != nil && *d == corev1.ServiceTrafficDistributionPreferClose {
		add(fmt.Sprintf("spec.trafficDistribution: %q is deprecated; use %q", corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone))
	}
	return warnings
}

func serviceColumns() []resource.Column {
	doc := corev1.ServiceSpec{}.SwaggerDoc()
	return []resource.Column{
		rules.NameColumn(),
		{Name: "Type", Type: "string", Description: doc["type"]},
		{Name: "Cluster-IP", Type: "string", Description: doc["clusterIP"]},
		{Name: "External-IP", Type: "string", Description: doc["externalIPs"]},
		{Name: "Port(s)", Type: "string", Description: doc["ports"]},
		rules.AgeColumn(),
		{Name: "Selector", Type: "string", Priority: 1, Description: doc["selector"]},
	}
}

func serviceCells(s *corev1.Service) []any {
	ip := "<none>"
	if len(s.Spec.ClusterIPs) > 0 {
		ip = s.Spec.ClusterIPs[0]
	}
	ports := make([]string, len(s.Spec.Ports))
	for i, p := range s.Spec.Ports {
		if ports[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol); p.NodePort > 0 {
			ports[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
	}
	return []any{
		s.Name, string(s.Spec.Type), ip, externalAddress(s), orElse(strings.Join(ports, ","), "<none>"),
		resource.Since(s.CreationTimestamp.Time), labels.FormatLabels(s.Spec.Selector),
	}
}

func externalAddress(s *corev1.Service) string {
	switch s.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		return orElse(strings.Join(s.Spec.ExternalIPs, ","), "<none>")
	case corev1.ServiceTypeLoadBalancer:
		ingress := map[string]bool{}
		for _, in := range s.Status.LoadBalancer.Ingress {
			if a := orElse(in.IP, in.Hostname); a != "" {
				ingress[a] = true
			}
		}
		addresses := append(slices.Sorted(maps.Keys(ingress)), s.Spec.ExternalIPs...)
		return orElse(strings.Join(addresses, ","), "<pending>")
	case corev1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	}
	return "<unknown>"
}
