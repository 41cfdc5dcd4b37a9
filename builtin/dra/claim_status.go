package dra

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// deviceID identifies a device, or a share of one.
type deviceID struct{ Driver, Pool, Device, ShareID string }

func statusID(d *resourcev1.AllocatedDeviceStatus) deviceID {
	id := deviceID{d.Driver, d.Pool, d.Device, ""}
	if d.ShareID != nil {
		id.ShareID = *d.ShareID
	}
	return id
}

func allocatedDevices(a *resourcev1.AllocationResult) map[deviceID]bool {
	devices := map[deviceID]bool{}
	if a == nil {
		return devices
	}
	for _, r := range a.Devices.Results {
		id := deviceID{r.Driver, r.Pool, r.Device, ""}
		if r.ShareID != nil {
			id.ShareID = string(*r.ShareID)
		}
		devices[id] = true
	}
	return devices
}

// mayChangeStatus asks the authorizer whether the user may make the changes of a status.
func mayChangeStatus(ctx context.Context, cfg Config, c, old *claim) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("status")
	admin := func(c *claim) int {
		if c.Status.Allocation == nil {
			return -1
		}
		return slices.IndexFunc(c.Status.Allocation.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
			return r.AdminAccess != nil && *r.AdminAccess
		})
	}
	if i := admin(c); i >= 0 && admin(old) < 0 {
		errs = append(errs, administers(ctx, cfg, c.Namespace, path.Child("allocation", "devices", "results").Index(i).Child("adminAccess"))...)
	}
	req := request.From(ctx)
	if !equality.Semantic.DeepEqual(c.Status.Allocation, old.Status.Allocation) || !equality.Semantic.DeepEqual(c.Status.ReservedFor, old.Status.ReservedFor) {
		if err := cfg.MayBind(ctx); err != nil {
			errs = append(errs, field.Forbidden(path.Child("allocation"),
				fmt.Sprintf(`changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", verb="%s" permission: %s`, req.Verb, err)))
		}
	}
	if c.Status.Allocation == nil {
		return errs
	}
	verbs := []string{resourcev1.VerbPrefixArbitraryNode + req.Verb}
	if runsOn(&req.User, nodeOf(c.Status.Allocation)) {
		verbs = slices.Insert(verbs, 0, resourcev1.VerbPrefixAssociatedNode+req.Verb)
	}
	for _, driver := range reporters(&c.Status, &old.Status) {
		if err := cfg.MayReport(ctx, driver, verbs); err != nil {
			errs = append(errs, field.Forbidden(path.Child("devices"),
				fmt.Sprintf(`changing status.devices requires resource="resourceclaims/driver", verb="%s" permission: %s`, verbs, err)))
		}
	}
	return errs
}

// reporters returns the drivers whose device statuses change, sorted.
func reporters(s, old *resourcev1.ResourceClaimStatus) []string {
	before := map[deviceID]resourcev1.AllocatedDeviceStatus{}
	for _, d := range old.Devices {
		before[statusID(&d)] = d
	}
	var drivers []string
	for _, d := range s.Devices {
		was, ok := before[statusID(&d)]
		delete(before, statusID(&d))
		if !ok || !equality.Semantic.DeepEqual(was, d) {
			drivers = append(drivers, d.Driver)
		}
	}
	for id := range before {
		drivers = append(drivers, id.Driver)
	}
	slices.Sort(drivers)
	return slices.Compact(drivers)
}

// nodeOf returns the node that an allocation is bound to, "" if it is not bound to exactly
// one.
func nodeOf(a *resourcev1.AllocationResult) string {
	if a.NodeSelector == nil || len(a.NodeSelector.NodeSelectorTerms) != 1 {
		return ""
	}
	term := a.NodeSelector.NodeSelectorTerms[0]
	if len(term.MatchExpressions) > 0 || len(term.MatchFields) != 1 {
		return ""
	}
	if f := term.MatchFields[0]; f.Key == "metadata.name" && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
		return f.Values[0]
	}
	return ""
}

// runsOn reports whether a user is a service account of a pod on the node.
func runsOn(u *request.User, node string) bool {
	nodes := u.Extra["authentication.kubernetes.io/node-name"]
	return node != "" && strings.HasPrefix(u.Name, "system:serviceaccount:") && len(nodes) == 1 && nodes[0] == node &&
		len(apivalidation.NameIsDNSSubdomain(node, false)) == 0
}

func validateClaimStatus(c, old *claim) field.ErrorList {
	s, path := &c.Status, field.NewPath("status")
	reserved, devices, allocation := path.Child("reservedFor"), path.Child("devices"), path.Child("allocation")
	const limit = resourcev1.ResourceClaimReservedForMaxSize
	errs := eachUnique(s.ReservedFor, limit, reserved, func(r *resourcev1.ResourceClaimConsumerReference) types.UID { return r.UID }, validateConsumer)
	allocated := allocatedDevices(s.Allocation)
	errs = append(errs, eachUnique(s.Devices, -1, devices, statusID, func(d *resourcev1.AllocatedDeviceStatus, path *field.Path) field.ErrorList {
		return validateDeviceStatus(d, allocated, path)
	})...)
	switch {
	case len(s.ReservedFor) == 0:
	case s.Allocation == nil:
		errs = append(errs, field.Forbidden(reserved, "may not be specified when `allocated` is not set"))
	case c.DeletionTimestamp != nil && slices.ContainsFunc(s.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool {
		return !slices.Contains(old.Status.ReservedFor, r)
	}):
		errs = append(errs, field.Forbidden(reserved, "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"))
	}
	switch {
	case s.Allocation == nil:
	case old.Status.Allocation == nil:
		errs = append(errs, validateAllocation(s.Allocation, namesOf(&c.Spec.Devices), allocation)...)
	case !equality.Semantic.DeepEqual(s.Allocation, old.Status.Allocation):
		errs = append(errs, resource.BetaInstead(field.ErrorList{field.Invalid(allocation, nil, "field cannot be modified once set")},
			field.ErrorList{field.Invalid(allocation, rules.GoForm(s.Allocation), apivalidation.FieldImmutableErrorMsg)})...)
	}
	return errs
}

func validateConsumer(r *resourcev1.ResourceClaimConsumerReference, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, f := range [][2]string{{"resource", r.Resource}, {"name", r.Name}, {"uid", string(r.UID)}} {
		if f[1] == "" {
			errs = append(errs, field.Required(path.Child(f[0]), ""))
		}
	}
	return errs
}

// validateAllocation validates a new allocation against the requests of its claim.
func validateAllocation(a *resourcev1.AllocationResult, names requestNames, path *field.Path) field.ErrorList {
	devices := path.Child("devices")
	errs := each(a.Devices.Results, resourcev1.AllocationResultsMaxSize, devices.Child("results"), func(r *resourcev1.DeviceRequestAllocationResult, path *field.Path) field.ErrorList {
		errs := names.validateRef(r.Request, path.Child("request"))
		errs = append(errs, validateDriverFormat(r.Driver, path.Child("driver"))...)
		errs = append(errs, requiredBetaFormat(validate.ResourcePoolName, validatePool, r.Pool, path.Child("pool"))...)
		errs = append(errs, validateLabelName(r.Device, path.Child("device"))...)
		errs = append(errs, validateBindingConditions(r.BindingConditions, r.BindingFailureConditions, path)...)
		errs = append(errs, each(r.Tolerations, -1, path.Child("tolerations"), validateToleration)...)
		if r.ShareID != nil {
			errs = append(errs, betaFormat(validate.UUID, validateUID, *r.ShareID, path.Child("shareID"))...)
		}
		return append(errs, validateSkipped(r.SkipNodeOperations, nil, path.Child("skipNodeOperations"))...)
	})
	errs = append(errs, each(a.Devices.Config, 2*resourcev1.DeviceConfigMaxSize, devices.Child("config"), func(c *resourcev1.DeviceAllocationConfiguration, path *field.Path) field.ErrorList {
		errs := oneOf(c.Source, path.Child("source"), resourcev1.AllocationConfigSourceClaim, resourcev1.AllocationConfigSourceClass)
		errs = append(errs, names.validateRefs(c.Requests, path.Child("requests"))...)
		return append(errs, validateConfiguration(&c.DeviceConfiguration, false, path)...)
	})...)
	if a.NodeSelector != nil {
		errs = append(errs, podspec.ValidateNodeSelector(a.NodeSelector, path.Child("nodeSelector"), false)...)
	}
	return errs
}

func validateDeviceStatus(d *resourcev1.AllocatedDeviceStatus, allocated map[deviceID]bool, path *field.Path) field.ErrorList {
	errs := validateDriver(d.Driver, path.Child("driver"))
	errs = append(errs, validatePool(d.Pool, path.Child("pool"))...)
	errs = append(errs, validateLabelName(d.Device, path.Child("device"))...)
	if d.ShareID != nil {
		errs = append(errs, betaFormat(validate.UUID, validateUID, *d.ShareID, path.Child("shareID"))...)
	}
	if id := statusID(d); !allocated[id] {
		errs = append(errs, field.Invalid(path, id, "must be an allocated device in the claim"))
	}
	if n := len(d.Conditions); n > resourcev1.AllocatedDeviceStatusMaxConditions {
		errs = append(errs, field.TooMany(path.Child("conditions"), n, resourcev1.AllocatedDeviceStatusMaxConditions))
	}
	errs = append(errs, metavalidation.ValidateConditions(d.Conditions, path.Child("conditions"))...)
	if d.Data != nil && len(d.Data.Raw) > 0 {
		errs = append(errs, validateRaw(*d.Data, resourcev1.AllocatedDeviceStatusDataMaxLength, path.Child("data"))...)
	}
	n, path := d.NetworkData, path.Child("networkData")
	if n == nil {
		return errs
	}
	atMost := func(name, value string, limit int) {
		errs = append(errs, validate.MaxBytes(context.Background(), operation.Operation{}, path.Child(name), &value, nil, limit)...)
	}
	atMost("interfaceName", n.InterfaceName, resourcev1.NetworkDeviceDataInterfaceNameMaxLength)
	atMost("hardwareAddress", n.HardwareAddress, resourcev1.NetworkDeviceDataHardwareAddressMaxLength)
	return append(errs, eachUnique(n.IPs, resourcev1.NetworkDeviceDataMaxIPs, path.Child("ips"), itself, func(ip *string, path *field.Path) field.ErrorList {
		return validation.IsValidInterfaceAddress(path, *ip)
	})...)
}
