package controller

import (
	"context"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TTLAfterFinished deletes finished jobs after spec.ttlSecondsAfterFinished.
func TTLAfterFinished() Controller {
	return Controller{Name: "ttl-after-finished-controller", Alias: "ttl-after-finished", Account: "ttl-after-finished-controller", Start: func(env *Env) Observer {
		var e *each
		e = onEach(env, 2, batchv1.GroupName, "jobs", func(ctx context.Context, key named) error {
			kind := env.Kind("batch/v1", "Job")
			if kind == nil {
				return nil
			}
			var job batchv1.Job
			if err := env.Get(ctx, kind, key.namespace, key.name, &job); err != nil {
				return ignoreNotFound(err)
			}
			finished := finishedAt(&job)
			if job.DeletionTimestamp != nil || job.Spec.TTLSecondsAfterFinished == nil || finished.IsZero() {
				return nil
			}
			opts := ifUnchanged(&job.ObjectMeta)
			opts.PropagationPolicy = new(metav1.DeletePropagationForeground)
			return env.expire(ctx, e.queue, key, kind, finished.Add(time.Duration(*job.Spec.TTLSecondsAfterFinished)*time.Second), opts)
		})
		return e
	}}
}

// finishedAt returns when a job completed or failed; zero if it did neither.
func finishedAt(job *batchv1.Job) time.Time {
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}
