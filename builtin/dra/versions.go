package dra

import (
	"context"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Versions of the kinds that are stored as v1. v1beta2 has the same fields; in v1beta1 the
// fields of an exact request, and of a device, are one level higher.

func beta1(kind string) schema.GroupVersionKind {
	return resourcev1beta1.SchemeGroupVersion.WithKind(kind)
}

func beta2(kind string) schema.GroupVersionKind {
	return resourcev1beta2.SchemeGroupVersion.WithKind(kind)
}

func classVersions() []resource.Version {
	return []resource.Version{
		resource.VersionOf[resourcev1.DeviceClass, resourcev1.DeviceClassList]("v1", nil),
		resource.AlikeVersion[resourcev1beta2.DeviceClass, resourcev1beta2.DeviceClassList, resourcev1.DeviceClass](beta2("DeviceClass"), nil, nil, nil),
		resource.AlikeVersion[resourcev1beta1.DeviceClass, resourcev1beta1.DeviceClassList, resourcev1.DeviceClass](beta1("DeviceClass"), nil, nil, nil),
	}
}

func claimVersions() []resource.Version {
	defaults := func(spec func(*resourcev1.ResourceClaimSpec)) func(*claim) {
		return func(c *claim) {
			spec(&c.Spec)
			if c.Status.Allocation != nil {
				for _, r := range c.Status.Allocation.Devices.Results {
					defaultTolerations(r.Tolerations)
				}
			}
		}
	}
	return []resource.Version{
		resource.VersionOf[claim, resourcev1.ResourceClaimList]("v1", defaults(defaultClaim)),
		resource.AlikeVersion[resourcev1beta2.ResourceClaim, resourcev1beta2.ResourceClaimList](beta2("ResourceClaim"), defaults(defaultClaim), nil, nil),
		resource.AlikeVersion[resourcev1beta1.ResourceClaim, resourcev1beta1.ResourceClaimList](beta1("ResourceClaim"), defaults(defaultFlatClaim),
			func(c *resourcev1beta1.ResourceClaim, hub *claim) { nestRequests(&c.Spec, &hub.Spec) },
			func(hub *claim, c *resourcev1beta1.ResourceClaim) { flattenRequests(&hub.Spec, &c.Spec) }),
	}
}

func claimTemplateVersions() []resource.Version {
	defaults := func(t *claimTemplate) { defaultClaim(&t.Spec.Spec) }
	return []resource.Version{
		resource.VersionOf[claimTemplate, resourcev1.ResourceClaimTemplateList]("v1", defaults),
		resource.AlikeVersion[resourcev1beta2.ResourceClaimTemplate, resourcev1beta2.ResourceClaimTemplateList](beta2("ResourceClaimTemplate"), defaults, nil, nil),
		resource.AlikeVersion[resourcev1beta1.ResourceClaimTemplate, resourcev1beta1.ResourceClaimTemplateList](beta1("ResourceClaimTemplate"),
			func(t *claimTemplate) { defaultFlatClaim(&t.Spec.Spec) },
			func(t *resourcev1beta1.ResourceClaimTemplate, hub *claimTemplate) {
				nestRequests(&t.Spec.Spec, &hub.Spec.Spec)
			},
			func(hub *claimTemplate, t *resourcev1beta1.ResourceClaimTemplate) {
				flattenRequests(&hub.Spec.Spec, &t.Spec.Spec)
			}),
	}
}

func sliceVersions() []resource.Version {
	defaults := func(s *slice) {
		for i := range s.Spec.Devices {
			for j := range s.Spec.Devices[i].Taints {
				if t := &s.Spec.Devices[i].Taints[j]; t.TimeAdded == nil {
					t.TimeAdded = defaultTime()
				}
			}
		}
	}
	versions := []resource.Version{
		resource.VersionOf[slice, resourcev1.ResourceSliceList]("v1", defaults),
		resource.AlikeVersion[resourcev1beta2.ResourceSlice, resourcev1beta2.ResourceSliceList](beta2("ResourceSlice"), defaults, nil, nil),
		resource.AlikeVersion[resourcev1beta1.ResourceSlice, resourcev1beta1.ResourceSliceList](beta1("ResourceSlice"), defaults,
			func(s *resourcev1beta1.ResourceSlice, hub *slice) {
				// v1beta1 has no pointers: empty is unset.
				if s.Spec.NodeName == "" {
					hub.Spec.NodeName = nil
				}
				if !s.Spec.AllNodes {
					hub.Spec.AllNodes = nil
				}
				for i, d := range s.Spec.Devices {
					if d.Basic != nil {
						resource.CopyAlike(&hub.Spec.Devices[i], d.Basic)
					}
				}
			},
			func(hub *slice, s *resourcev1beta1.ResourceSlice) {
				for i := range hub.Spec.Devices {
					s.Spec.Devices[i].Basic = new(resourcev1beta1.BasicDevice)
					resource.CopyAlike(s.Spec.Devices[i].Basic, &hub.Spec.Devices[i])
				}
			}),
	}
	for i := range versions {
		kind := resourcev1.SchemeGroupVersion.WithKind("ResourceSlice")
		kind.Version = versions[i].Name
		versions[i].UnknownField = func(path string) string { return fmt.Sprintf("field label not supported for %s: %s", kind, path) }
	}
	return versions
}

// nestRequests moves the fields of v1beta1 requests into exactly of v1.
func nestRequests(spec *resourcev1beta1.ResourceClaimSpec, hub *resourcev1.ResourceClaimSpec) {
	for i := range spec.Devices.Requests {
		r := spec.Devices.Requests[i]
		said := r
		said.Name, said.FirstAvailable = "", nil
		if !reflect.ValueOf(said).IsZero() {
			hub.Devices.Requests[i].Exactly = new(resourcev1.ExactDeviceRequest)
			if len(r.Tolerations) == 0 {
				r.Tolerations = nil
			}
			resource.CopyAlike(hub.Devices.Requests[i].Exactly, &r)
		}
	}
}

// flattenRequests is the reverse of nestRequests.
func flattenRequests(hub *resourcev1.ResourceClaimSpec, spec *resourcev1beta1.ResourceClaimSpec) {
	for i := range hub.Devices.Requests {
		if exactly := hub.Devices.Requests[i].Exactly; exactly != nil {
			resource.CopyAlike(&spec.Devices.Requests[i], exactly)
		}
	}
}

// defaultFlatClaim is defaultClaim for v1beta1, in which a request without a class counts as
// one with firstAvailable.
func defaultFlatClaim(spec *resourcev1.ResourceClaimSpec) {
	type amount struct {
		mode  resourcev1.DeviceAllocationMode
		count int64
	}
	given := map[int]amount{}
	for i, r := range spec.Devices.Requests {
		if r.Exactly != nil && r.Exactly.DeviceClassName == "" {
			given[i] = amount{r.Exactly.AllocationMode, r.Exactly.Count}
		}
	}
	defaultClaim(spec)
	for i, a := range given {
		r := spec.Devices.Requests[i].Exactly
		r.AllocationMode, r.Count = a.mode, a.count
	}
}

// rewriteErrors rewrites the errors of declared rules in terms of the version of the request.
func rewriteErrors(s *resource.Strategy) {
	reword := func(ctx context.Context, errs field.ErrorList) field.ErrorList {
		version := request.From(ctx).Version
		for i, err := range errs {
			if !resource.IsDeclared(err) {
				continue
			}
			if version == "v1beta1" {
				flattenError(err)
			}
			// The older versions check the length before the format.
			if version != "v1" && err.Type == field.ErrorTypeTooLong && strings.HasSuffix(err.Field, ".opaque.driver") {
				for ; i > 0 && errs[i-1].Field == err.Field; i-- {
					errs[i-1], errs[i] = err, errs[i-1]
				}
			}
		}
		return errs
	}
	if f := s.Validate; f != nil {
		s.Validate = func(ctx context.Context, obj resource.Object) field.ErrorList { return reword(ctx, f(ctx, obj)) }
	}
	if f := s.ValidateUpdate; f != nil {
		s.ValidateUpdate = func(ctx context.Context, obj, old resource.Object) field.ErrorList {
			return reword(ctx, f(ctx, obj, old))
		}
	}
}

// flattenError rewrites an error in terms of v1beta1.
func flattenError(err *field.Error) {
	if r, ok := err.BadValue.(resourcev1.DeviceRequest); ok {
		spec := resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{r}}}
		var old resourcev1beta1.ResourceClaimSpec
		resource.CopyAlike(&old, &spec)
		flattenRequests(&spec, &old)
		err.BadValue = old.Devices.Requests[0]
	}
	err.Field = strings.Replace(err.Field, "].exactly.", "].", 1)
	err.Field = regexp.MustCompile(`^(spec\.devices\[\d+\]\.)`).ReplaceAllString(err.Field, "${1}basic.")
}
