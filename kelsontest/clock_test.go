package kelsontest_test

import (
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/apikeel/kelson/kelsontest"
)

// What the server itself stamps, in the background too, has the time of the
// clock.
func TestClockStamps(t *testing.T) {
	s := kelsontest.Start(t)
	c := client(t, s.Config())
	all, err := dynamic.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2020, 2, 29, 12, 0, 0, 0, time.UTC)
	s.Clock().Freeze(at)

	if err := s.Apply(t.Context(), "testdata/crds/widgets.yaml"); err != nil {
		t.Fatal(err)
	}
	conditions := func(group, version, resource, name string, many int) {
		t.Helper()
		polltest.Until(t, name+" has its conditions", func() bool {
			obj, err := all.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: resource}).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return false
			}
			found, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
			if len(found) < many {
				return false
			}
			for _, c := range found {
				if got := c.(map[string]any)["lastTransitionTime"]; got != at.Format(time.RFC3339) {
					t.Errorf("%s: a condition is of %v", name, got)
				}
			}
			for _, e := range obj.GetManagedFields() {
				if !e.Time.Time.Equal(at) {
					t.Errorf("%s: %s set fields at %v", name, e.Manager, e.Time)
				}
			}
			return true
		})
	}
	conditions("apiextensions.k8s.io", "v1", "customresourcedefinitions", "widgets.example.com", 2)
	conditions("apiregistration.k8s.io", "v1", "apiservices", "v1.example.com", 1)

	_, err = c.FlowcontrolV1().FlowSchemas().Create(t.Context(), &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "lost"},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "nowhere"}, MatchingPrecedence: 5000,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	conditions(flowcontrolv1.GroupName, "v1", "flowschemas", "lost", 1)

	me, err := c.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || !me.CreationTimestamp.Time.Equal(at) {
		t.Errorf("who am I, of %v: %v", me.CreationTimestamp, err)
	}
}

// What was to be kept for a time goes when the clock says so.
func TestClockExpires(t *testing.T) {
	s := kelsontest.Start(t)
	jobs := client(t, s.Config()).BatchV1().Jobs("default")
	at := metav1.NewTime(time.Date(2020, 2, 29, 12, 0, 0, 0, time.UTC))
	s.Clock().Freeze(at.Time)
	job, err := jobs.Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec: batchv1.JobSpec{TTLSecondsAfterFinished: new(int32(3600)), Template: corev1.PodTemplateSpec{
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	job.Status.StartTime, job.Status.CompletionTime = &at, &at
	for _, name := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{
			Type: name, Status: corev1.ConditionTrue, LastTransitionTime: at, LastProbeTime: at,
		})
	}
	if _, err := jobs.UpdateStatus(t.Context(), job, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Clock().Advance(59 * time.Minute)
	if _, err := jobs.Get(t.Context(), "job", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	s.Clock().Advance(2 * time.Minute)
	polltest.Until(t, "the job goes", func() bool {
		list, err := jobs.List(t.Context(), metav1.ListOptions{})
		return err == nil && (len(list.Items) == 0 || list.Items[0].DeletionTimestamp != nil)
	})
}
