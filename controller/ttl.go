package controller

import (
	"context"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TTLAfterFinished deletes jobs that have finished when the time is up for which
// they were to be kept.
func TTLAfterFinished() Controller {
	return Controller{Name: "ttl-after-finished-controller", Alias: "ttl-after-finished", Account: "ttl-after-finished-controller", Start: func(env *Env) Observer {
		t := &ttl{Env: env}
		t.queue = NewQueue(env, 2, t.work)
		return t
	}}
}

type ttl struct {
	*Env
	queue *Queue[named]
}

// Observe implements Observer.
func (t *ttl) Observe(changes []Change) {
	for i := range changes {
		if c := &changes[i]; !c.Gone && !c.Deleting && c.Kind.Is(batchv1.GroupName, "jobs") {
			t.queue.Add(named{c.Namespace, c.Name})
		}
	}
}

func (t *ttl) work(ctx context.Context, key named) error {
	kind := t.Kind("batch/v1", "Job")
	if kind == nil {
		return nil
	}
	var job batchv1.Job
	if err := t.Get(ctx, kind, key.namespace, key.name, &job); err != nil {
		return ignoreNotFound(err)
	}
	finished := finishedAt(&job)
	if job.DeletionTimestamp != nil || job.Spec.TTLSecondsAfterFinished == nil || finished.IsZero() {
		return nil
	}
	left := finished.Add(time.Duration(*job.Spec.TTLSecondsAfterFinished) * time.Second).Sub(t.Now())
	if left > 0 {
		t.queue.AddAfter(key, left)
		return nil
	}
	policy := metav1.DeletePropagationForeground
	return outdated(t.Delete(ctx, kind, key.namespace, key.name, &metav1.DeleteOptions{
		PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &job.UID, ResourceVersion: &job.ResourceVersion},
	}))
}

// finishedAt returns when a job was done, in whatever way; zero if it is not.
func finishedAt(job *batchv1.Job) time.Time {
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}
