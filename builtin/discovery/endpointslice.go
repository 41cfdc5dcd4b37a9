package discovery

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Limits of a slice.
const (
	maxEndpoints = 1000
	maxAddresses = 100
	maxPorts     = 20000
	maxTopology  = 16
	maxHints     = 8
)

// Controllers whose slices get no address warnings.
const (
	sliceController     = "endpointslice-controller.k8s.io"
	mirroringController = "endpointslicemirroring-controller.k8s.io"
)

// EndpointSlices defines endpointslices.
func EndpointSlices() resource.Definition {
	doc := discoveryv1.EndpointSlice{}.SwaggerDoc()
	return resource.Definition{
		Group:      discoveryv1.GroupName,
		Resource:   "endpointslices",
		Kind:       "EndpointSlice",
		Namespaced: true,
		StorageKey: "endpointslices",
		Versions:   append([]resource.Version{resource.VersionOf[discoveryv1.EndpointSlice, discoveryv1.EndpointSliceList]("v1", defaultSlice)}, oldEndpointSlices()...),
		Strategy: resource.Rules[*discoveryv1.EndpointSlice]{
			NameOnUpdate:  true,
			PrepareCreate: func(ctx context.Context, s *discoveryv1.EndpointSlice) { dropTopology(ctx, s, nil) },
			PrepareUpdate: func(ctx context.Context, s, old *discoveryv1.EndpointSlice) {
				// Compared before fields are dropped.
				if s.AddressType != old.AddressType || !equality.Semantic.DeepEqual(s.Endpoints, old.Endpoints) ||
					!equality.Semantic.DeepEqual(s.Ports, old.Ports) || !equality.Semantic.DeepEqual(s.Labels, old.Labels) {
					s.Generation = old.Generation + 1
				}
				dropTopology(ctx, s, old)
			},
			Generation: func(_, _ *discoveryv1.EndpointSlice) bool { return false },
			Validate: func(ctx context.Context, s *discoveryv1.EndpointSlice) field.ErrorList {
				return validateSlice(ctx, s, nil)
			},
			ValidateUpdate: func(ctx context.Context, s, old *discoveryv1.EndpointSlice) field.ErrorList {
				return validateSlice(ctx, s, old)
			},
			Warnings: func(_ context.Context, s, old *discoveryv1.EndpointSlice) []string {
				return sliceWarnings(s, old == nil)
			},
		}.Strategy(),
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "AddressType", Type: "string", Description: doc["addressType"]},
			{Name: "Ports", Type: "string", Description: doc["ports"]},
			{Name: "Endpoints", Type: "string", Description: doc["endpoints"]},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(s *discoveryv1.EndpointSlice) []any {
			var ports, addresses []string
			for _, p := range s.Ports {
				switch {
				case p.Port != nil:
					ports = append(ports, strconv.Itoa(int(*p.Port)))
				case p.Name != nil:
					ports = append(ports, *p.Name)
				default:
					ports = append(ports, "*")
				}
			}
			for _, e := range s.Endpoints {
				addresses = append(addresses, e.Addresses...)
			}
			return []any{s.Name, string(s.AddressType), firstOf(ports), firstOf(addresses), resource.Since(s.CreationTimestamp.Time)}
		}),
	}
}

func defaultSlice(s *discoveryv1.EndpointSlice) {
	for i := range s.Ports {
		if p := &s.Ports[i]; p.Name == nil {
			p.Name = new("")
		}
		if p := &s.Ports[i]; p.Protocol == nil {
			p.Protocol = new(corev1.ProtocolTCP)
		}
	}
}

// firstOf returns a table cell with the first items of a list.
func firstOf(list []string) string {
	const shown = 3
	if len(list) > shown {
		return fmt.Sprintf("%s + %d more...", strings.Join(list[:shown], ","), len(list)-shown)
	}
	if text := strings.Join(list, ","); text != "" {
		return text
	}
	return "<unset>"
}

// dropTopology clears deprecatedTopology, which v1 has only for objects written as v1beta1. A
// hostname in it moves to nodeName.
func dropTopology(ctx context.Context, s, old *discoveryv1.EndpointSlice) {
	if request.From(ctx).Version == "v1beta1" || old != nil && equality.Semantic.DeepEqual(s.Endpoints, old.Endpoints) {
		return
	}
	known := map[string]bool{}
	if old != nil {
		for _, e := range old.Endpoints {
			known[e.DeprecatedTopology[corev1.LabelHostname]] = true
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if node := e.DeprecatedTopology[corev1.LabelHostname]; node != "" && e.NodeName == nil && known[node] && len(apivalidation.NameIsDNSSubdomain(node, false)) == 0 {
			e.NodeName = &node
		}
		e.DeprecatedTopology = nil
	}
}

func sliceWarnings(s *discoveryv1.EndpointSlice, created bool) []string {
	var warnings []string
	if created && s.AddressType == discoveryv1.AddressTypeFQDN {
		warnings = append(warnings, "spec.addressType: FQDN endpoints are deprecated")
	}
	if by := s.Labels[discoveryv1.LabelManagedBy]; by == sliceController || by == mirroringController || s.AddressType == discoveryv1.AddressTypeFQDN {
		return warnings
	}
	for i, e := range s.Endpoints {
		for j, address := range e.Addresses {
			warnings = append(warnings, validation.GetWarningsForIP(field.NewPath("endpoints").Index(i).Child("addresses").Index(j), address)...)
		}
	}
	return warnings
}

// validateSlice validates a slice; endpoints that are unchanged from the old one, nil on create,
// are not validated again.
func validateSlice(ctx context.Context, s, old *discoveryv1.EndpointSlice) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("addressType")
	known := []discoveryv1.AddressType{discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
	if s.AddressType == "" {
		errs = resource.DeclaredBeta(field.Required(path, ""))
	} else if !slices.Contains(known, s.AddressType) {
		errs = resource.DeclaredBeta(field.NotSupported(path, s.AddressType, known))
	}
	var immutable field.ErrorList // the hand-written form and the declared one
	if old != nil && s.AddressType != old.AddressType {
		immutable = resource.ImmutableValue(path, s.AddressType)
		errs = append(errs, immutable[1])
	}
	errs = append(errs, validatePorts(s.Ports, field.NewPath("ports"))...)
	bad := validateEndpoints(ctx, s.Endpoints, s.AddressType, field.NewPath("endpoints"))
	if len(bad) > 0 && (old == nil || !equality.Semantic.DeepEqual(s.Endpoints, old.Endpoints)) {
		errs = append(errs, bad...)
	}
	if immutable != nil {
		errs = append(errs, immutable[0])
	}
	return errs
}

func validatePorts(ports []discoveryv1.EndpointPort, path *field.Path) field.ErrorList {
	if len(ports) > maxPorts {
		return field.ErrorList{field.TooMany(path, len(ports), maxPorts)}
	}
	var errs field.ErrorList
	known := []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP}
	names := map[string]bool{}
	for i, p := range ports {
		at := path.Index(i)
		if *p.Name != "" {
			errs = append(errs, rules.Invalid(at.Child("name"), *p.Name, validation.IsDNS1123Label(*p.Name))...)
		}
		if names[*p.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
		}
		names[*p.Name] = true
		if p.Protocol == nil {
			errs = append(errs, field.Required(at.Child("protocol"), ""))
		} else if !slices.Contains(known, *p.Protocol) {
			errs = append(errs, field.NotSupported(at.Child("protocol"), *p.Protocol, known))
		}
		if a := p.AppProtocol; a != nil {
			errs = append(errs, rules.Invalid(at.Child("appProtocol"), *a, validation.IsQualifiedName(*a))...)
		}
	}
	return errs
}

func validateEndpoints(ctx context.Context, endpoints []discoveryv1.Endpoint, kind discoveryv1.AddressType, path *field.Path) field.ErrorList {
	if len(endpoints) > maxEndpoints {
		return field.ErrorList{field.TooMany(path, len(endpoints), maxEndpoints)}
	}
	var errs field.ErrorList
	for i := range endpoints {
		e, at := &endpoints[i], path.Index(i)
		addresses := at.Child("addresses")
		if n := len(e.Addresses); n == 0 {
			errs = append(errs, resource.BetaInstead(
				field.ErrorList{field.Required(addresses, "")}, field.ErrorList{field.Required(addresses, "must contain at least 1 address")})...)
		} else if n > maxAddresses {
			errs = append(errs, resource.DeclaredBeta(field.TooMany(addresses, n, maxAddresses))...)
		}
		for j, address := range e.Addresses {
			errs = append(errs, validateAddress(ctx, address, kind, addresses, j)...)
		}
		if n := e.NodeName; n != nil {
			errs = append(errs, rules.Invalid(at.Child("nodeName"), *n, apivalidation.NameIsDNSSubdomain(*n, false))...)
		}
		topology := at.Child("deprecatedTopology")
		if n := len(e.DeprecatedTopology); n > maxTopology {
			errs = append(errs, field.TooMany(topology, n, maxTopology))
		}
		errs = append(errs, metavalidation.ValidateLabels(e.DeprecatedTopology, topology)...)
		if h := e.Hostname; h != nil {
			errs = append(errs, rules.Invalid(at.Child("hostname"), *h, validation.IsDNS1123Label(*h))...)
		}
		if e.Hints != nil {
			errs = append(errs, validateHints(e.Hints, at.Child("hints"))...)
		}
	}
	return errs
}

// validateAddress validates one of the addresses at a path.
func validateAddress(ctx context.Context, address string, kind discoveryv1.AddressType, path *field.Path, i int) field.ErrorList {
	var errs field.ErrorList
	fits := true
	switch kind {
	case discoveryv1.AddressTypeIPv4:
		errs = validation.IsValidIPForLegacyField(path.Index(i), address, rules.StrictIPs(ctx), nil)
		fits = utilnet.IsIPv4String(address)
	case discoveryv1.AddressTypeIPv6:
		errs = validation.IsValidIP(path.Index(i), address)
		fits = utilnet.IsIPv6String(address)
	case discoveryv1.AddressTypeFQDN:
		return validation.IsFullyQualifiedDomainName(path.Index(i), address)
	default:
		return nil
	}
	if len(errs) > 0 {
		return errs
	}
	if !fits {
		errs = append(errs, field.Invalid(path, address, fmt.Sprintf("must be an %s address", kind)))
	}
	return append(errs, rules.ValidateEndpointIP(address, path.Index(i))...)
}

// validateHints validates the zones and nodes that should use an endpoint.
func validateHints(hints *discoveryv1.EndpointHints, path *field.Path) field.ErrorList {
	zones, nodes := make([]string, len(hints.ForZones)), make([]string, len(hints.ForNodes))
	for i, z := range hints.ForZones {
		zones[i] = z.Name
	}
	for i, n := range hints.ForNodes {
		nodes[i] = n.Name
	}
	var errs field.ErrorList
	for _, list := range []struct {
		path  *field.Path
		names []string
		check func(string) []string
	}{
		{path.Child("forZones"), zones, validation.IsValidLabelValue},
		{path.Child("forNodes"), nodes, func(name string) []string { return apivalidation.NameIsDNSSubdomain(name, false) }},
	} {
		if n := len(list.names); n > maxHints {
			return append(errs, field.TooMany(list.path, n, maxHints))
		}
		var seen rules.Seen[string]
		for i, name := range list.names {
			at := list.path.Index(i).Child("name")
			if seen.Again(name) {
				errs = append(errs, field.Duplicate(at, name))
			}
			errs = append(errs, rules.Invalid(at, name, list.check(name))...)
		}
	}
	return errs
}
