package core

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// podTarget is a pod with its budgets, nil budgets for a server that does not
// know the kind.
type podTarget struct {
	pod     *corev1.Pod
	budgets []resource.Object
	deleted bool
}

func (t *podTarget) Namespace() string { return t.pod.Namespace }
func (t *podTarget) Name() string      { return t.pod.Name }

func (t *podTarget) Get(context.Context) (resource.Object, error) { return t.pod.DeepCopy(), nil }

func (t *podTarget) Update(_ context.Context, change func(resource.Object) error) (resource.Object, error) {
	pod := t.pod.DeepCopy()
	if err := change(pod); err != nil {
		return nil, err
	}
	version, _ := strconv.Atoi(pod.ResourceVersion)
	pod.ResourceVersion = strconv.Itoa(version + 1)
	t.pod = pod
	return pod.DeepCopy(), nil
}

func (t *podTarget) Delete(_ context.Context, opts *metav1.DeleteOptions) (runtime.Object, error) {
	if p := opts.Preconditions; p != nil && p.ResourceVersion != nil && *p.ResourceVersion != t.pod.ResourceVersion {
		return nil, apierrors.NewConflict(corev1.Resource("pods"), t.pod.Name, errors.New("changed"))
	}
	t.deleted = len(opts.DryRun) == 0
	return t.pod, nil
}

func (t *podTarget) Other(group, name string) (resource.Others, error) {
	if t.budgets == nil || group != "policy" || name != "poddisruptionbudgets" {
		return nil, errors.New("no such resource")
	}
	return budgetLister{t}, nil
}

type budgetLister struct{ t *podTarget }

func (l budgetLister) Get(context.Context, string, string) (resource.Object, error) {
	return l.t.budgets[0], nil
}

func (l budgetLister) List(context.Context, string) ([]resource.Object, error) {
	return l.t.budgets, nil
}

func (l budgetLister) Update(_ context.Context, _, _ string, change func(resource.Object) error) (resource.Object, error) {
	return l.t.budgets[0], change(l.t.budgets[0])
}

func targetPod(change func(*corev1.Pod)) *podTarget {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "p", Namespace: "ns", UID: "u", ResourceVersion: "7", Labels: map[string]string{"app": "a"},
	}}
	change(pod)
	return &podTarget{pod: pod}
}

func TestBinding(t *testing.T) {
	binding := func(change func(*corev1.Binding)) *corev1.Binding {
		b := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
		change(b)
		return b
	}
	for _, c := range []struct {
		name    string
		binding func(*corev1.Binding)
		pod     func(*corev1.Pod)
		code    int32
		message string
	}{
		{"good", func(*corev1.Binding) {}, func(*corev1.Pod) {}, 0, ""},
		{"other name", func(b *corev1.Binding) { b.Name = "q" }, func(*corev1.Pod) {}, 400, "name in URL does not match name in Binding object"},
		{"no node", func(b *corev1.Binding) { b.Target.Name = "" }, func(*corev1.Pod) {}, 500, "target.name: Required value"},
		{"no such kind", func(b *corev1.Binding) { b.Target.Kind = "Pod" }, func(*corev1.Pod) {}, 500, `target.kind: Unsupported value: "Pod": supported values: "Node", "<empty>"`},
		{"other pod", func(b *corev1.Binding) { b.UID = "w" }, func(*corev1.Pod) {}, 409, "Precondition failed: UID in precondition: w, UID in object meta: u"},
		{"bound", func(*corev1.Binding) {}, func(p *corev1.Pod) { p.Spec.NodeName = "m" }, 409, `pods/binding "p": pod p is already assigned to node "m"`},
		{"gated", func(*corev1.Binding) {}, func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }, 409, "pod p has non-empty .spec.schedulingGates"},
		{"going", func(*corev1.Binding) {}, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, 409, "pod p is being deleted, cannot be assigned to a host"},
	} {
		target := targetPod(c.pod)
		_, err := bindPod(context.Background(), target, binding(c.binding))
		checkStatus(t, c.name, err, c.code, c.message)
		if err == nil && (target.pod.Spec.NodeName != "n" || podCondition(&target.pod.Status, corev1.PodScheduled) == nil) {
			t.Errorf("%s: not bound: %v", c.name, target.pod)
		}
	}
}

func checkStatus(t *testing.T, name string, err error, code int32, message string) {
	t.Helper()
	if code == 0 {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code != code {
		t.Errorf("%s: got %v, want code %d", name, err, code)
		return
	}
	text := status.Status().Message
	if status.Status().Details != nil {
		text += fmt.Sprint(status.Status().Details.Causes)
	}
	if !strings.Contains(text, message) {
		t.Errorf("%s: got %q, want %q", name, text, message)
	}
}

func TestEviction(t *testing.T) {
	ready := func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	unready := func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }
	budget := func(s policyv1.PodDisruptionBudgetStatus) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "ns", Generation: 1},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}},
			Status:     s,
		}
	}
	spent := policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, CurrentHealthy: 1, DesiredHealthy: 1}
	other := budget(spent)
	other.Spec.Selector.MatchLabels["app"] = "other"
	always := budget(policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DesiredHealthy: 1})
	always.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow)
	allowing := budget(policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 1})

	for _, c := range []struct {
		name    string
		pod     func(*corev1.Pod)
		budgets []resource.Object
		opts    *metav1.DeleteOptions
		code    int32
		message string
	}{
		{"without budgets", ready, nil, nil, 0, ""},
		{"another's budget", ready, []resource.Object{other}, nil, 0, ""},
		{"pending", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, []resource.Object{budget(spent)}, nil, 0, ""},
		{"over", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, []resource.Object{budget(spent)}, nil, 0, ""},
		{"allowed", ready, []resource.Object{allowing}, nil, 0, ""},
		{"spent", ready, []resource.Object{budget(spent)}, nil, 429, "The disruption budget b needs 1 healthy pods and has 1 currently"},
		{"not seen yet", ready, []resource.Object{budget(policyv1.PodDisruptionBudgetStatus{})}, nil, 429, "The disruption budget b is still being processed by the server."},
		{"two budgets", ready, []resource.Object{budget(spent), budget(spent)}, nil, 500, "more than one PodDisruptionBudget"},
		{"negative", ready, []resource.Object{budget(policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: -1})}, nil, 403, "pdb disruptions allowed is negative"},
		{"unready, enough others", unready, []resource.Object{budget(spent)}, nil, 0, ""},
		{"unready, always", unready, []resource.Object{always}, nil, 0, ""},
		{"other pod", ready, nil, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("w"))}}, 409,
			`on Pod "p": the UID in the precondition (w) does not match the UID in record (u)`},
		{"other version", ready, nil, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: ptr.To("1")}}, 409,
			"the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (7)"},
		{"same version", ready, nil, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: ptr.To("7")}}, 0, ""},
	} {
		target := targetPod(c.pod)
		target.budgets = c.budgets
		_, err := evictPod(context.Background(), target, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}, DeleteOptions: c.opts})
		checkStatus(t, c.name, err, c.code, c.message)
		if target.deleted != (c.code == 0) {
			t.Errorf("%s: deleted: %v", c.name, target.deleted)
		}
		if target.deleted && podCondition(&target.pod.Status, corev1.DisruptionTarget) == nil {
			t.Errorf("%s: the pod does not say why it goes", c.name)
		}
	}
	if _, noted := allowing.Status.DisruptedPods["p"]; allowing.Status.DisruptionsAllowed != 0 || !noted {
		t.Errorf("the budget is not spent: %+v", allowing.Status)
	}

	target := targetPod(ready)
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}
	if _, err := evictPod(context.Background(), target, eviction); err != nil || target.deleted || target.pod.ResourceVersion != "7" {
		t.Errorf("dry run: %v, %+v", err, target)
	}
	eviction.DeleteOptions.DryRun = []string{"Some"}
	dry := request.With(context.Background(), &request.Request{DryRun: true})
	if _, err := evictPod(dry, target, eviction); err == nil || !strings.HasSuffix(err.Error(), "content: [All] and [Some]") {
		t.Errorf("two kinds of dry run: %v", err)
	}
}
