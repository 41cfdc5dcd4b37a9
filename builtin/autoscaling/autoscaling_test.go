package autoscaling

import (
	"context"
	"slices"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	kelsonresource "github.com/apikeel/kelson/resource"
)

func newAutoscaler(change func(*autoscalingv2.HorizontalPodAutoscaler)) *autoscalingv2.HorizontalPodAutoscaler {
	h := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "h", Annotations: map[string]string{"a": "b"}}}
	h.Spec.ScaleTargetRef, h.Spec.MaxReplicas = autoscalingv2.CrossVersionObjectReference{Kind: "Deployment", Name: "d", APIVersion: "apps/v1"}, 5
	if change != nil {
		change(h)
	}
	defaultAutoscaler(h)
	return h
}

// everything has all sorts of metrics, and what v1 has no fields for.
func everything(h *autoscalingv2.HorizontalPodAutoscaler) {
	q := func(s string) *resource.Quantity { return ptr.To(resource.MustParse(s)) }
	ref, id := autoscalingv2.CrossVersionObjectReference{Kind: "K", Name: "n"}, autoscalingv2.MetricIdentifier{Name: "m"}
	average := autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: q("2")}
	value := autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: q("3")}
	h.Spec.Metrics = []autoscalingv2.MetricSpec{
		{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{Metric: id, Target: average}},
		{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{DescribedObject: ref, Metric: id, Target: value}},
		{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{DescribedObject: ref, Metric: id, Target: average}},
		{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{Metric: id, Target: value}},
		{Type: autoscalingv2.ContainerResourceMetricSourceType, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
			Name: corev1.ResourceMemory, Container: "c", Target: average,
		}},
		cpuMetric(60),
	}
	h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: &autoscalingv2.HPAScalingRules{Tolerance: q("100m")}}
	h.Status = autoscalingv2.HorizontalPodAutoscalerStatus{
		CurrentReplicas: 1,
		Conditions:      []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: autoscalingv2.AbleToScale, Status: corev1.ConditionTrue, Reason: "r"}},
		CurrentMetrics: []autoscalingv2.MetricStatus{
			{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricStatus{Metric: id, Current: autoscalingv2.MetricValueStatus{AverageValue: q("1")}}},
			{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricStatus{
				Name: corev1.ResourceCPU, Current: autoscalingv2.MetricValueStatus{AverageUtilization: ptr.To[int32](7), AverageValue: q("70m")},
			}},
		},
	}
}

func TestV1(t *testing.T) {
	h := newAutoscaler(everything)
	old, err := toV1(h.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	if *old.Spec.TargetCPUUtilizationPercentage != 60 || *old.Status.CurrentCPUUtilizationPercentage != 7 || len(old.Annotations) != 5 {
		t.Errorf("v1: %+v", old)
	}
	if text := old.Annotations[behaviorAnnotation]; !strings.HasPrefix(text, `{"ScaleUp":{"StabilizationWindowSeconds":0,"SelectPolicy":"Max","Policies":[{"Type":"Pods"`) {
		t.Errorf("behavior: %s", text)
	}
	back, err := fromV1(old)
	if err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(h, back) {
		t.Errorf("became\n%+v\nfrom\n%+v", back, h)
	}
	// Who says nothing means the CPU, and annotations nobody can read are none.
	back, err = fromV1(&autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{metricsAnnotation: "?"}}, Spec: autoscalingv1.HorizontalPodAutoscalerSpec{MaxReplicas: 1}})
	if err != nil || !equality.Semantic.DeepEqual(back.Spec.Metrics, []autoscalingv2.MetricSpec{cpuMetric(defaultUtilization)}) || len(back.Annotations) != 0 {
		t.Errorf("%+v, %v", back, err)
	}
}

func TestValidation(t *testing.T) {
	s := HorizontalPodAutoscalers().Strategy
	for name, test := range map[string]struct {
		change func(*autoscalingv2.HorizontalPodAutoscaler)
		want   []string
	}{
		"valid": {everything, nil},
		"limits": {func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.MaxReplicas = 0 }, []string{
			"spec.maxReplicas: Invalid value: 0: must be greater than or equal to `minReplicas`",
			"spec.maxReplicas: Required value",
		}},
		"to zero": {func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.MinReplicas = ptr.To[int32](0) }, []string{
			"spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas",
		}},
		"no group": {func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.ScaleTargetRef.APIVersion = "v1" }, []string{
			`spec.scaleTargetRef.apiVersion: Invalid value: "v1": apiVersion must specify API group`,
		}},
		"two sources": {func(h *autoscalingv2.HorizontalPodAutoscaler) {
			m := cpuMetric(5)
			m.External = &autoscalingv2.ExternalMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "m"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: ptr.To(resource.MustParse("1"))},
			}
			h.Spec.Metrics = []autoscalingv2.MetricSpec{m}
		}, []string{"spec.metrics[0].external: Forbidden: must populate the given metric source only"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, e := range kelsonresource.DeclaredLast(s.Validate(context.Background(), newAutoscaler(test.change))) {
				got = append(got, e.Error())
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

func TestTargets(t *testing.T) {
	h := newAutoscaler(everything)
	if got, want := targets(h.Spec.Metrics, h.Status.CurrentMetrics), "1/2, <unknown>/3 + 4 more..."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := targets(h.Spec.Metrics[5:], h.Status.CurrentMetrics[1:]), "cpu: 7%/60%"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
