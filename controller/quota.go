package controller

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// quotaRefresh is the delay after a change in a namespace before its quotas are
// recalculated, so that many changes cost one calculation.
const quotaRefresh = 50 * time.Millisecond

// QuotasName is the name of the controller of ResourceQuotas.
const QuotasName = "resourcequota-controller"

// QuotaRecount is a calculation of the usage of a quota. It begins before the quota is read.
type QuotaRecount interface {
	// Used returns the usage of what a quota limits, and after which time it is to be calculated again
	// because writes that are charged may not be committed yet; 0 is never.
	Used(ctx context.Context, quota *corev1.ResourceQuota) (used corev1.ResourceList, again time.Duration, err error)
	// Wrote notes the version of the quota that was written with it.
	Wrote(version string)
	// End ends the recount.
	End()
}

// Quotas updates status.used of ResourceQuotas. Admission adds the usage of new objects;
// this controller subtracts deleted ones and corrects charges for objects that were not
// committed. It never erases the charge of a write that may still be committed: recount sees to that.
func Quotas(recount func(namespace, name string) QuotaRecount) Controller {
	return Controller{Name: QuotasName, Alias: "resourcequota", Account: "resourcequota-controller", Start: func(env *Env) Observer {
		q := &quotas{Env: env, recount: recount, in: map[string]map[string]bool{}}
		q.queue = NewQueue(env, 4, q.work)
		return q
	}}
}

type quotas struct {
	*Env
	recount func(namespace, name string) QuotaRecount
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
	recount := q.recount(key.namespace, key.name)
	defer recount.End()
	var quota corev1.ResourceQuota
	if err := q.Get(ctx, kind, key.namespace, key.name, &quota); err != nil {
		return ignoreNotFound(err)
	}
	next := corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{}}
	// Resources that are not counted keep what admission has charged.
	for name := range quota.Spec.Hard {
		if was, ok := quota.Status.Used[name]; ok {
			next.Used[name] = was
		}
	}
	measured := quota
	measured.Status.Hard = quota.Spec.Hard
	used, again, err := recount.Used(ctx, &measured)
	if err != nil {
		return err
	}
	if again > 0 {
		q.queue.AddAfter(key, max(again, quotaRefresh))
	}
	maps.Copy(next.Used, used)
	if quota.Status.Hard != nil && quota.Status.Used != nil && equality.Semantic.DeepEqual(next, quota.Status) {
		return nil
	}
	quota.Status = next
	var written metav1.PartialObjectMetadata
	if err := q.Update(ctx, kind, key.namespace, key.name, "status", &quota, &written); err != nil {
		return mapOutdated(err)
	}
	recount.Wrote(written.ResourceVersion)
	return nil
}
