package networking

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// classAnnotation is the deprecated annotation for spec.ingressClassName.
const classAnnotation = "kubernetes.io/ingress.class"

const notAnAddress = "must be a DNS name, not an IP address"

// Ingresses defines ingresses.
func Ingresses() resource.Definition {
	return resource.Definition{
		Group:      networkingv1.GroupName,
		Resource:   "ingresses",
		Singular:   "ingress",
		Kind:       "Ingress",
		ShortNames: []string{"ing"},
		Namespaced: true,
		StorageKey: "ingress",
		Versions:   append([]resource.Version{resource.VersionOf[networkingv1.Ingress, networkingv1.IngressList]("v1", nil)}, oldIngresses()...),
		Strategy: resource.Rules[*networkingv1.Ingress]{
			NameOnUpdate:  true,
			PrepareCreate: func(_ context.Context, in *networkingv1.Ingress) { in.Status = networkingv1.IngressStatus{} },
			PrepareUpdate: func(_ context.Context, in, old *networkingv1.Ingress) { in.Status = old.Status },
			Generation: func(in, old *networkingv1.Ingress) bool {
				return !equality.Semantic.DeepEqual(in.Spec, old.Spec)
			},
			Validate: func(ctx context.Context, in *networkingv1.Ingress) field.ErrorList {
				errs := validateIngress(&in.Spec, ingressAllowances{serviceNames: relaxedNames(ctx)})
				if class, ok := in.Annotations[classAnnotation]; ok && in.Spec.IngressClassName != nil && class != *in.Spec.IngressClassName {
					errs = append(errs, field.Invalid(field.NewPath("annotations", classAnnotation), class,
						"must match `ingressClassName` when both are specified"))
				}
				return errs
			},
			ValidateUpdate: func(ctx context.Context, in, old *networkingv1.Ingress) field.ErrorList {
				allow := allowedBy(&old.Spec)
				allow.serviceNames = allow.serviceNames || relaxedNames(ctx)
				return validateIngress(&in.Spec, allow)
			},
			Warnings: func(_ context.Context, in, old *networkingv1.Ingress) []string {
				if _, ok := in.Annotations[classAnnotation]; old == nil && ok && in.Spec.IngressClassName == nil {
					return []string{fmt.Sprintf("annotation %q is deprecated, please use 'spec.ingressClassName' instead", classAnnotation)}
				}
				return nil
			},
		}.Strategy(),
		Subresources: []resource.Subresource{{
			Name: "status",
			Part: new(resource.Rules[*networkingv1.Ingress]{
				PrepareUpdate: func(_ context.Context, in, old *networkingv1.Ingress) { in.Spec = old.Spec },
				ValidateUpdate: func(ctx context.Context, in, old *networkingv1.Ingress) field.ErrorList {
					return validateEntries(ctx, in, old)
				},
				Warnings: func(_ context.Context, in, _ *networkingv1.Ingress) []string {
					var warnings []string
					for i, e := range in.Status.LoadBalancer.Ingress {
						if e.IP != "" {
							warnings = append(warnings, validation.GetWarningsForIP(field.NewPath("status", "loadBalancer", "ingress").Index(i), e.IP)...)
						}
					}
					return warnings
				},
			}.Strategy()),
		}},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Class", Type: "string", Description: "The name of the IngressClass resource that should be used for additional configuration"},
			{Name: "Hosts", Type: "string", Description: "Hosts that incoming requests are matched against before the ingress rule"},
			{Name: "Address", Type: "string", Description: "Address is a list containing ingress points for the load-balancer"},
			{Name: "Ports", Type: "string", Description: "Ports of TLS configurations that open"},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(ingressCells),
	}
}

func ingressCells(in *networkingv1.Ingress) []any {
	class, ports := "<none>", "80"
	if c := in.Spec.IngressClassName; c != nil {
		class = *c
	}
	if len(in.Spec.TLS) > 0 {
		ports = "80, 443"
	}
	var addresses []string
	for _, e := range in.Status.LoadBalancer.Ingress {
		if e.IP != "" {
			addresses = append(addresses, e.IP)
		} else if e.Hostname != "" {
			addresses = append(addresses, e.Hostname)
		}
	}
	slices.Sort(addresses)
	return []any{in.Name, class, hostsCell(in.Spec.Rules), strings.Join(slices.Compact(addresses), ","), ports, resource.Since(in.CreationTimestamp.Time)}
}

// hostsCell returns the table cell Hosts. Rules without a host count as more.
func hostsCell(rules []networkingv1.IngressRule) string {
	const shown = 3
	var hosts []string
	more := false
	for _, r := range rules {
		if len(hosts) == shown {
			more = true
		} else if r.Host != "" {
			hosts = append(hosts, r.Host)
		}
	}
	switch text := strings.Join(hosts, ","); {
	case len(hosts) == 0:
		return "*"
	case more:
		return fmt.Sprintf("%s + %d more...", text, len(rules)-shown)
	default:
		return text
	}
}

// ingressAllowances are errors that are tolerated because the old ingress has them.
type ingressAllowances struct {
	secretNames, wildcardRules bool
	serviceNames               bool // services whose name begins with a digit
}

// relaxedNames reports whether the name of a service may begin with a digit.
func relaxedNames(ctx context.Context) bool {
	return features.From(ctx).Enabled("RelaxedServiceNameValidation")
}

// usesRelaxedName reports whether an ingress names a service that begins with a digit.
func usesRelaxedName(spec *networkingv1.IngressSpec) bool {
	relaxed := func(b *networkingv1.IngressBackend) bool {
		return b != nil && b.Service != nil && len(apivalidation.NameIsDNSLabel(b.Service.Name, false)) == 0 &&
			len(apivalidation.NameIsDNS1035Label(b.Service.Name, false)) > 0
	}
	return relaxed(spec.DefaultBackend) || slices.ContainsFunc(spec.Rules, func(r networkingv1.IngressRule) bool {
		return r.HTTP != nil && slices.ContainsFunc(r.HTTP.Paths, func(p networkingv1.HTTPIngressPath) bool { return relaxed(&p.Backend) })
	})
}

func allowedBy(old *networkingv1.IngressSpec) ingressAllowances {
	relaxed := usesRelaxedName(old)
	return ingressAllowances{
		serviceNames: relaxed,
		secretNames:  slices.ContainsFunc(old.TLS, func(t networkingv1.IngressTLS) bool { return len(secretNameProblems(t.SecretName)) > 0 }),
		wildcardRules: slices.ContainsFunc(old.Rules, func(r networkingv1.IngressRule) bool {
			return strings.Contains(r.Host, "*") && len(validateHTTP(r.HTTP, nil, relaxed)) > 0
		}),
	}
}

func secretNameProblems(name string) []string {
	if name == "" {
		return nil
	}
	return apivalidation.NameIsDNSSubdomain(name, false)
}

func validateIngress(spec *networkingv1.IngressSpec, allow ingressAllowances) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	if len(spec.Rules) == 0 && spec.DefaultBackend == nil {
		errs = append(errs, field.Invalid(path, spec.Rules, "either `defaultBackend` or `rules` must be specified"))
	}
	if spec.DefaultBackend != nil {
		errs = append(errs, validateBackend(spec.DefaultBackend, path.Child("defaultBackend"), allow.serviceNames)...)
	}
	for i := range spec.Rules {
		r, at := &spec.Rules[i], path.Child("rules").Index(i)
		if r.Host != "" {
			if utilnet.ParseIPSloppy(r.Host) != nil {
				errs = append(errs, field.Invalid(at.Child("host"), r.Host, notAnAddress))
			}
			errs = append(errs, rules.Invalid(at.Child("host"), r.Host, hostProblems(r.Host))...)
		}
		if !strings.Contains(r.Host, "*") || !allow.wildcardRules {
			errs = append(errs, validateHTTP(r.HTTP, at.Child("http"), allow.serviceNames)...)
		}
	}
	for i, t := range spec.TLS {
		at := path.Child("tls").Index(i)
		for j, host := range t.Hosts {
			errs = append(errs, rules.Invalid(at.Child("hosts").Index(j), host, hostProblems(host))...)
		}
		if !allow.secretNames {
			errs = append(errs, rules.Invalid(at.Child("secretName"), t.SecretName, secretNameProblems(t.SecretName))...)
		}
	}
	if c := spec.IngressClassName; c != nil {
		errs = append(errs, rules.Invalid(path.Child("ingressClassName"), *c, apivalidation.NameIsDNSSubdomain(*c, false))...)
	}
	return errs
}

func hostProblems(host string) []string {
	if strings.Contains(host, "*") {
		return validation.IsWildcardDNS1123Subdomain(host)
	}
	return validation.IsDNS1123Subdomain(host)
}

func validateHTTP(http *networkingv1.HTTPIngressRuleValue, path *field.Path, relaxed bool) field.ErrorList {
	if http == nil {
		return nil
	}
	var errs field.ErrorList
	if len(http.Paths) == 0 {
		errs = append(errs, field.Required(path.Child("paths"), ""))
	}
	for i := range http.Paths {
		errs = append(errs, validatePath(&http.Paths[i], path.Child("paths").Index(i), relaxed)...)
	}
	return errs
}

func validatePath(p *networkingv1.HTTPIngressPath, path *field.Path, relaxed bool) field.ErrorList {
	if p.PathType == nil {
		return field.ErrorList{field.Required(path.Child("pathType"), "pathType must be specified")}
	}
	var errs field.ErrorList
	bad := func(detail string) { errs = append(errs, field.Invalid(path.Child("path"), p.Path, detail)) }
	switch *p.PathType {
	case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
		if !strings.HasPrefix(p.Path, "/") {
			bad("must be an absolute path")
		}
		for _, part := range []string{"//", "/./", "/../", "%2f", "%2F"} {
			if strings.Contains(p.Path, part) {
				bad(fmt.Sprintf("must not contain '%s'", part))
			}
		}
		for _, end := range []string{"/..", "/."} {
			if strings.HasSuffix(p.Path, end) {
				bad(fmt.Sprintf("cannot end with '%s'", end))
			}
		}
	case networkingv1.PathTypeImplementationSpecific:
		if p.Path != "" && !strings.HasPrefix(p.Path, "/") {
			bad("must be an absolute path")
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("pathType"), *p.PathType,
			[]networkingv1.PathType{networkingv1.PathTypeExact, networkingv1.PathTypeImplementationSpecific, networkingv1.PathTypePrefix}))
	}
	return append(errs, validateBackend(&p.Backend, path.Child("backend"), relaxed)...)
}

func validateBackend(b *networkingv1.IngressBackend, path *field.Path, relaxed bool) field.ErrorList {
	switch {
	case b.Resource != nil && b.Service != nil:
		return field.ErrorList{field.Invalid(path, "", "cannot set both resource and service backends")}
	case b.Resource != nil:
		return validateLocalReference(b.Resource, path.Child("resource"))
	case b.Service == nil:
		return field.ErrorList{field.Invalid(path, "", "resource or service backend is required")}
	}
	var errs field.ErrorList
	name, port := path.Child("service", "name"), path.Child("service", "port")
	if s := b.Service; s.Name == "" {
		errs = append(errs, field.Required(name, ""))
	} else {
		valid := apivalidation.NameIsDNS1035Label
		if relaxed {
			valid = apivalidation.NameIsDNSLabel
		}
		errs = append(errs, rules.Invalid(name, s.Name, valid(s.Name, false))...)
	}
	switch p := b.Service.Port; {
	case p.Name != "" && p.Number != 0:
		return append(errs, field.Invalid(path, "", "cannot set both port name & port number"))
	case p.Name != "":
		return append(errs, rules.Invalid(port.Child("name"), p.Name, validation.IsValidPortName(p.Name))...)
	case p.Number != 0:
		return append(errs, rules.Invalid(port.Child("number"), p.Number, validation.IsValidPortNum(int(p.Number)))...)
	}
	return append(errs, field.Required(path, "port name or number is required"))
}

func validateLocalReference(ref *corev1.TypedLocalObjectReference, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if g := ref.APIGroup; g != nil {
		errs = append(errs, rules.Invalid(path.Child("apiGroup"), *g, validation.IsDNS1123Subdomain(*g))...)
	}
	errs = append(errs, validateSegment(ref.Kind, path.Child("kind"))...)
	return append(errs, validateSegment(ref.Name, path.Child("name"))...)
}

// validateSegment checks that a value is a valid path segment.
func validateSegment(value string, path *field.Path) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return rules.Invalid(path, value, content.IsPathSegmentName(value))
}

// declaredSegment is validateSegment with a declared rule that a value is required.
func declaredSegment(value string, path *field.Path) field.ErrorList {
	errs := validateSegment(value, path)
	if value == "" {
		return resource.DeclaredBeta(errs...)
	}
	return errs
}

// validateEntries validates status.loadBalancer.
func validateEntries(ctx context.Context, in, old *networkingv1.Ingress) field.ErrorList {
	var errs field.ErrorList
	var had []string
	for _, e := range old.Status.LoadBalancer.Ingress {
		had = append(had, e.IP)
	}
	for i, e := range in.Status.LoadBalancer.Ingress {
		at := field.NewPath("status", "loadBalancer", "ingress").Index(i)
		if e.IP != "" {
			errs = append(errs, validation.IsValidIPForLegacyField(at.Child("ip"), e.IP, rules.StrictIPs(ctx), had)...)
		}
		if e.Hostname != "" {
			errs = append(errs, rules.Invalid(at.Child("hostname"), e.Hostname, validation.IsDNS1123Subdomain(e.Hostname))...)
			if utilnet.ParseIPSloppy(e.Hostname) != nil {
				errs = append(errs, field.Invalid(at.Child("hostname"), e.Hostname, notAnAddress))
			}
		}
	}
	return errs
}
