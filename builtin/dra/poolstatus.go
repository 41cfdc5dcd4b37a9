package dra

import (
	"context"
	"fmt"
	"strconv"

	resourcev1alpha3 "k8s.io/api/resource/v1alpha3"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/operation"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// Limits of the status.
const (
	maxPools          = 1000
	maxPoolConditions = 10
	maxSummary        = 32
	maxPoolError      = 256
)

type poolRequest = resourcev1alpha3.ResourcePoolStatusRequest

// PoolRequests defines resourcepoolstatusrequests: a request for the usage of pools of a
// driver, which the status answers once.
func PoolRequests() resource.Definition {
	v1alpha3 := resource.VersionOf[poolRequest, resourcev1alpha3.ResourcePoolStatusRequestList]("v1alpha3", func(r *poolRequest) {
		if r.Spec.Limit == nil {
			r.Spec.Limit = new(resourcev1alpha3.ResourcePoolStatusRequestLimitDefault)
		}
	})
	v1alpha3.Off = true
	v1alpha3.Deprecation = resource.Deprecation(new(poolRequest), resourcev1alpha3.SchemeGroupVersion.WithKind("ResourcePoolStatusRequest"))
	status := resource.Rules[*poolRequest]{
		RequireVersion: true,
		PrepareUpdate: func(_ context.Context, r, old *poolRequest) {
			r.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&r.ObjectMeta, &old.ObjectMeta)
		},
		ValidateUpdate: func(_ context.Context, r, old *poolRequest) field.ErrorList {
			return validatePoolAnswer(r.Status, old.Status, field.NewPath("status"))
		},
	}.Strategy()
	status.Resets = []string{"metadata", "spec"}
	return resource.Definition{
		Group:      resourcev1alpha3.GroupName,
		Resource:   "resourcepoolstatusrequests",
		Kind:       "ResourcePoolStatusRequest",
		StorageKey: "resourcepoolstatusrequests",
		GatedFields: []resource.GatedField{
			{Path: "spec.defaultPartitionTypeAttribute", Gate: partitionTypes},
		},
		Versions: []resource.Version{v1alpha3},
		Strategy: resource.Rules[*poolRequest]{
			ReturnDeleted:  true,
			RequireVersion: true,
			PrepareCreate:  func(_ context.Context, r *poolRequest) { r.Status = nil },
			PrepareUpdate:  func(_ context.Context, r, old *poolRequest) { r.Status = old.Status },
			Validate:       func(_ context.Context, r *poolRequest) field.ErrorList { return validatePoolRequest(&r.Spec) },
			ValidateUpdate: func(_ context.Context, r, old *poolRequest) field.ErrorList {
				if equality.Semantic.DeepEqual(r.Spec, old.Spec) {
					return nil
				}
				return resource.Immutable(field.NewPath("spec"))
			},
		}.Strategy(),
		Subresources: []resource.Subresource{{Name: "status", NoTable: true, Part: &status}},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Driver", Type: "string", Description: "The driver to query pools for."},
			{Name: "Total", Type: "string", Description: "Total number of devices across all pools."},
			{Name: "Available", Type: "string", Description: "Number of available devices across all pools."},
			{Name: "Allocated", Type: "string", Description: "Number of allocated devices across all pools."},
			{Name: "Unavailable", Type: "string", Description: "Number of unavailable devices across all pools."},
			{Name: "Errors", Type: "string", Description: "Number of pools with validation errors."},
			{Name: "Pools", Type: "integer", Description: "Total number of matching pools."},
			{Name: "Status", Type: "string", Description: "Processing status."},
			{Name: "Completed", Type: "string", Description: "Time since the observation completed."},
		},
		Cells: resource.CellsFunc(poolCells),
	}
}

func poolCells(r *poolRequest) []any {
	state, completed, failed := "Pending", any("<none>"), false
	var count int32
	totals := [5]string{"-", "-", "-", "-", "-"}
	if s := r.Status; s != nil {
		for _, c := range s.Conditions {
			if c.Status != metav1.ConditionTrue {
				continue
			}
			if c.Type == resourcev1alpha3.ResourcePoolStatusRequestConditionComplete {
				state, completed = "Complete", resource.Since(c.LastTransitionTime.Time)
				break
			}
			if failed = c.Type == resourcev1alpha3.ResourcePoolStatusRequestConditionFailed; failed {
				state = "Failed"
				break
			}
		}
		count = deref(s.PoolCount)
		if state == "Complete" && int(count) > len(s.Pools) {
			state = fmt.Sprintf("Complete (%d/%d pools)", len(s.Pools), count)
		}
		if !failed {
			var sums [5]int32
			for _, p := range s.Pools {
				for i, n := range []*int32{p.TotalDevices, p.AvailableDevices, p.AllocatedDevices, p.UnavailableDevices} {
					sums[i] += deref(n)
				}
				if p.ValidationError != nil {
					sums[4]++
				}
			}
			for i, n := range sums {
				totals[i] = strconv.Itoa(int(n))
			}
		}
	}
	return []any{r.Name, r.Spec.Driver, totals[0], totals[1], totals[2], totals[3], totals[4], int64(count), state, completed}
}

func validatePoolRequest(spec *resourcev1alpha3.ResourcePoolStatusRequestSpec) field.ErrorList {
	path := field.NewPath("spec")
	//lint:ignore SA1019 the names of drivers have always been free to have capitals
	errs := requiredFormat(validate.LongNameCaseless, spec.Driver, path.Child("driver"))
	if spec.PoolName != nil {
		errs = append(errs, checkFormat(validate.ResourcePoolName, *spec.PoolName, path.Child("poolName"))...)
	}
	errs = append(errs, between(spec.Limit, 1, resourcev1alpha3.ResourcePoolStatusRequestLimitMax, path.Child("limit"))...)
	if name := spec.DefaultPartitionTypeAttribute; name != nil {
		errs = append(errs, checkFormat(validate.ResourceFullyQualifiedName, *name, path.Child("defaultPartitionTypeAttribute"))...)
	}
	return errs
}

// between checks the bounds of an optional number.
func between(n *int32, least, most int32, path *field.Path) field.ErrorList {
	ctx, op := context.Background(), operation.Operation{}
	return append(validate.Maximum(ctx, op, path, n, nil, most), validate.Minimum(ctx, op, path, n, nil, least)...)
}

// requiredNonNegative checks that a number is set and not negative.
func requiredNonNegative(n *int32, path *field.Path) field.ErrorList {
	if n == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	return notNegative(n, path)
}

// notNegative is there for an optional number.
func notNegative(n *int32, path *field.Path) field.ErrorList {
	return validate.Minimum(context.Background(), operation.Operation{}, path, n, nil, 0)
}

// validatePoolAnswer validates a status, which is immutable once set. An unchanged one is not
// validated again.
func validatePoolAnswer(s, old *resourcev1alpha3.ResourcePoolStatusRequestStatus, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case old != nil:
		errs = immutableAnswer(s, old, path)
	case s != nil:
		errs = metavalidation.ValidateConditions(s.Conditions, path.Child("conditions"))
	}
	if s == nil {
		return errs
	}
	same := func(a, b any) bool { return old != nil && equality.Semantic.DeepEqual(a, b) }
	was := deref(old)
	var rules field.ErrorList
	if !same(s.PoolCount, was.PoolCount) {
		rules = append(rules, requiredNonNegative(s.PoolCount, path.Child("poolCount"))...)
	}
	if !same(s.Pools, was.Pools) {
		rules = append(rules, each(s.Pools, maxPools, path.Child("pools"), validatePoolStatus)...)
	}
	if n := len(s.Conditions); n > maxPoolConditions && !same(s.Conditions, was.Conditions) {
		rules = append(rules, field.TooMany(path.Child("conditions"), n, maxPoolConditions))
	}
	return append(errs, resource.Declared(rules...)...)
}

func immutableAnswer(s, old *resourcev1alpha3.ResourcePoolStatusRequestStatus, path *field.Path) field.ErrorList {
	if equality.Semantic.DeepEqual(s, old) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, rules.GoForm(s), apivalidation.FieldImmutableErrorMsg)}
}

func validatePoolStatus(p *resourcev1alpha3.PoolStatus, path *field.Path) field.ErrorList {
	ctx, op := context.Background(), operation.Operation{}
	//lint:ignore SA1019 the names of drivers have always been free to have capitals
	errs := requiredFormat(validate.LongNameCaseless, p.Driver, path.Child("driver"))
	errs = append(errs, requiredFormat(validate.ResourcePoolName, p.PoolName, path.Child("poolName"))...)
	if p.Generation == 0 {
		errs = append(errs, field.Required(path.Child("generation"), ""))
	} else {
		errs = append(errs, validate.Minimum(ctx, op, path.Child("generation"), &p.Generation, nil, 0)...)
	}
	errs = append(errs, validate.Minimum(ctx, op, path.Child("resourceSliceCount"), p.ResourceSliceCount, nil, 1)...)
	errs = append(errs, notNegative(p.TotalDevices, path.Child("totalDevices"))...)
	errs = append(errs, notNegative(p.AllocatedDevices, path.Child("allocatedDevices"))...)
	errs = append(errs, notNegative(p.AvailableDevices, path.Child("availableDevices"))...)
	errs = append(errs, notNegative(p.UnavailableDevices, path.Child("unavailableDevices"))...)
	if p.NodeName != nil {
		errs = append(errs, checkFormat(validate.LongName, *p.NodeName, path.Child("nodeName"))...)
	}
	errs = append(errs, validate.MaxBytes(ctx, op, path.Child("validationError"), p.ValidationError, nil, maxPoolError)...)
	type partition = resourcev1alpha3.PartitionTypeStatus
	parts := path.Child("partitionSummary")
	errs = append(errs, unique(p.PartitionSummary, maxSummary, parts, func(s *partition) [2]string { return [2]string{s.Attribute, s.Type} }, nil)...)
	errs = append(errs, each(p.PartitionSummary, maxSummary, parts, func(s *partition, path *field.Path) field.ErrorList {
		errs := requiredText(s.Attribute, path.Child("attribute"))
		errs = append(errs, requiredText(s.Type, path.Child("type"))...)
		errs = append(errs, requiredNonNegative(s.Total, path.Child("total"))...)
		return append(errs, requiredNonNegative(s.Allocatable, path.Child("allocatable"))...)
	})...)
	if s := p.ShareableSummary; s != nil {
		path := path.Child("shareableSummary")
		errs = append(errs, requiredNonNegative(s.FullyAvailableDevices, path.Child("fullyAvailableDevices"))...)
		errs = append(errs, requiredNonNegative(s.PartiallyAvailableDevices, path.Child("partiallyAvailableDevices"))...)
		errs = append(errs, each(s.Capacity, maxSummary, path.Child("capacity"), validateShare)...)
	}
	return errs
}

func validateShare(c *resourcev1alpha3.ShareableCapacityStatus, path *field.Path) field.ErrorList {
	errs := requiredText(c.Name, path.Child("name"))
	amount := func(q *quantity.Quantity, name string) {
		if q == nil {
			errs = append(errs, field.Required(path.Child(name), ""))
		}
	}
	amount(c.Total, "total")
	amount(c.Consumed, "consumed")
	amount(c.Available, "available")
	return errs
}

// requiredText checks that a text is set.
func requiredText(text string, path *field.Path) field.ErrorList {
	if text == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return nil
}
