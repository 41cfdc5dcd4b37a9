package controller

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// quotaRefresh is the delay after a change in a namespace before its quotas are
// recalculated, so that many changes cost one calculation.
const quotaRefresh = 50 * time.Millisecond

// Quotas updates status.used of ResourceQuotas. Admission adds the usage of new objects;
// this controller subtracts deleted ones and corrects charges for objects that were not
// committed. measure returns the current usage of the resources that a quota limits.
func Quotas(measure func(ctx context.Context, quota *corev1.ResourceQuota) (corev1.ResourceList, error)) Controller {
	return Controller{Name: "resourcequota-controller", Alias: "resourcequota", Account: "resourcequota-controller", Start: func(env *Env) Observer {
		q := &quotas{Env: env, measure: measure, in: map[string]map[string]bool{}}
		q.queue = NewQueue(env, 4, q.work)
		return q
	}}
}

type quotas struct {
	*Env
	measure func(context.Context, *corev1.ResourceQuota) (corev1.ResourceList, error)
	queue   *Queue[named]

	mu sync.Mutex
	in map[string]map[string]bool // names of quotas by namespace
}

// Observe implements Observer.
func (q *quotas) Observe(changes []Change) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range changes {
		c := &changes[i]
		if !c.Kind.Is("", "resourcequotas") {
			for name := range q.in[c.Namespace] {
				q.queue.AddAfter(named{c.Namespace, name}, quotaRefresh)
			}
			continue
		}
		names := q.in[c.Namespace]
		if c.Gone {
			if delete(names, c.Name); len(names) == 0 {
				delete(q.in, c.Namespace)
			}
			continue
		}
		if names == nil {
			names = map[string]bool{}
			q.in[c.Namespace] = names
		}
		names[c.Name] = true
		q.queue.Add(named{c.Namespace, c.Name})
	}
}

func (q *quotas) work(ctx context.Context, key named) error {
	kind := q.Kind("v1", "ResourceQuota")
	var quota corev1.ResourceQuota
	if err := q.Get(ctx, kind, key.namespace, key.name, &quota); err != nil {
		return ignoreNotFound(err)
	}
	next := corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{}}
	// Resources that measure does not return keep what admission has charged.
	for name := range quota.Spec.Hard {
		if was, ok := quota.Status.Used[name]; ok {
			next.Used[name] = was
		}
	}
	measured := quota
	measured.Status.Hard = quota.Spec.Hard
	used, err := q.measure(ctx, &measured)
	if err != nil {
		return err
	}
	for name, quantity := range used {
		next.Used[name] = quantity
	}
	if quota.Status.Hard != nil && quota.Status.Used != nil && equality.Semantic.DeepEqual(next, quota.Status) {
		return nil
	}
	quota.Status = next
	return mapOutdated(q.Update(ctx, kind, key.namespace, key.name, "status", &quota, nil))
}
