package core

//lint:file-ignore SA1019 the kind is deprecated and still served

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// shownEndpoints is how many endpoints a table cell lists before it only counts.
const shownEndpoints = 3

// Endpoints defines the deprecated kind Endpoints; EndpointSlices replace it.
func Endpoints() resource.Definition {
	version := resource.VersionOf[corev1.Endpoints, corev1.EndpointsList]("v1", func(ep *corev1.Endpoints) {
		for i := range ep.Subsets {
			for j := range ep.Subsets[i].Ports {
				rules.Default(&ep.Subsets[i].Ports[j].Protocol, corev1.ProtocolTCP)
			}
		}
	})
	version.Deprecation = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
	return resource.Definition{
		Resource:   "endpoints",
		Singular:   "endpoints",
		Kind:       "Endpoints",
		ShortNames: []string{"ep"},
		Namespaced: true,
		StorageKey: "services/endpoints",
		Versions:   []resource.Version{version},
		Strategy: resource.Rules[*corev1.Endpoints]{
			NameOnUpdate:   true,
			CreateOnUpdate: true,
			Validate: func(ctx context.Context, ep *corev1.Endpoints) field.ErrorList {
				return validateSubsets(ctx, ep.Subsets)
			},
			// Values that predate a validation rule may stay.
			ValidateUpdate: func(ctx context.Context, ep, old *corev1.Endpoints) field.ErrorList {
				errs := validateSubsets(ctx, ep.Subsets)
				if len(errs) > 0 && equality.Semantic.DeepEqual(ep.Subsets, old.Subsets) {
					return nil
				}
				return errs
			},
			Warnings: func(_ context.Context, ep, _ *corev1.Endpoints) []string { return endpointsWarnings(ep) },
		}.Strategy(),
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Endpoints", Type: "string", Description: corev1.Endpoints{}.SwaggerDoc()["subsets"]},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(ep *corev1.Endpoints) []any {
			return []any{ep.Name, endpointsCell(ep.Subsets), resource.Since(ep.CreationTimestamp.Time)}
		}),
	}
}

func validateSubsets(ctx context.Context, subsets []corev1.EndpointSubset) field.ErrorList {
	var e rules.Errors
	for i := range subsets {
		s, p := &subsets[i], field.NewPath("subsets").Index(i)
		if len(s.Addresses)+len(s.NotReadyAddresses) == 0 {
			e.Required(p, "must specify `addresses` or `notReadyAddresses`")
		}
		for j := range s.Addresses {
			checkEndpointAddress(ctx, &e, &s.Addresses[j], p.Child("addresses").Index(j))
		}
		for j := range s.NotReadyAddresses {
			checkEndpointAddress(ctx, &e, &s.NotReadyAddresses[j], p.Child("notReadyAddresses").Index(j))
		}
		for j := range s.Ports {
			checkEndpointPort(&e, &s.Ports[j], len(s.Ports) > 1, p.Child("ports").Index(j))
		}
	}
	return field.ErrorList(e)
}

func checkEndpointAddress(ctx context.Context, e *rules.Errors, a *corev1.EndpointAddress, p *field.Path) {
	e.Add(validation.IsValidIPForLegacyField(p.Child("ip"), a.IP, rules.StrictIPs(ctx), nil)...)
	if a.Hostname != "" {
		e.DNSLabel(p.Child("hostname"), a.Hostname)
	}
	if a.NodeName != nil {
		e.InvalidEach(p.Child("nodeName"), *a.NodeName, apivalidation.NameIsDNSSubdomain(*a.NodeName, false))
	}
	e.Add(rules.ValidateEndpointIP(a.IP, p.Child("ip"))...)
}

func checkEndpointPort(e *rules.Errors, port *corev1.EndpointPort, named bool, p *field.Path) {
	if named && port.Name == "" {
		e.Required(p.Child("name"), "")
	} else if port.Name != "" {
		e.DNSLabel(p.Child("name"), port.Name)
	}
	e.InvalidEach(p.Child("port"), port.Port, validation.IsValidPortNum(int(port.Port)))
	rules.OneOfOrRequired(e, p.Child("protocol"), port.Protocol, corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)
	if port.AppProtocol != nil {
		e.InvalidEach(p.Child("appProtocol"), *port.AppProtocol, validation.IsQualifiedName(*port.AppProtocol))
	}
}

// endpointsWarnings returns warnings for non-canonical IP addresses. Objects of the
// endpoints controller, which copies addresses from pods, get none.
func endpointsWarnings(ep *corev1.Endpoints) []string {
	if ep.Labels["endpoints.kubernetes.io/managed-by"] == "endpoint-controller" {
		return nil
	}
	var w []string
	list := func(addresses []corev1.EndpointAddress, p *field.Path) {
		for i, a := range addresses {
			w = append(w, validation.GetWarningsForIP(p.Index(i).Child("ip"), a.IP)...)
		}
	}
	for i := range ep.Subsets {
		p := field.NewPath("subsets").Index(i)
		list(ep.Subsets[i].Addresses, p.Child("addresses"))
		list(ep.Subsets[i].NotReadyAddresses, p.Child("notReadyAddresses"))
	}
	return w
}

func endpointsCell(subsets []corev1.EndpointSubset) string {
	if len(subsets) == 0 {
		return "<none>"
	}
	var all []string
	for _, s := range subsets {
		if len(s.Ports) == 0 {
			for _, a := range s.Addresses {
				all = append(all, a.IP)
			}
		}
		for _, port := range s.Ports {
			for _, a := range s.Addresses {
				all = append(all, net.JoinHostPort(a.IP, strconv.Itoa(int(port.Port))))
			}
		}
	}
	if len(all) <= shownEndpoints {
		return strings.Join(all, ",")
	}
	return fmt.Sprintf("%s + %d more...", strings.Join(all[:shownEndpoints], ","), len(all)-shownEndpoints)
}
