package core

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/internal/recorded"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// podCase is a dry-run request about a pod, or about a pod template, and what
// kube-apiserver v1.37 answers without admission plugins.
type podCase struct {
	// Op: create, template, update, or the name of a subresource.
	Op string `json:"op"`
	// Old is the pod that is updated.
	Old  json.RawMessage `json:"old"`
	Body json.RawMessage `json:"body"`
	// Causes of a refusal, each with reason, field and message.
	Causes []string `json:"causes"`
	// Object and Warnings of an acceptance.
	Object   map[string]any `json:"object"`
	Warnings []string       `json:"warnings"`
}

func TestPodAnswers(t *testing.T) {
	for i, c := range recorded.Read[podCase](t, "testdata/pods.jsonl.gz") {
		n := i + 1
		object, errs, warnings := c.run(t)
		if got := causes(errs); !slices.Equal(got, c.Causes) {
			t.Errorf("line %d (%s):\n got  %q\n want %q\n body %s", n, c.Op, got, c.Causes, c.Body)
			continue
		}
		if len(errs) > 0 {
			continue
		}
		if got := steady(t, object); !reflect.DeepEqual(got, c.Object) {
			t.Errorf("line %d (%s):\n got  %v\n want %v", n, c.Op, got, c.Object)
		}
		if !slices.Equal(warnings, c.Warnings) {
			t.Errorf("line %d (%s):\n got  %q\n want %q", n, c.Op, warnings, c.Warnings)
		}
	}
}

// run does what the verbs do around the strategy.
func (c *podCase) run(t *testing.T) (any, field.ErrorList, []string) {
	t.Helper()
	decode := func(text []byte, into any) {
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatal(err)
		}
	}
	if c.Op == "template" {
		var pt corev1.PodTemplate
		decode(c.Body, &pt)
		pt.Generation = 1
		podspec.DefaultTemplate(&pt.Template)
		podspec.DropDisabledTemplateFields(t.Context(), &pt.Template, nil)
		path := field.NewPath("template")
		errs := podspec.ValidateTemplate(t.Context(), &pt.Template, path, nil)
		if len(errs) > 0 {
			return nil, errs, nil
		}
		return &pt, nil, podspec.TemplateWarnings(&pt.Template, nil, path)
	}

	def := Pods()
	strategy := def.Strategy
	for _, s := range def.Subresources {
		if s.Name == c.Op {
			strategy = *s.Part
		}
	}
	req := &request.Request{Received: time.Now(), Warned: &request.Warnings{}}
	ctx := request.With(context.Background(), req)
	pod, meta := &corev1.Pod{}, field.NewPath("metadata")
	decode(c.Body, pod)
	def.Versions[0].Default(pod)
	var old *corev1.Pod
	var errs field.ErrorList
	if c.Op == "create" {
		pod.Namespace, pod.Generation = "default", 1
		strategy.PrepareCreate(ctx, pod)
		errs = strategy.Validate(ctx, pod)
	} else {
		old = &corev1.Pod{}
		decode(c.Old, old)
		before := old.DeepCopy()
		strategy.PrepareUpdate(ctx, pod, old)
		if strategy.Generation != nil && strategy.Generation(pod, old) {
			pod.Generation = old.Generation + 1
		}
		errs = append(apivalidation.ValidateObjectMetaUpdate(&pod.ObjectMeta, &old.ObjectMeta, meta), strategy.ValidateUpdate(ctx, pod, old)...)
		if !reflect.DeepEqual(before, old) {
			t.Errorf("%s changes the old pod", c.Op)
		}
	}
	errs = append(errs, apivalidation.ValidateObjectMeta(&pod.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, meta)...)
	if len(errs) == 0 && strategy.Warnings != nil {
		var was resource.Object
		if old != nil {
			was = old
		}
		for _, w := range strategy.Warnings(ctx, pod, was) {
			req.Warn(w)
		}
	}
	return pod, errs, req.Warnings()
}

// causes are the details of an error, sorted and each once.
func causes(errs field.ErrorList) []string {
	var list []string
	for _, c := range apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "", errs).ErrStatus.Details.Causes {
		list = append(list, fmt.Sprintf("%s|%s|%s", c.Type, c.Field, c.Message))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// steady drops what differs from one server to the next.
func steady(t *testing.T, object any) map[string]any {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	delete(m, "apiVersion")
	delete(m, "kind")
	for _, name := range []string{"uid", "creationTimestamp", "managedFields", "resourceVersion", "namespace"} {
		delete(m["metadata"].(map[string]any), name)
	}
	if status, ok := m["status"].(map[string]any); ok {
		conditions, _ := status["conditions"].([]any)
		for _, c := range conditions {
			delete(c.(map[string]any), "lastTransitionTime")
		}
	}
	return m
}

func TestPodGracePeriod(t *testing.T) {
	pod := func(node string, phase corev1.PodPhase, seconds *int64) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: seconds}, Status: corev1.PodStatus{Phase: phase}}
	}
	for _, c := range []struct {
		name  string
		pod   *corev1.Pod
		asked *int64
		want  int64
	}{
		{"not scheduled", pod("", corev1.PodPending, ptr.To[int64](30)), nil, 0},
		{"over", pod("n", corev1.PodSucceeded, ptr.To[int64](30)), ptr.To[int64](9), 0},
		{"its own", pod("n", corev1.PodRunning, ptr.To[int64](30)), nil, 30},
		{"asked for", pod("n", corev1.PodRunning, ptr.To[int64](30)), ptr.To[int64](9), 9},
		{"at once", pod("n", corev1.PodRunning, ptr.To[int64](30)), ptr.To[int64](0), 0},
		{"negative", pod("n", corev1.PodRunning, ptr.To[int64](-5)), nil, 1},
		{"none", pod("n", corev1.PodRunning, nil), nil, 0},
	} {
		if got := podGracePeriod(c.pod, c.asked); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

func TestPodCells(t *testing.T) {
	container := func(name string) corev1.Container { return corev1.Container{Name: name} }
	ended := func(code int32, reason string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}}
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for _, c := range []struct {
		name string
		pod  corev1.Pod
		want string // ready, status, restarts
	}{
		{"new", corev1.Pod{
			Spec:   corev1.PodSpec{Containers: []corev1.Container{container("a")}},
			Status: corev1.PodStatus{Phase: corev1.PodPending},
		}, "0/1 Pending 0"},
		{"gated", corev1.Pod{
			Spec: corev1.PodSpec{Containers: []corev1.Container{container("a")}},
			Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Reason: corev1.PodReasonSchedulingGated},
			}},
		}, "0/1 SchedulingGated 0"},
		{"restarted", corev1.Pod{
			Spec: corev1.PodSpec{Containers: []corev1.Container{container("a")}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
				Name: "a", Ready: true, State: running, RestartCount: 3, LastTerminationState: corev1.ContainerState{
					Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(time.Now().Add(-5*time.Minute - time.Second))},
				},
			}}},
		}, "1/1 Running 3 (5m1s ago)"},
		{"initializing", corev1.Pod{
			Spec: corev1.PodSpec{Containers: []corev1.Container{container("a")}, InitContainers: []corev1.Container{container("i"), container("j")}},
			Status: corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{
				{Name: "i", State: ended(0, "Completed")}, {Name: "j", State: running},
			}},
		}, "0/1 Init:1/2 0"},
		{"failed init", corev1.Pod{
			Spec: corev1.PodSpec{Containers: []corev1.Container{container("a")}, InitContainers: []corev1.Container{container("i")}},
			Status: corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{
				{Name: "i", State: ended(2, ""), RestartCount: 1},
			}},
		}, "0/1 Init:ExitCode:2 1"},
		{"one of two completed", corev1.Pod{
			Spec: corev1.PodSpec{Containers: []corev1.Container{container("a"), container("b")}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
				{Name: "a", State: ended(0, "Completed")}, {Name: "b", Ready: true, State: running},
			}},
		}, "1/2 NotReady 0"},
		{"going", corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: time.Now()}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{container("a")}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning},
		}, "0/1 Terminating 0"},
	} {
		cells := podCells(&c.pod)
		if got := fmt.Sprint(cells[1], " ", cells[2], " ", cells[3]); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		if len(cells) != len(podColumns()) {
			t.Errorf("%s: %d cells", c.name, len(cells))
		}
	}
}
