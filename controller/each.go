package controller

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// each is an Observer that queues every object of a resource whenever it changes.
type each struct {
	group, resource string
	queue           *Queue[named]
}

// onEach calls work for every object of a resource, until it is being deleted.
func onEach(env *Env, workers int, group, resource string, work func(ctx context.Context, key named) error) *each {
	return &each{group, resource, NewQueue(env, workers, work)}
}

// Observe implements Observer.
func (e *each) Observe(changes []Change) {
	for i := range changes {
		if c := &changes[i]; !c.Gone && !c.Deleting && c.Kind.Is(e.group, e.resource) {
			e.queue.Add(named{c.Namespace, c.Name})
		}
	}
}

// expire deletes an object if at has passed, and otherwise queues the object again for
// that time. The zero time is never.
func (e *Env) expire(ctx context.Context, q *Queue[named], key named, kind *Kind, at time.Time, opts *metav1.DeleteOptions) error {
	if at.IsZero() {
		return nil
	}
	if left := at.Sub(e.Now()); left > 0 {
		q.AddAfter(key, left)
		return nil
	}
	return mapOutdated(e.Delete(ctx, kind, key.namespace, key.name, opts))
}

// ifUnchanged returns options that delete an object only if its uid and resourceVersion are
// unchanged.
func ifUnchanged(m *metav1.ObjectMeta) *metav1.DeleteOptions {
	return &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &m.UID, ResourceVersion: &m.ResourceVersion}}
}
