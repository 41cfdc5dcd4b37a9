package policy

import (
	"context"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/apikeel/kelson/request"
)

func TestValidation(t *testing.T) {
	half, one := intstr.FromString("150%"), intstr.FromInt32(1)
	b := &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &half, MaxUnavailable: &one}}
	errs := PodDisruptionBudgets().Strategy.Validate(context.Background(), b)
	want := `[spec: Invalid value: {"MinAvailable":"150%","Selector":null,"MaxUnavailable":1,"UnhealthyPodEvictionPolicy":null}: minAvailable and maxUnavailable cannot be both set, ` +
		`spec.minAvailable: Invalid value: "150%": must not be greater than 100%]`
	if got := errs.ToAggregate().Error(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestStatusVersions: only v1 has rules about the numbers.
func TestStatusVersions(t *testing.T) {
	status := PodDisruptionBudgets().Subresources[0].Part
	b := &policyv1.PodDisruptionBudget{Status: policyv1.PodDisruptionBudgetStatus{ExpectedPods: -1}}
	for version, want := range map[string]int{"v1": 1, "v1beta1": 0} {
		ctx := request.With(context.Background(), &request.Request{Info: request.Info{Version: version}})
		if errs := status.ValidateUpdate(ctx, b, b); len(errs) != want {
			t.Errorf("%s: %v", version, errs)
		}
	}
}

// TestSelectors: an empty selector selects nothing in v1beta1 and everything in
// v1.
func TestSelectors(t *testing.T) {
	v, web := budgetsV1beta1(), &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	for name, test := range map[string]struct{ old, hub *metav1.LabelSelector }{
		"none":       {nil, nil},
		"nothing":    {&metav1.LabelSelector{}, matchNothing()},
		"everything": {matchEverything(), &metav1.LabelSelector{}},
		"some":       {web, web},
	} {
		hub, err := v.ToHub(&policyv1beta1.PodDisruptionBudget{Spec: policyv1beta1.PodDisruptionBudgetSpec{Selector: test.old}})
		if err != nil {
			t.Fatal(err)
		}
		if got := hub.(*policyv1.PodDisruptionBudget).Spec.Selector; !equality.Semantic.DeepEqual(got, test.hub) {
			t.Errorf("%s: became %v", name, got)
		}
		old, err := v.FromHub(hub)
		if err != nil {
			t.Fatal(err)
		}
		if got := old.(*policyv1beta1.PodDisruptionBudget).Spec.Selector; !equality.Semantic.DeepEqual(got, test.old) {
			t.Errorf("%s: came back as %v", name, got)
		}
	}
	mixed := matchNothing()
	mixed.MatchLabels = web.MatchLabels
	b := &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{Selector: mixed}}
	PodDisruptionBudgets().Strategy.PrepareCreate(context.Background(), b)
	if len(b.Spec.Selector.MatchExpressions) != 0 {
		t.Errorf("the reserved label stays: %v", b.Spec.Selector)
	}
}
