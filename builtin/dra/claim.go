package dra

import (
	"context"
	"fmt"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

type claim = resourcev1.ResourceClaim
type claimTemplate = resourcev1.ResourceClaimTemplate

// Claims defines resourceclaims. The spec is immutable; the status has the allocation and the
// consumers that it is reserved for.
func Claims(cfg Config, s *Selectors) resource.Definition {
	status := resource.Rules[*claim]{
		PrepareUpdate: prepareClaimStatus,
		ValidateUpdate: func(ctx context.Context, c, old *claim) field.ErrorList {
			return append(mayChangeStatus(ctx, cfg, c, old), validateClaimStatus(c, old)...)
		},
	}.Strategy()
	status.Resets = []string{"metadata", "spec"}
	return resource.Definition{
		Group:      resourcev1.GroupName,
		Resource:   "resourceclaims",
		Kind:       "ResourceClaim",
		Namespaced: true,
		StorageKey: "resourceclaims",
		GatedFields: []resource.GatedField{
			{Path: "spec.devices.requests[].firstAvailable", Gate: "DRAPrioritizedList"},
			{Path: "spec.devices.requests[].exactly.tolerations spec.devices.requests[].firstAvailable[].tolerations", Gate: "DRADeviceTaints"},
			{Path: "spec.devices.requests[].exactly.adminAccess status.allocation.devices.results[].adminAccess", Gate: "DRAAdminAccess"},
			{Path: "spec.devices.constraints[].distinctAttribute spec.devices.requests[].exactly.capacity spec.devices.requests[].firstAvailable[].capacity status.allocation.devices.results[].shareID status.allocation.devices.results[].consumedCapacity status.devices[].shareID", Gate: "DRAConsumableCapacity"},
			{Path: "status.devices", Gate: "DRAResourceClaimDeviceStatus"},
			{Path: "status.allocation.devices.results[].bindingConditions status.allocation.devices.results[].bindingFailureConditions", Gate: "DRADeviceBindingConditions"},
		},
		Versions: claimVersions(),
		Strategy: resource.Rules[*claim]{
			NameOnUpdate:  true,
			ReturnDeleted: true,
			PrepareCreate: func(ctx context.Context, c *claim) {
				c.Status = resourcev1.ResourceClaimStatus{}
				dropClaimFields(ctx, &c.Spec, nil)
			},
			PrepareUpdate: func(ctx context.Context, c, old *claim) {
				c.Status = old.Status
				dropClaimFields(ctx, &c.Spec, &old.Spec)
			},
			Validate: func(ctx context.Context, c *claim) field.ErrorList {
				return append(mayAdminister(ctx, cfg, c.Namespace, &c.Spec), s.validateClaim(ctx, &c.Spec, field.NewPath("spec"))...)
			},
			ValidateUpdate: func(_ context.Context, c, old *claim) field.ErrorList {
				return sameSpec(c.Spec, old.Spec)
			},
		}.Strategy(),
		Subresources: []resource.Subresource{{Name: "status", NoTable: true, Part: &status}},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "State", Type: "string", Description: "A summary of the current state (allocated, pending, reserved, etc.)."},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(c *claim) []any { return []any{c.Name, claimState(c), resource.Since(c.CreationTimestamp.Time)} }),
	}
}

// ClaimTemplates defines resourceclaimtemplates.
func ClaimTemplates(cfg Config, s *Selectors) resource.Definition {
	judge := func(ctx context.Context, t *claimTemplate) field.ErrorList {
		path := field.NewPath("spec")
		return append(rules.ValidateTemplateMeta(&t.Spec.ObjectMeta, path.Child("metadata")), s.validateClaim(ctx, &t.Spec.Spec, path.Child("spec"))...)
	}
	return resource.Definition{
		Group:      resourcev1.GroupName,
		Resource:   "resourceclaimtemplates",
		Kind:       "ResourceClaimTemplate",
		Namespaced: true,
		StorageKey: "resourceclaimtemplates",
		GatedFields: []resource.GatedField{
			{Path: "spec.spec.devices.requests[].firstAvailable", Gate: "DRAPrioritizedList"},
			{Path: "spec.spec.devices.requests[].exactly.tolerations spec.spec.devices.requests[].firstAvailable[].tolerations", Gate: "DRADeviceTaints"},
			{Path: "spec.spec.devices.requests[].exactly.adminAccess", Gate: "DRAAdminAccess"},
			{Path: "spec.spec.devices.constraints[].distinctAttribute spec.spec.devices.requests[].exactly.capacity spec.spec.devices.requests[].firstAvailable[].capacity", Gate: "DRAConsumableCapacity"},
		},
		Versions: claimTemplateVersions(),
		Strategy: resource.Rules[*claimTemplate]{
			NameOnUpdate:  true,
			ReturnDeleted: true,
			PrepareCreate: func(ctx context.Context, t *claimTemplate) { dropClaimFields(ctx, &t.Spec.Spec, nil) },
			PrepareUpdate: func(ctx context.Context, t, old *claimTemplate) {
				dropClaimFields(ctx, &t.Spec.Spec, &old.Spec.Spec)
			},
			Validate: func(ctx context.Context, t *claimTemplate) field.ErrorList {
				return append(mayAdminister(ctx, cfg, t.Namespace, &t.Spec.Spec), judge(ctx, t)...)
			},
			ValidateUpdate: func(ctx context.Context, t, old *claimTemplate) field.ErrorList {
				errs := judge(ctx, t)
				if !equality.Semantic.DeepEqual(t.Spec, old.Spec) {
					errs = append(errs, field.Invalid(field.NewPath("spec"), rules.GoForm(t.Spec), apivalidation.FieldImmutableErrorMsg))
				}
				return errs
			},
		}.Strategy(),
		Columns: []resource.Column{rules.NameColumn(), rules.AgeColumn()},
		Cells:   nameAndAge,
	}
}

func claimState(c *claim) string {
	var states []string
	if c.DeletionTimestamp != nil {
		states = append(states, "deleted")
	} else if c.Status.Allocation == nil {
		states = append(states, "pending")
	}
	if c.Status.Allocation != nil {
		states = append(states, "allocated")
		if len(c.Status.ReservedFor) > 0 {
			states = append(states, "reserved")
		}
	}
	return strings.Join(states, ",")
}

func defaultClaim(spec *resourcev1.ResourceClaimSpec) {
	count := func(mode *resourcev1.DeviceAllocationMode, count *int64) {
		if *mode == "" {
			*mode = resourcev1.DeviceAllocationModeExactCount
		}
		if *mode == resourcev1.DeviceAllocationModeExactCount && *count == 0 {
			*count = 1
		}
	}
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		if r.Exactly != nil {
			count(&r.Exactly.AllocationMode, &r.Exactly.Count)
			defaultTolerations(r.Exactly.Tolerations)
		}
		for j := range r.FirstAvailable {
			count(&r.FirstAvailable[j].AllocationMode, &r.FirstAvailable[j].Count)
			defaultTolerations(r.FirstAvailable[j].Tolerations)
		}
	}
}

func defaultTolerations(tolerations []resourcev1.DeviceToleration) {
	for i := range tolerations {
		if t := &tolerations[i]; t.Operator == "" {
			t.Operator = resourcev1.DeviceTolerationOpEqual
		}
	}
}

// dropClaimFields clears derived attributes if their feature gate is disabled, unless the
// old claim has some.
func dropClaimFields(ctx context.Context, spec, old *resourcev1.ResourceClaimSpec) {
	if features.From(ctx).Enabled(derivedAttributes) {
		return
	}
	each := func(spec *resourcev1.ResourceClaimSpec, f func(*[]resourcev1.DeviceDerivedAttribute)) {
		for i := range spec.Devices.Requests {
			r := &spec.Devices.Requests[i]
			if r.Exactly != nil {
				f(&r.Exactly.DerivedAttributes)
			}
			for j := range r.FirstAvailable {
				f(&r.FirstAvailable[j].DerivedAttributes)
			}
		}
	}
	used := false
	if old != nil {
		each(old, func(a *[]resourcev1.DeviceDerivedAttribute) { used = used || len(*a) > 0 })
	}
	if !used {
		each(spec, func(a *[]resourcev1.DeviceDerivedAttribute) { *a = nil })
	}
}

// mayAdminister refuses adminAccess in namespaces without the admin label.
func mayAdminister(ctx context.Context, cfg Config, namespace string, spec *resourcev1.ResourceClaimSpec) field.ErrorList {
	for i, r := range spec.Devices.Requests {
		if r.Exactly != nil && r.Exactly.AdminAccess != nil && *r.Exactly.AdminAccess {
			return administers(ctx, cfg, namespace, field.NewPath("spec", "devices", "requests").Index(i).Child("adminAccess"))
		}
	}
	return nil
}

func administers(ctx context.Context, cfg Config, namespace string, path *field.Path) field.ErrorList {
	switch ok, err := cfg.AdminNamespace(ctx, namespace); {
	case err != nil:
		return field.ErrorList{field.InternalError(path, fmt.Errorf("could not retrieve namespace to verify admin access: %w", err))}
	case !ok:
		return field.ErrorList{field.Forbidden(path, fmt.Sprintf("admin access to devices requires the `%s: true` label on the containing namespace", AdminLabel))}
	}
	return nil
}

// requestNames are the requests of a claim with their subrequests.
type requestNames map[string]map[string]bool

func namesOf(d *resourcev1.DeviceClaim) requestNames {
	names := requestNames{}
	for _, r := range d.Requests {
		names[r.Name] = map[string]bool{}
		for _, alternative := range r.FirstAvailable {
			names[r.Name][alternative.Name] = true
		}
	}
	return names
}

// validateRef validates a reference to a request or subrequest.
func (n requestNames) validateRef(ref string, path *field.Path) field.ErrorList {
	const unknown = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
	parts := strings.Split(ref, "/")
	if len(parts) > 2 {
		return field.ErrorList{field.Invalid(path, ref, unknown)}
	}
	var errs field.ErrorList
	for _, p := range parts {
		errs = append(errs, rules.Invalid(path, p, validation.IsDNS1123Label(p))...)
	}
	if alternatives, ok := n[parts[0]]; !ok || len(parts) == 2 && !alternatives[parts[1]] {
		errs = append(errs, field.Invalid(path, ref, unknown))
	}
	return errs
}

func (n requestNames) validateRefs(refs []string, path *field.Path) field.ErrorList {
	return eachUnique(refs, resourcev1.DeviceRequestsMaxSize, path, itself, func(ref *string, path *field.Path) field.ErrorList {
		return n.validateRef(*ref, path)
	})
}

// claimRules validates one claim.
type claimRules struct {
	*boundedExpressions
	// constrained has the attributes of constraints, by the request or subrequest that they
	// are for, "" for all.
	constrained map[string]map[resourcev1.FullyQualifiedName]bool
	// derivedCost sums up the cost of the expressions of derived attributes.
	derivedCost uint64
}

func (s *Selectors) validateClaim(ctx context.Context, spec *resourcev1.ResourceClaimSpec, path *field.Path) field.ErrorList {
	d, path := &spec.Devices, path.Child("devices")
	names := namesOf(d)
	r := &claimRules{boundedExpressions: s.expressions(ctx), constrained: attributesOf(d.Constraints)}
	errs := eachUnique(d.Requests, resourcev1.DeviceRequestsMaxSize, path.Child("requests"), func(r *resourcev1.DeviceRequest) string { return r.Name }, r.validateRequest)
	errs = append(errs, each(d.Constraints, resourcev1.DeviceConstraintsMaxSize, path.Child("constraints"), func(c *resourcev1.DeviceConstraint, path *field.Path) field.ErrorList {
		errs := names.validateRefs(c.Requests, path.Child("requests"))
		if c.MatchAttribute != nil {
			errs = append(errs, betaFormat(validate.ResourceFullyQualifiedName, validateFullyQualified, *c.MatchAttribute, path.Child("matchAttribute"))...)
		}
		if c.DistinctAttribute != nil {
			errs = append(errs, betaFormat(validate.ResourceFullyQualifiedName, validateFullyQualified, *c.DistinctAttribute, path.Child("distinctAttribute"))...)
		}
		if c.MatchAttribute == nil && c.DistinctAttribute == nil && !r.fields.multiple {
			errs = append(errs, field.Required(path.Child("matchAttribute"), ""))
		} else if c.MatchAttribute == nil && c.DistinctAttribute == nil {
			errs = append(errs, field.Required(path, `exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set`))
		}
		return errs
	})...)
	errs = append(errs, each(d.Config, resourcev1.DeviceConfigMaxSize, path.Child("config"), func(c *resourcev1.DeviceClaimConfiguration, path *field.Path) field.ErrorList {
		errs := names.validateRefs(c.Requests, path.Child("requests"))
		return append(errs, validateConfiguration(&c.DeviceConfiguration, false, path)...)
	})...)
	if r.derivedCost > resourcev1.DeviceClaimDerivedAttributeCELMaxCost {
		errs = append(errs, field.Forbidden(path, "too complex, total cost of derived attribute CEL expressions in the claim exceeds cost limit"))
	}
	return errs
}

// validateRequest checks that a request has exactly one of exactly and firstAvailable. If it
// has both, only the declared rules are applied to them.
func (s *claimRules) validateRequest(r *resourcev1.DeviceRequest, path *field.Path) field.ErrorList {
	errs := validateLabelName(r.Name, path.Child("name"))
	alternatives := len(r.FirstAvailable) > 0
	both := r.Exactly != nil && alternatives
	switch {
	case both:
		errs = append(errs, field.Invalid(path, nil, "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set"))
	case r.Exactly == nil && !alternatives:
		errs = append(errs, field.Required(path, "exactly one of `exactly` or `firstAvailable` is required"))
	}
	if e, path := r.Exactly, path.Child("exactly"); e != nil {
		if class := path.Child("deviceClassName"); !both && e.DeviceClassName == "" {
			errs = append(errs, field.Required(class, ""))
		} else if !both {
			errs = append(errs, rules.Invalid(class, e.DeviceClassName, validation.IsDNS1123Subdomain(e.DeviceClassName))...)
		}
		errs = append(errs, s.validateDevices(r.Name, e.Selectors, e.DerivedAttributes, e.AllocationMode, e.Count, e.Tolerations, both, path)...)
	}
	path = path.Child("firstAvailable")
	const limit = resourcev1.FirstAvailableDeviceRequestMaxSize
	key := func(a *resourcev1.DeviceSubRequest) string { return a.Name }
	return append(errs, eachUnique(r.FirstAvailable, limit, path, key, func(a *resourcev1.DeviceSubRequest, path *field.Path) field.ErrorList {
		var errs field.ErrorList
		if !both {
			errs = validateLabelName(a.Name, path.Child("name"))
		}
		errs = append(errs, requiredBetaFormat(validate.LongName, validateSubdomain, a.DeviceClassName, path.Child("deviceClassName"))...)
		return append(errs, s.validateDevices(r.Name+"/"+a.Name, a.Selectors, a.DerivedAttributes, a.AllocationMode, a.Count, a.Tolerations, both, path)...)
	})...)
}

// validateDevices validates the fields that requests and subrequests share; with declared
// only by the declared rules.
func (s *claimRules) validateDevices(request string, list []resourcev1.DeviceSelector, derived []resourcev1.DeviceDerivedAttribute, mode resourcev1.DeviceAllocationMode, count int64,
	tolerations []resourcev1.DeviceToleration, declared bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	judge := validateToleration
	if declared {
		judge = validateTolerationFormat
		errs = each(list, resourcev1.DeviceSelectorsMaxSize, path.Child("selectors"), func(*resourcev1.DeviceSelector, *field.Path) field.ErrorList { return nil })
	} else {
		errs = s.validate(list, false, path.Child("selectors"))
		errs = append(errs, s.validateDerived(request, derived, path.Child("derivedAttributes"))...)
		switch {
		case mode == resourcev1.DeviceAllocationModeAll && count != 0:
			errs = append(errs, field.Invalid(path.Child("count"), count, fmt.Sprintf("must not be specified when allocationMode is '%s'", mode)))
		case mode == resourcev1.DeviceAllocationModeExactCount && count <= 0:
			errs = append(errs, field.Invalid(path.Child("count"), count, "must be greater than zero"))
		}
	}
	// Only v1beta1 leaves the mode empty, of a request without a device class. No declared rule
	// requires it.
	modes := []resourcev1.DeviceAllocationMode{resourcev1.DeviceAllocationModeAll, resourcev1.DeviceAllocationModeExactCount}
	switch at := path.Child("allocationMode"); {
	case mode != "":
		errs = append(errs, oneOf(mode, at, modes...)...)
	case !declared:
		errs = append(errs, field.NotSupported(at, mode, modes))
	}
	errs = append(errs, each(tolerations, -1, path.Child("tolerations"), judge)...)
	return append(errs, eachDeclared(derived, resourcev1.DeviceDerivedAttributesMaxSize, path.Child("derivedAttributes"), func(a *resourcev1.DeviceDerivedAttribute, path *field.Path) field.ErrorList {
		errs := requiredFormat(validate.ResourceFullyQualifiedName, a.Name, path.Child("name"))
		if a.Expression == "" {
			errs = append(errs, resource.Declared(field.Required(path.Child("expression"), ""))...)
		}
		return errs
	})...)
}

// validateDerived validates the attributes that a request derives: a constraint must use
// them.
func (s *claimRules) validateDerived(request string, list []resourcev1.DeviceDerivedAttribute, path *field.Path) field.ErrorList {
	parent, _, _ := strings.Cut(request, "/")
	errs := each(list, -1, path, func(a *resourcev1.DeviceDerivedAttribute, path *field.Path) field.ErrorList {
		var errs field.ErrorList
		if a.Name != "" && !s.constrained[""][a.Name] && !s.constrained[request][a.Name] && !s.constrained[parent][a.Name] {
			errs = append(errs, field.Invalid(path.Child("name"), a.Name, "must be referenced by at least one matchAttribute or distinctAttribute constraint targeting this request"))
		}
		if a.Expression != "" {
			cost, problems := s.validateExpression(a.Expression, true, path.Child("expression"))
			s.derivedCost += cost
			errs = append(errs, problems...)
		}
		return errs
	})
	name := func(a *resourcev1.DeviceDerivedAttribute) string { return string(a.Name) }
	return append(errs, duplicates(list, -1, path, name, func(a *resourcev1.DeviceDerivedAttribute) any { return name(a) })...)
}

// attributesOf returns the attributes of constraints, by request.
func attributesOf(constraints []resourcev1.DeviceConstraint) map[string]map[resourcev1.FullyQualifiedName]bool {
	all := map[string]map[resourcev1.FullyQualifiedName]bool{}
	for _, c := range constraints {
		attribute := c.MatchAttribute
		if attribute == nil {
			attribute = c.DistinctAttribute
		}
		if attribute == nil {
			continue
		}
		requests := c.Requests
		if len(requests) == 0 {
			requests = []string{""}
		}
		for _, r := range requests {
			if all[r] == nil {
				all[r] = map[resourcev1.FullyQualifiedName]bool{}
			}
			all[r][*attribute] = true
		}
	}
	return all
}

// prepareClaimStatus restores everything but the status, and removes device statuses of
// devices that are not allocated.
func prepareClaimStatus(ctx context.Context, c, old *claim) {
	c.Spec = old.Spec
	metav1.ResetObjectMetaForStatus(&c.ObjectMeta, &old.ObjectMeta)
	if !features.From(ctx).Enabled(optionalOperations) {
		dropStatusFields(c, old)
	}
	gone := allocatedDevices(old.Status.Allocation)
	for id := range allocatedDevices(c.Status.Allocation) {
		delete(gone, id)
	}
	var kept []resourcev1.AllocatedDeviceStatus
	for _, d := range c.Status.Devices {
		if !gone[statusID(&d)] {
			kept = append(kept, d)
		}
	}
	c.Status.Devices = kept
}

// dropStatusFields clears fields of the status whose feature gate is disabled, unless the old
// claim has them.
func dropStatusFields(c, old *claim) {
	if old.Status.Allocation != nil {
		for _, r := range old.Status.Allocation.Devices.Results {
			if len(r.SkipNodeOperations) > 0 {
				return
			}
		}
	}
	if c.Status.Allocation != nil {
		for i := range c.Status.Allocation.Devices.Results {
			c.Status.Allocation.Devices.Results[i].SkipNodeOperations = nil
		}
	}
}
