package autoscaling

import (
	"context"
	"errors"
	"fmt"
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

const (
	maxPeriod = 1800 // seconds
	maxWindow = 3600 // seconds
)

// validateSpec validates the specification; old is nil on create.
func validateSpec(ctx context.Context, spec, old *autoscalingv2.HorizontalPodAutoscalerSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	least, at := spec.MinReplicas, path.Child("maxReplicas")
	toZero := features.From(ctx).Enabled("HPAScaleToZero") || old != nil && old.MinReplicas != nil && *old.MinReplicas == 0
	if least != nil && !toZero && *least < 1 {
		errs = resource.DeclaredBeta(field.Invalid(path.Child("minReplicas"), *least, "must be greater than or equal to 1"))
	} else if least != nil {
		errs = resource.DeclaredBeta(apivalidation.ValidateNonnegativeField(int64(*least), path.Child("minReplicas"))...)
	}
	if spec.MaxReplicas == 0 {
		errs = append(errs, resource.BetaInstead(field.ErrorList{field.Required(at, "")}, field.ErrorList{field.Required(at, "must be set and greater than 0")})...)
	} else if spec.MaxReplicas < 0 {
		errs = append(errs, resource.DeclaredBeta(field.Invalid(at, spec.MaxReplicas, "must be greater than or equal to 1"))...)
	}
	if least != nil && spec.MaxReplicas < *least {
		errs = append(errs, field.Invalid(at, spec.MaxReplicas, "must be greater than or equal to `minReplicas`"))
	}

	ref := spec.ScaleTargetRef
	checkVersion := needGroup
	switch {
	case old != nil && old.ScaleTargetRef.APIVersion == ref.APIVersion && old.ScaleTargetRef.Kind == ref.Kind:
		checkVersion = anyVersion
	case ref.Kind == "ReplicationController":
		checkVersion = anyGroup // the target is in the core group
	}
	errs = append(errs, validateReference(ref, path.Child("scaleTargetRef"), checkVersion)...)

	checkVersion = anyGroup
	if old != nil && slices.ContainsFunc(old.Metrics, func(m autoscalingv2.MetricSpec) bool {
		return m.Type == autoscalingv2.ObjectMetricSourceType && m.Object != nil && anyGroup(m.Object.DescribedObject.APIVersion) != nil
	}) {
		checkVersion = anyVersion
	}
	scalesToZero := false
	for i := range spec.Metrics {
		m := &spec.Metrics[i]
		errs = append(errs, validateMetric(m, path.Child("metrics").Index(i), checkVersion)...)
		scalesToZero = scalesToZero || m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
	}
	if least != nil && *least == 0 && !scalesToZero {
		errs = append(errs, field.Forbidden(path.Child("metrics"), "must specify at least one Object or External metric to support scaling to zero replicas"))
	}
	if b := spec.Behavior; b != nil {
		errs = append(errs, validateRules(b.ScaleUp, path.Child("behavior", "scaleUp"))...)
		errs = append(errs, validateRules(b.ScaleDown, path.Child("behavior", "scaleDown"))...)
	}
	return errs
}

// anyVersion, anyGroup and needGroup validate the apiVersion of a reference.
func anyVersion(string) error { return nil }

func anyGroup(apiVersion string) error {
	_, err := schema.ParseGroupVersion(apiVersion)
	return err
}

func needGroup(apiVersion string) error {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err == nil && gv.Group == "" {
		err = errors.New("apiVersion must specify API group")
	}
	return err
}

func validateReference(ref autoscalingv2.CrossVersionObjectReference, path *field.Path, checkVersion func(string) error) field.ErrorList {
	errs := pathSegment(ref.Kind, path.Child("kind"), "")
	errs = append(errs, pathSegment(ref.Name, path.Child("name"), "")...)
	if err := checkVersion(ref.APIVersion); err != nil {
		errs = append(errs, field.Invalid(path.Child("apiVersion"), ref.APIVersion, err.Error()))
	}
	return errs
}

// pathSegment checks that a name is a valid path segment; missing is the message for an empty
// one.
func pathSegment(name string, path *field.Path, missing string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, missing)}
	}
	var errs field.ErrorList
	for _, m := range content.IsPathSegmentName(name) {
		errs = append(errs, field.Invalid(path, name, m))
	}
	return errs
}

func validateMetric(m *autoscalingv2.MetricSpec, path *field.Path, checkVersion func(string) error) field.ErrorList {
	var errs field.ErrorList
	// Of several sources only the first is validated.
	sources := []struct {
		name     string
		kind     autoscalingv2.MetricSourceType
		set      bool
		validate func(path *field.Path) field.ErrorList
	}{
		{"object", autoscalingv2.ObjectMetricSourceType, m.Object != nil, func(path *field.Path) field.ErrorList {
			errs := validateReference(m.Object.DescribedObject, path.Child("describedObject"), checkVersion)
			return append(errs, validateValue(m.Object.Metric, m.Object.Target, path, "must set either a target value or averageValue")...)
		}},
		{"external", autoscalingv2.ExternalMetricSourceType, m.External != nil, func(path *field.Path) field.ErrorList {
			t := m.External.Target
			errs := validateValue(m.External.Metric, t, path, "must set either a target value for metric or a per-pod target")
			if t.Value != nil && t.AverageValue != nil {
				errs = append(errs, field.Forbidden(path.Child("target", "value"), "may not set both a target value for metric and a per-pod target"))
			}
			return errs
		}},
		{"pods", autoscalingv2.PodsMetricSourceType, m.Pods != nil, func(path *field.Path) field.ErrorList {
			// A pods metric has only an average.
			t := m.Pods.Target
			t.Value = nil
			errs := validateValue(m.Pods.Metric, t, path, "must specify a positive target averageValue")
			return append(errs, validatePositive(m.Pods.Target.Value, path.Child("target", "value"))...)
		}},
		{"resource", autoscalingv2.ResourceMetricSourceType, m.Resource != nil, func(path *field.Path) field.ErrorList {
			var errs field.ErrorList
			if m.Resource.Name == "" {
				errs = append(errs, field.Required(path.Child("name"), "must specify a resource name"))
			}
			return append(errs, validateUtilization(m.Resource.Target, path.Child("target"))...)
		}},
		{"containerResource", autoscalingv2.ContainerResourceMetricSourceType, m.ContainerResource != nil, func(path *field.Path) field.ErrorList {
			return validateContainerResource(m.ContainerResource, path)
		}},
	}
	var kinds []autoscalingv2.MetricSourceType
	for _, s := range sources {
		kinds = append(kinds, s.kind)
	}
	slices.Sort(kinds)
	if m.Type == "" {
		errs = append(errs, field.Required(path.Child("type"), "must specify a metric source type"))
	}
	if !slices.Contains(kinds, m.Type) {
		errs = append(errs, field.NotSupported(path.Child("type"), m.Type, kinds))
	}
	count := 0
	for _, s := range sources {
		if s.set {
			if count++; count == 1 {
				errs = append(errs, s.validate(path.Child(s.name))...)
			}
		}
	}
	for _, s := range sources {
		switch {
		case s.kind == m.Type && !s.set:
			errs = append(errs, field.Required(path.Child(s.name), "must populate information for the given metric source"))
		case s.kind != m.Type && s.set && count != 1:
			errs = append(errs, field.Forbidden(path.Child(s.name), "must populate the given metric source only"))
		}
	}
	return errs
}

// validateValue validates a metric with a quantity as target; missing is the message if there
// is none.
func validateValue(id autoscalingv2.MetricIdentifier, t autoscalingv2.MetricTarget, path *field.Path, missing string) field.ErrorList {
	errs := pathSegment(id.Name, path.Child("metric", "name"), "must specify a metric name")
	path = path.Child("target")
	errs = append(errs, validateTarget(t, path)...)
	if t.Value == nil && t.AverageValue == nil {
		errs = append(errs, field.Required(path.Child("averageValue"), missing))
	}
	return errs
}

func validateUtilization(t autoscalingv2.MetricTarget, path *field.Path) field.ErrorList {
	errs := validateTarget(t, path)
	switch {
	case t.AverageUtilization == nil && t.AverageValue == nil:
		errs = append(errs, field.Required(path.Child("averageUtilization"), "must set either a target raw value or a target utilization"))
	case t.AverageUtilization != nil && t.AverageValue != nil:
		errs = append(errs, field.Forbidden(path.Child("averageValue"), "may not set both a target raw value and a target utilization"))
	}
	return errs
}

func validateContainerResource(s *autoscalingv2.ContainerResourceMetricSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "must specify a resource name"))
	} else {
		errs = append(errs, rules.ValidateContainerResourceName(s.Name, path.Child("name"))...)
	}
	if s.Container == "" {
		errs = append(errs, field.Required(path.Child("container"), "must specify a container"))
	}
	for _, m := range validation.IsDNS1123Label(s.Container) {
		if s.Container != "" {
			errs = append(errs, field.Invalid(path.Child("container"), s.Container, m))
		}
	}
	return append(errs, validateUtilization(s.Target, path.Child("target"))...)
}

func validateTarget(t autoscalingv2.MetricTarget, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch t.Type {
	case autoscalingv2.UtilizationMetricType, autoscalingv2.ValueMetricType, autoscalingv2.AverageValueMetricType:
	case "":
		errs = append(errs, field.Required(path.Child("type"), "must specify a metric target type"))
		fallthrough
	default:
		errs = append(errs, field.Invalid(path.Child("type"), t.Type, "must be either Utilization, Value, or AverageValue"))
	}
	errs = append(errs, validatePositive(t.Value, path.Child("value"))...)
	errs = append(errs, validatePositive(t.AverageValue, path.Child("averageValue"))...)
	if u := t.AverageUtilization; u != nil && *u < 1 {
		errs = append(errs, field.Invalid(path.Child("averageUtilization"), *u, "must be greater than 0"))
	}
	return errs
}

func validatePositive(q *quantity.Quantity, path *field.Path) field.ErrorList {
	if q == nil || q.Sign() > 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, q, "must be positive")}
}

func validateRules(r *autoscalingv2.HPAScalingRules, path *field.Path) field.ErrorList {
	if r == nil {
		return nil
	}
	var errs field.ErrorList
	switch window, at := ptr.Deref(r.StabilizationWindowSeconds, 0), path.Child("stabilizationWindowSeconds"); {
	case window < 0:
		errs = append(errs, field.Invalid(at, window, "must be greater than or equal to zero"))
	case window > maxWindow:
		errs = append(errs, field.Invalid(at, window, fmt.Sprintf("must be less than or equal to %d", maxWindow)))
	}
	selects := []autoscalingv2.ScalingPolicySelect{autoscalingv2.DisabledPolicySelect, autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect}
	if s := r.SelectPolicy; s != nil && !slices.Contains(selects, *s) {
		errs = append(errs, field.NotSupported(path.Child("selectPolicy"), *s, selects))
	}
	if len(r.Policies) == 0 {
		errs = append(errs, field.Required(path.Child("policies"), "must specify at least one Policy"))
	}
	types := []autoscalingv2.HPAScalingPolicyType{autoscalingv2.PercentScalingPolicy, autoscalingv2.PodsScalingPolicy}
	for i, p := range r.Policies {
		at := path.Child("policies").Index(i)
		if !slices.Contains(types, p.Type) {
			errs = append(errs, field.NotSupported(at.Child("type"), p.Type, types))
		}
		if p.Value <= 0 {
			errs = append(errs, field.Invalid(at.Child("value"), p.Value, "must be greater than zero"))
		}
		if p.PeriodSeconds <= 0 {
			errs = append(errs, field.Invalid(at.Child("periodSeconds"), p.PeriodSeconds, "must be greater than zero"))
		} else if p.PeriodSeconds > maxPeriod {
			errs = append(errs, field.Invalid(at.Child("periodSeconds"), p.PeriodSeconds, fmt.Sprintf("must be less than or equal to %d", maxPeriod)))
		}
	}
	if t := r.Tolerance; t != nil && t.Sign() < 0 {
		errs = append(errs, field.Invalid(path.Child("tolerance"), t.String(), apivalidation.IsNegativeErrorMsg))
	}
	return errs
}
