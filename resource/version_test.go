package resource

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	batchv1beta1 "k8s.io/api/batch/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestAlikeVersion(t *testing.T) {
	kind := batchv1beta1.SchemeGroupVersion.WithKind("CronJob")
	v := AlikeVersion[batchv1beta1.CronJob, batchv1beta1.CronJobList, batchv1.CronJob](kind,
		func(c *batchv1.CronJob) { c.Spec.ConcurrencyPolicy = batchv1.ForbidConcurrent },
		func(old *batchv1beta1.CronJob, hub *batchv1.CronJob) { hub.Spec.TimeZone = ptr.To("to " + old.Name) },
		func(hub *batchv1.CronJob, old *batchv1beta1.CronJob) { old.Spec.Schedule = "from " + hub.Name })
	if !v.Off || v.Name != "v1beta1" || v.Group != "batch" {
		t.Errorf("version: %+v", v)
	}
	if want := "batch/v1beta1 CronJob is deprecated in v1.21+, unavailable in v1.25+; use batch/v1 CronJob"; v.Deprecation != want {
		t.Errorf("got %q, want %q", v.Deprecation, want)
	}
	old := &batchv1beta1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "c", Labels: map[string]string{"a": "b"}},
		Spec:       batchv1beta1.CronJobSpec{Schedule: "@daily", Suspend: ptr.To(true), FailedJobsHistoryLimit: ptr.To[int32](4)},
	}
	v.Default(old)
	if old.Spec.ConcurrencyPolicy != batchv1beta1.ForbidConcurrent || old.Spec.Schedule != "from c" {
		t.Errorf("defaults: %+v", old.Spec)
	}
	obj, err := v.ToHub(old)
	hub := obj.(*batchv1.CronJob)
	if err != nil || hub.Labels["a"] != "b" || !*hub.Spec.Suspend || *hub.Spec.FailedJobsHistoryLimit != 4 ||
		hub.Spec.ConcurrencyPolicy != batchv1.ForbidConcurrent || *hub.Spec.TimeZone != "to c" {
		t.Errorf("%+v, %v", hub, err)
	}
	if hub := VersionOf[batchv1.CronJob, batchv1.CronJobList]("v1", nil); Deprecation(hub.New(), batchv1.SchemeGroupVersion.WithKind("CronJob")) != "" {
		t.Error("the hub is deprecated")
	}
}
