// Package aggregator forwards requests to other API servers: an APIService object says
// which group and version is served by which service. Start at Server and backend. It
// never follows a redirect of a backend, and never sends it the credentials of a
// client.
//
// # Local and remote
//
// An APIService without a service is local: its group and version is served in this
// process, and the object exists for clients, with the priority that orders groups in
// discovery. The server creates one for every group and version that it serves
// (local.go); those of custom resources come and go with their definitions.
//
// An APIService with a service is remote. Requests for its group and version are
// proxied (proxy.go), with the user in X-Remote headers, which the backend trusts
// because of the client certificate of the connection. No answer of a backend can make
// this server send a request elsewhere, or take bytes of an upgraded connection for
// another request.
//
// # Isolation
//
// Each remote APIService has one goroutine (backend.go) that checks whether the backend
// answers, writes the Available condition, and fetches discovery and OpenAPI, each
// limited in time and size. Requests only read what was fetched. So a backend that is
// down, slow or malicious affects only its own group: its versions are shown as stale,
// and nobody waits for it.
package aggregator

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationv1beta1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1beta1"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// The API group and the resource of APIServices.
const (
	Group    = "apiregistration.k8s.io"
	Resource = "apiservices"
)

// The largest priorities.
const (
	maxGroupPriority   = 20000
	maxVersionPriority = 1000
)

// Definitions returns the API group of APIServices.
func Definitions() resource.Group {
	main := resource.Rules[*apiregistration.APIService]{
		Repeats:        true,
		JudgesMetadata: true,
		PrepareCreate:  prepareCreate,
		PrepareUpdate:  func(_ context.Context, s, old *apiregistration.APIService) { s.Status = *old.Status.DeepCopy() },
		Validate:       func(_ context.Context, s *apiregistration.APIService) field.ErrorList { return validate(s) },
		RequireVersion: true,
	}.Strategy()
	status := resource.Rules[*apiregistration.APIService]{
		PrepareUpdate: func(_ context.Context, s, old *apiregistration.APIService) {
			s.Spec = *old.Spec.DeepCopy()
			s.Labels, s.Annotations, s.Finalizers, s.OwnerReferences = old.Labels, old.Annotations, old.Finalizers, old.OwnerReferences
		},
		Repeats:        true,
		ValidateUpdate: func(_ context.Context, s, _ *apiregistration.APIService) field.ErrorList { return validateStatus(s) },
		RequireVersion: true,
		Resets:         []string{"spec", "metadata"},
	}.Strategy()
	meta := metav1.ObjectMeta{}.SwaggerDoc()
	return resource.Group{Name: Group, Resources: []resource.Definition{{
		Group: Group, Resource: Resource, Kind: "APIService", Categories: []string{"api-extensions"},
		Versions: []resource.Version{{
			Name:    "v1",
			New:     func() resource.Object { return &apiregistration.APIService{} },
			NewList: func() runtime.Object { return &apiregistration.APIServiceList{} },
			Default: resource.DefaultFunc(setDefaults),
		}},
		Old:          []resource.Version{resource.OldVersion[apiregistrationv1beta1.APIService](apiregistrationv1beta1.SchemeGroupVersion, setDefaults, nil)},
		StoreJSON:    true,
		Strategy:     main,
		Subresources: []resource.Subresource{{Name: "status", NoTable: true, Part: &status}},
		Columns: []resource.Column{
			{Name: "Name", Type: "string", Format: "name", Description: meta["name"]},
			{Name: "Service", Type: "string", Description: "The reference to the service that hosts this API endpoint."},
			{Name: "Available", Type: "string", Description: "Whether this service is available."},
			{Name: "Age", Type: "string", Description: meta["creationTimestamp"]},
		},
		Cells: resource.CellsFunc(cells),
	}}}
}

func setDefaults(s *apiregistration.APIService) {
	if s.Spec.Service != nil && s.Spec.Service.Port == nil {
		s.Spec.Service.Port = new(int32(443))
	}
}

func prepareCreate(ctx context.Context, s *apiregistration.APIService) {
	s.Status = apiregistration.APIServiceStatus{}
	if s.Spec.Service == nil {
		setCondition(&s.Status, localCondition(), request.From(ctx).Received)
	}
}

func validate(s *apiregistration.APIService) field.ErrorList {
	spec := field.NewPath("spec")
	wanted := s.Spec.Version + "." + s.Spec.Group
	errs := apivalidation.ValidateObjectMeta(&s.ObjectMeta, false, func(name string, _ bool) []string {
		wrong := content.IsPathSegmentName(name)
		if len(wrong) == 0 && name != wanted {
			wrong = []string{fmt.Sprintf("must be `spec.version+\".\"+spec.group`: %q", wanted)}
		}
		return wrong
	}, field.NewPath("metadata"))
	if s.Spec.Group == "" {
		if s.Spec.Version != "v1" {
			errs = append(errs, field.Required(spec.Child("group"), "only v1 may have an empty group and it better be legacy kube"))
		}
	} else {
		for _, problem := range validation.IsDNS1123Subdomain(s.Spec.Group) {
			errs = append(errs, field.Invalid(spec.Child("group"), s.Spec.Group, problem))
		}
	}
	for _, problem := range validation.IsDNS1035Label(s.Spec.Version) {
		errs = append(errs, field.Invalid(spec.Child("version"), s.Spec.Version, problem))
	}
	if p := s.Spec.GroupPriorityMinimum; p <= 0 || p > maxGroupPriority {
		errs = append(errs, field.Invalid(spec.Child("groupPriorityMinimum"), p, fmt.Sprintf("must be positive and less than %d", maxGroupPriority)))
	}
	if p := s.Spec.VersionPriority; p <= 0 || p > maxVersionPriority {
		errs = append(errs, field.Invalid(spec.Child("versionPriority"), p, fmt.Sprintf("must be positive and less than %d", maxVersionPriority)))
	}
	return append(errs, validateService(&s.Spec, spec)...)
}

func validateService(s *apiregistration.APIServiceSpec, spec *field.Path) (errs field.ErrorList) {
	insecure := spec.Child("insecureSkipTLSVerify")
	if s.Service == nil {
		if len(s.CABundle) > 0 {
			errs = append(errs, field.Invalid(spec.Child("caBundle"), fmt.Sprintf("%d bytes", len(s.CABundle)), "local APIServices may not have a caBundle"))
		}
		if s.InsecureSkipTLSVerify {
			errs = append(errs, field.Invalid(insecure, true, "local APIServices may not have insecureSkipTLSVerify"))
		}
		return errs
	}
	path := spec.Child("service")
	if s.Service.Namespace == "" {
		errs = append(errs, field.Required(path.Child("namespace"), ""))
	}
	if s.Service.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	}
	if port := servicePort(s.Service); len(validation.IsValidPortNum(int(port))) > 0 {
		errs = append(errs, field.Invalid(path.Child("port"), port, "port is not valid: "+strings.Join(validation.IsValidPortNum(int(port)), ", ")))
	}
	if s.InsecureSkipTLSVerify && len(s.CABundle) > 0 {
		errs = append(errs, field.Invalid(insecure, true, "may not be true if caBundle is present"))
	}
	return errs
}

func validateStatus(s *apiregistration.APIService) (errs field.ErrorList) {
	known := []apiregistration.ConditionStatus{apiregistration.ConditionTrue, apiregistration.ConditionFalse, apiregistration.ConditionUnknown}
	for i, c := range s.Status.Conditions {
		if c.Status != known[0] && c.Status != known[1] && c.Status != known[2] {
			errs = append(errs, field.NotSupported(field.NewPath("status", "conditions").Index(i).Child("status"), c.Status, known))
		}
	}
	return errs
}

func cells(s *apiregistration.APIService) []any {
	service, available := "Local", string(apiregistration.ConditionUnknown)
	if s.Spec.Service != nil {
		service = s.Spec.Service.Namespace + "/" + s.Spec.Service.Name
	}
	if c := condition(&s.Status); c != nil {
		available = string(c.Status)
		if c.Status != apiregistration.ConditionTrue && c.Reason != "" {
			available += " (" + c.Reason + ")"
		}
	}
	return []any{s.Name, service, available, resource.Since(s.CreationTimestamp.Time)}
}

// servicePort returns the port of a service, the usual one if it does not say.
func servicePort(s *apiregistration.ServiceReference) int32 {
	if s.Port == nil {
		return 443
	}
	return *s.Port
}

// condition returns the Available condition, or nil.
func condition(status *apiregistration.APIServiceStatus) *apiregistration.APIServiceCondition {
	for i := range status.Conditions {
		if status.Conditions[i].Type == apiregistration.Available {
			return &status.Conditions[i]
		}
	}
	return nil
}

// setCondition sets the Available condition. Its transition time is when the status
// last changed.
func setCondition(status *apiregistration.APIServiceStatus, c apiregistration.APIServiceCondition, now time.Time) {
	c.Type, c.LastTransitionTime = apiregistration.Available, metav1.NewTime(now)
	old := condition(status)
	switch {
	case old == nil:
		status.Conditions = append(status.Conditions, c)
		return
	case old.Status == c.Status:
		c.LastTransitionTime = old.LastTransitionTime
	}
	*old = c
}

func localCondition() apiregistration.APIServiceCondition {
	return apiregistration.APIServiceCondition{
		Status: apiregistration.ConditionTrue, Reason: "Local", Message: "Local APIServices are always available",
	}
}

// isAvailable reports whether the Available condition is true.
func isAvailable(s *apiregistration.APIService) bool {
	c := condition(&s.Status)
	return c != nil && c.Status == apiregistration.ConditionTrue
}

// compareServices orders APIServices as discovery shows their groups: by priority, then
// by name.
func compareServices(a, b *apiregistration.APIService) int {
	if c := cmp.Compare(b.Spec.GroupPriorityMinimum, a.Spec.GroupPriorityMinimum); c != 0 {
		return c
	}
	return cmp.Compare(a.Name, b.Name)
}
