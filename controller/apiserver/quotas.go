package apiserver

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/quota"
	"github.com/apikeel/kelson/controller"
)

// QuotaRecounts returns a function that begins a recount of what is used of what a quota limits, for
// controller.Quotas.
func (s *Server) QuotaRecounts(charges *quota.Ledger, feed controller.Feed, objects admission.Objects, settings quota.Settings) func(namespace, name string) controller.QuotaRecount {
	count := s.quotaUsage(feed, objects, settings)
	return func(namespace, name string) controller.QuotaRecount {
		return recount{charges.Recount(namespace, name), count}
	}
}

// recount implements controller.QuotaRecount.
type recount struct {
	*quota.Recount
	count func(context.Context, *corev1.ResourceQuota) (corev1.ResourceList, error)
}

func (r recount) Used(ctx context.Context, q *corev1.ResourceQuota) (corev1.ResourceList, time.Duration, error) {
	counted, err := r.count(ctx, q)
	if err != nil {
		return nil, 0, err
	}
	return r.Recount.Used(ctx, q.Status.Used, counted)
}

// quotaUsage returns a function that counts the objects of a quota. Resources of which a namespace has no
// objects are not loaded for that.
func (s *Server) quotaUsage(feed controller.Feed, objects admission.Objects, settings quota.Settings) func(context.Context, *corev1.ResourceQuota) (corev1.ResourceList, error) {
	return func(ctx context.Context, q *corev1.ResourceQuota) (corev1.ResourceList, error) {
		kinds, err := feed.Kinds(ctx)
		if err != nil {
			return nil, err
		}
		used := corev1.ResourceList{}
		for _, k := range kinds {
			evaluator := settings.For(ctx, objects, k.Group, k.Resource)
			if !k.Namespaced || evaluator == nil {
				continue
			}
			names := evaluator.Counted(q.Spec.Hard)
			if len(names) == 0 {
				continue
			}
			for _, name := range names {
				if _, ok := used[name]; !ok {
					used[name] = apiresource.Quantity{Format: q.Spec.Hard.Name(name, apiresource.DecimalSI).Format}
				}
			}
			holds, err := feed.Holds(ctx, k, q.Namespace)
			if err != nil {
				return nil, err
			}
			if !holds {
				continue
			}
			all, err := s.Objects(serverManager, k.Group, k.Resource).List(ctx, q.Namespace)
			if err != nil {
				return nil, err
			}
			for _, obj := range all {
				matches, err := evaluator.Matches(q, obj)
				if err != nil {
					return nil, err
				}
				if !matches {
					continue
				}
				usage := evaluator.Usage(obj)
				for _, name := range names {
					if quantity, ok := usage[name]; ok {
						sum := used[name]
						sum.Add(quantity)
						used[name] = sum
					}
				}
			}
		}
		return used, nil
	}
}
