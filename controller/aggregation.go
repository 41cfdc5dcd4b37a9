package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// aggregateAfter is the delay after a change of a ClusterRole: the first start of a
// server creates many at once.
const aggregateAfter = 20 * time.Millisecond

// AggregationName is the name of the controller Aggregation, and of the field manager
// of the rules that it sets.
const AggregationName = "clusterrole-aggregation-controller"

// Aggregation sets the rules of ClusterRoles with an aggregationRule. written reports
// whether a revision is that of a ClusterRole which this server has created as one of a
// set that is aggregated already: after these alone there is nothing to do. It may be nil.
func Aggregation(written func(revision int64) bool) Controller {
	const name = AggregationName
	return Controller{Name: name, Alias: "clusterrole-aggregation", Account: name, Start: func(env *Env) Observer {
		a := &aggregation{}
		a.queue = NewQueue(env, 1, func(ctx context.Context, _ struct{}) error {
			kind := env.Kind("rbac.authorization.k8s.io/v1", "ClusterRole")
			if kind == nil || written != nil && a.changedOnlyBy(written) {
				return nil
			}
			_, err := AggregateRoles(ctx, env.Client, kind)
			return err
		})
		return a
	}}
}

// AggregateRoles sets the rules of all ClusterRoles with an aggregationRule, and reports
// whether some have changed. What they have of each other is set by further calls.
func AggregateRoles(ctx context.Context, client *Client, kind *Kind) (changed bool, failed error) {
	var roles rbacv1.ClusterRoleList
	if err := client.List(ctx, kind, "", &roles); err != nil {
		return false, err
	}
	slices.SortFunc(roles.Items, func(a, b rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) })
	for i := range roles.Items {
		role := &roles.Items[i]
		if role.AggregationRule == nil {
			continue
		}
		rules, err := aggregate(role, roles.Items)
		if err == nil && !equality.Semantic.DeepEqual(rules, role.Rules) {
			changed = true
			err = ignoreNotFound(client.Apply(ctx, kind, "", role.Name, AggregationName, map[string]any{
				"apiVersion": kind.APIVersion(), "kind": kind.Kind, "metadata": map[string]any{"name": role.Name}, "rules": rules,
			}))
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", role.Name, err))
		}
	}
	return changed, failed
}

type aggregation struct {
	queue *Queue[struct{}]

	mu        sync.Mutex
	revisions []int64 // of changes since the last run, maxRevisions at most
}

// maxRevisions is more than the number of ClusterRoles that a server creates itself.
const maxRevisions = 1000

// Observe implements Observer.
func (a *aggregation) Observe(changes []Change) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range changes {
		if changes[i].Kind.Is(rbacv1.GroupName, "clusterroles") && len(a.revisions) < maxRevisions {
			a.revisions = append(a.revisions, changes[i].Revision)
		}
	}
	if len(a.revisions) > 0 {
		a.queue.AddAfter(struct{}{}, aggregateAfter)
	}
}

// changedOnlyBy reports whether all changes since the last call are writes that written
// knows, and forgets them. A run that failed is tried again without any.
func (a *aggregation) changedOnlyBy(written func(revision int64) bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	others := len(a.revisions) == 0
	for _, revision := range a.revisions {
		others = !written(revision) || others
	}
	a.revisions = nil
	return !others
}

// aggregate returns the rules of the roles that the aggregationRule selects.
func aggregate(role *rbacv1.ClusterRole, all []rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	rules := []rbacv1.PolicyRule{}
	seen := map[string]bool{}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, err
		}
		for j := range all {
			if all[j].Name == role.Name || !selector.Matches(labels.Set(all[j].Labels)) {
				continue
			}
			for _, rule := range all[j].Rules {
				text, err := rule.Marshal()
				if err != nil {
					return nil, err
				}
				if !seen[string(text)] {
					seen[string(text)] = true
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules, nil
}
