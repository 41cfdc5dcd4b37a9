package autoscaling

import (
	"context"
	"fmt"
	"maps"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// HorizontalPodAutoscalers defines horizontalpodautoscalers.
func HorizontalPodAutoscalers() resource.Definition {
	status := resource.Rules[*autoscalingv2.HorizontalPodAutoscaler]{
		PrepareUpdate: func(_ context.Context, h, old *autoscalingv2.HorizontalPodAutoscaler) { h.Spec = old.Spec },
		ValidateUpdate: func(_ context.Context, h, _ *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
			return validateStatus(&h.Status, field.NewPath("status"))
		},
	}.Strategy()
	v1 := resource.VersionOf[autoscalingv1.HorizontalPodAutoscaler, autoscalingv1.HorizontalPodAutoscalerList]("v1",
		func(h *autoscalingv1.HorizontalPodAutoscaler) { rules.DefaultPointer(&h.Spec.MinReplicas, 1) })
	v1.ToHub, v1.FromHub = resource.Convert(fromV1), resource.Convert(toV1)
	spec := autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()
	return resource.Definition{
		Group:      autoscalingv2.GroupName,
		Resource:   "horizontalpodautoscalers",
		Kind:       "HorizontalPodAutoscaler",
		ShortNames: []string{"hpa"},
		Categories: []string{"all"},
		Namespaced: true,
		StorageKey: "horizontalpodautoscalers",
		GatedFields: []resource.GatedField{
			{Path: "spec.behavior.scaleUp.tolerance spec.behavior.scaleDown.tolerance", Gate: "HPAConfigurableTolerance"},
		},

		FieldAnnotations: otherAnnotations(),
		Versions: []resource.Version{
			resource.VersionOf[autoscalingv2.HorizontalPodAutoscaler, autoscalingv2.HorizontalPodAutoscalerList]("v2", defaultAutoscaler),
			v1,
		},
		Strategy: resource.Rules[*autoscalingv2.HorizontalPodAutoscaler]{
			PrepareCreate: func(_ context.Context, h *autoscalingv2.HorizontalPodAutoscaler) {
				h.Status = autoscalingv2.HorizontalPodAutoscalerStatus{}
			},
			PrepareUpdate: func(_ context.Context, h, old *autoscalingv2.HorizontalPodAutoscaler) { h.Status = old.Status },
			Validate: func(ctx context.Context, h *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
				return validateSpec(ctx, &h.Spec, nil, field.NewPath("spec"))
			},
			ValidateUpdate: func(ctx context.Context, h, old *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
				return validateSpec(ctx, &h.Spec, &old.Spec, field.NewPath("spec"))
			},
			Generation: func(h, old *autoscalingv2.HorizontalPodAutoscaler) bool {
				return !equality.Semantic.DeepEqual(h.Spec, old.Spec)
			},
		}.Strategy(),
		Subresources: []resource.Subresource{{Name: "status", Part: &status}},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Reference", Type: "string", Description: spec["scaleTargetRef"]},
			{Name: "Targets", Type: "string", Description: spec["metrics"]},
			{Name: "MinPods", Type: "string", Description: spec["minReplicas"]},
			{Name: "MaxPods", Type: "string", Description: spec["maxReplicas"]},
			{Name: "Replicas", Type: "string", Description: autoscalingv2.HorizontalPodAutoscalerStatus{}.SwaggerDoc()["currentReplicas"]},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(h *autoscalingv2.HorizontalPodAutoscaler) []any {
			minimum := "<unset>"
			if n := h.Spec.MinReplicas; n != nil {
				minimum = fmt.Sprint(*n)
			}
			return []any{
				h.Name, h.Spec.ScaleTargetRef.Kind + "/" + h.Spec.ScaleTargetRef.Name, targets(h.Spec.Metrics, h.Status.CurrentMetrics),
				minimum, int64(h.Spec.MaxReplicas), int64(h.Status.CurrentReplicas), resource.Since(h.CreationTimestamp.Time),
			}
		}),
	}
}

func defaultAutoscaler(h *autoscalingv2.HorizontalPodAutoscaler) {
	h.Annotations = withoutOthers(h.Annotations)
	rules.DefaultPointer(&h.Spec.MinReplicas, 1)
	if len(h.Spec.Metrics) == 0 {
		h.Spec.Metrics = []autoscalingv2.MetricSpec{cpuMetric(defaultUtilization)}
	}
	b := h.Spec.Behavior
	if b == nil {
		return
	}
	percent := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15}
	pods := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15}
	// The stabilization window of scaleDown is defaulted by the controller.
	defaultRules(&b.ScaleDown, percent)
	defaultRules(&b.ScaleUp, pods, percent)
	rules.DefaultPointer(&b.ScaleUp.StabilizationWindowSeconds, 0)
}

func defaultRules(scaling **autoscalingv2.HPAScalingRules, policies ...autoscalingv2.HPAScalingPolicy) {
	rules.DefaultPointer(scaling, autoscalingv2.HPAScalingRules{})
	rules.DefaultPointer(&(*scaling).SelectPolicy, autoscalingv2.MaxChangePolicySelect)
	if (*scaling).Policies == nil {
		(*scaling).Policies = policies
	}
}

// defaultUtilization is the target CPU utilization, in percent, of an autoscaler without
// metrics.
const defaultUtilization = 80

func cpuMetric(percent int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{
		Type: autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{
			Name:   corev1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent},
		},
	}
}

// Annotations in which v1 shows fields that it lacks. They are never stored.
const (
	metricsAnnotation    = "autoscaling.alpha.kubernetes.io/metrics"
	currentAnnotation    = "autoscaling.alpha.kubernetes.io/current-metrics"
	conditionsAnnotation = "autoscaling.alpha.kubernetes.io/conditions"
	behaviorAnnotation   = "autoscaling.alpha.kubernetes.io/behavior"
	downAnnotation       = "autoscaling.alpha.kubernetes.io/scale-down-tolerance"
	upAnnotation         = "autoscaling.alpha.kubernetes.io/scale-up-tolerance"
)

// otherAnnotations returns all of them.
func otherAnnotations() []string {
	return []string{metricsAnnotation, currentAnnotation, conditionsAnnotation, behaviorAnnotation, downAnnotation, upAnnotation}
}

// withoutOthers returns a copy of annotations without those; the argument is not changed.
func withoutOthers(annotations map[string]string) map[string]string {
	out := annotations
	for _, name := range otherAnnotations() {
		if _, ok := out[name]; ok {
			if len(out) == len(annotations) {
				out = maps.Clone(annotations)
			}
			delete(out, name)
		}
	}
	return out
}

// maxTargets is how many metrics a table cell lists.
const maxTargets = 2

// targets returns the table cell Targets: current and target values.
func targets(metrics []autoscalingv2.MetricSpec, statuses []autoscalingv2.MetricStatus) string {
	if len(metrics) == 0 {
		return "<none>"
	}
	var list []string
	for i := range metrics[:min(len(metrics), maxTargets)] {
		var status autoscalingv2.MetricStatus
		if i < len(statuses) {
			status = statuses[i]
		}
		list = append(list, targetText(&metrics[i], &status))
	}
	text := strings.Join(list, ", ")
	if more := len(metrics) - maxTargets; more > 0 {
		text += fmt.Sprintf(" + %d more...", more)
	}
	return text
}

func targetText(m *autoscalingv2.MetricSpec, s *autoscalingv2.MetricStatus) string {
	switch {
	case m.Type == autoscalingv2.ExternalMetricSourceType && m.External != nil:
		var current *autoscalingv2.MetricValueStatus
		if s.External != nil {
			current = &s.External.Current
		}
		return valueText(m.External.Target, current)
	case m.Type == autoscalingv2.ObjectMetricSourceType && m.Object != nil:
		var current *autoscalingv2.MetricValueStatus
		if s.Object != nil {
			current = &s.Object.Current
		}
		return valueText(m.Object.Target, current)
	case m.Type == autoscalingv2.PodsMetricSourceType && m.Pods != nil:
		current := "<unknown>"
		if s.Pods != nil {
			current = s.Pods.Current.AverageValue.String()
		}
		return current + "/" + m.Pods.Target.AverageValue.String()
	case m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil:
		var current *autoscalingv2.MetricValueStatus
		if s.Resource != nil {
			current = &s.Resource.Current
		}
		return resourceText(m.Resource.Name, m.Resource.Target, current)
	case m.Type == autoscalingv2.ContainerResourceMetricSourceType && m.ContainerResource != nil:
		var current *autoscalingv2.MetricValueStatus
		if s.ContainerResource != nil {
			current = &s.ContainerResource.Current
		}
		return resourceText(m.ContainerResource.Name, m.ContainerResource.Target, current)
	}
	return "<unknown type>"
}

func valueText(target autoscalingv2.MetricTarget, current *autoscalingv2.MetricValueStatus) string {
	text := "<unknown>"
	if target.AverageValue != nil {
		if current != nil && current.AverageValue != nil {
			text = current.AverageValue.String()
		}
		return text + "/" + target.AverageValue.String() + " (avg)"
	}
	if current != nil {
		text = current.Value.String()
	}
	return text + "/" + target.Value.String()
}

func resourceText(name corev1.ResourceName, target autoscalingv2.MetricTarget, current *autoscalingv2.MetricValueStatus) string {
	is, want := "<unknown>", "<auto>"
	if target.AverageValue != nil {
		want = target.AverageValue.String()
		if current != nil {
			is = current.AverageValue.String()
		}
	} else {
		if current != nil && current.AverageUtilization != nil {
			is = fmt.Sprintf("%d%%", *current.AverageUtilization)
		}
		if target.AverageUtilization != nil {
			want = fmt.Sprintf("%d%%", *target.AverageUtilization)
		}
	}
	return fmt.Sprintf("%s: %s/%s", name, is, want)
}

func validateStatus(s *autoscalingv2.HorizontalPodAutoscalerStatus, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, c := range s.Conditions {
		if c.ObservedGeneration != nil {
			errs = append(errs, apivalidation.ValidateNonnegativeField(*c.ObservedGeneration, path.Child("conditions").Index(i).Child("observedGeneration"))...)
		}
	}
	errs = append(errs, apivalidation.ValidateNonnegativeField(int64(s.CurrentReplicas), path.Child("currentReplicas"))...)
	return append(errs, apivalidation.ValidateNonnegativeField(int64(s.DesiredReplicas), path.Child("desiredReplicas"))...)
}
