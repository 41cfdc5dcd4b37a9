package core

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

const (
	// evictionAttempts bounds the retries of an eviction after the pod has changed.
	evictionAttempts = 20
	// maxDisruptedPods bounds status.disruptedPods of a budget.
	maxDisruptedPods = 2000

	wouldViolate = "Cannot evict pod as it would violate the pod's disruption budget."
)

// evictPod is the Action of pods/eviction: it deletes a pod if its PodDisruptionBudget
// allows.
func evictPod(ctx context.Context, target resource.Target, body resource.Object) (runtime.Object, error) {
	eviction := body.(*policyv1.Eviction)
	if target.Name() != eviction.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	opts := eviction.DeleteOptions
	if opts == nil {
		opts = &metav1.DeleteOptions{}
	}
	if ignore := opts.IgnoreStoreReadErrorWithClusterBreakingPotential; ignore != nil && *ignore {
		return nil, apierrors.NewInvalid(policyv1.SchemeGroupVersion.WithKind("Eviction").GroupKind(), eviction.Name, field.ErrorList{
			field.Invalid(field.NewPath("deleteOptions", "ignoreStoreReadErrorWithClusterBreakingPotential"), true,
				"can not be set for pod eviction, try after removing the option"),
		})
	}
	if all := []string{metav1.DryRunAll}; request.From(ctx).DryRun {
		if len(opts.DryRun) == 0 {
			opts.DryRun = all
		}
		if !slices.Equal(opts.DryRun, all) {
			return nil, failure(http.StatusInternalServerError, fmt.Sprintf("Non-matching dry-run options in request and content: %v and %v", all, opts.DryRun))
		}
	}
	pinned := opts.Preconditions != nil && opts.Preconditions.ResourceVersion != nil

	var err error
	for range evictionAttempts {
		var obj resource.Object
		if obj, err = target.Get(ctx); err != nil {
			return nil, err
		}
		pod := obj.(*corev1.Pod)
		if !evictsFreely(pod) {
			return evictWithBudget(ctx, target, pod, opts, pinned)
		}
		// A pending pod may become ready and count for its budget at any moment.
		o := opts
		if !pinned && pod.Status.Phase == corev1.PodPending && pod.DeletionTimestamp.IsZero() {
			o = pinVersion(opts, pod)
		}
		if err = deleteEvicted(ctx, target, o); err == nil {
			return &metav1.Status{Status: metav1.StatusSuccess}, nil
		}
		if pinned || !apierrors.IsConflict(err) || ctx.Err() != nil {
			return nil, err
		}
	}
	return nil, err
}

// evictsFreely reports whether a pod has finished, is pending or is being deleted.
func evictsFreely(pod *corev1.Pod) bool {
	switch pod.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending:
		return true
	}
	return !pod.DeletionTimestamp.IsZero()
}

// pinVersion adds the resourceVersion of the pod as a precondition.
func pinVersion(opts *metav1.DeleteOptions, pod *corev1.Pod) *metav1.DeleteOptions {
	opts = opts.DeepCopy()
	if opts.Preconditions == nil {
		opts.Preconditions = &metav1.Preconditions{}
	}
	opts.Preconditions.ResourceVersion = &pod.ResourceVersion
	return opts
}

func evictWithBudget(ctx context.Context, target resource.Target, pod *corev1.Pod, opts *metav1.DeleteOptions, pinned bool) (runtime.Object, error) {
	budgets, store, err := budgetsOf(ctx, target, pod)
	if err != nil {
		return nil, err
	}
	if len(budgets) > 1 {
		return nil, failure(http.StatusInternalServerError, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")
	}
	o, free := opts, false
	if len(budgets) == 1 {
		if free = sparesUnready(budgets[0], pod); free {
			o = pinVersion(opts, pod)
		} else if err := spend(ctx, store, budgets[0], pod.Name, len(opts.DryRun) > 0); err != nil {
			return nil, err
		}
	}
	if err := deleteEvicted(ctx, target, o); err != nil {
		if free && !pinned && apierrors.IsConflict(err) {
			return nil, stillProcessed(budgets[0].Name)
		}
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// budgetsOf returns the PodDisruptionBudgets that select a pod, and access to them. If the
// resource is not served there are none.
func budgetsOf(ctx context.Context, target resource.Target, pod *corev1.Pod) ([]*policyv1.PodDisruptionBudget, resource.Others, error) {
	store, err := target.Other(policyv1.GroupName, "poddisruptionbudgets")
	if err != nil {
		return nil, nil, nil
	}
	all, err := store.List(ctx, pod.Namespace)
	if err != nil {
		return nil, nil, err
	}
	var budgets []*policyv1.PodDisruptionBudget
	for _, obj := range all {
		budget, ok := obj.(*policyv1.PodDisruptionBudget)
		if !ok {
			continue
		}
		if s, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector); err == nil && s.Matches(labels.Set(pod.Labels)) {
			budgets = append(budgets, budget)
		}
	}
	return budgets, store, nil
}

// sparesUnready reports whether a pod that is not ready can be evicted without its budget, by
// unhealthyPodEvictionPolicy.
func sparesUnready(b *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	if isReady(pod) {
		return false
	}
	if policy := b.Spec.UnhealthyPodEvictionPolicy; policy != nil && *policy == policyv1.AlwaysAllow {
		return true
	}
	return b.Status.DesiredHealthy > 0 && b.Status.CurrentHealthy >= b.Status.DesiredHealthy
}

// spend decrements disruptionsAllowed of a budget and adds the pod to disruptedPods.
func spend(ctx context.Context, store resource.Others, b *policyv1.PodDisruptionBudget, podName string, dryRun bool) error {
	if dryRun {
		return checkBudget(b)
	}
	_, err := store.Update(ctx, b.Namespace, b.Name, func(obj resource.Object) error {
		b := obj.(*policyv1.PodDisruptionBudget)
		if err := checkBudget(b); err != nil {
			return err
		}
		b.Status.DisruptionsAllowed--
		if b.Status.DisruptionsAllowed == 0 {
			meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{
				Type:               policyv1.DisruptionAllowedCondition,
				Reason:             policyv1.InsufficientPodsReason,
				Status:             metav1.ConditionFalse,
				ObservedGeneration: b.Status.ObservedGeneration,
			})
		}
		if b.Status.DisruptedPods == nil {
			b.Status.DisruptedPods = map[string]metav1.Time{}
		}
		b.Status.DisruptedPods[podName] = metav1.NewTime(request.From(ctx).Received)
		return nil
	})
	return err
}

func stillProcessed(budget string) error {
	err := apierrors.NewTooManyRequests(wouldViolate, 10)
	return withCause(err, fmt.Sprintf("The disruption budget %s is still being processed by the server.", budget))
}

func withCause(err *apierrors.StatusError, message string) error {
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: message})
	return err
}

// checkBudget returns why a budget does not allow a disruption, nil if it does.
func checkBudget(b *policyv1.PodDisruptionBudget) error {
	forbidden := func(why, detail string) error {
		err := apierrors.NewForbidden(schema.GroupResource{Group: policyv1.GroupName, Resource: "poddisruptionbudget"}, b.Name, errors.New(why))
		return withCause(err, fmt.Sprintf("The disruption budget %s does not allow evicting pods currently: %s", b.Name, detail))
	}
	s := &b.Status
	switch {
	case s.ObservedGeneration < b.Generation:
		return stillProcessed(b.Name)
	case s.DisruptionsAllowed < 0:
		return forbidden("pdb disruptions allowed is negative", "pdb disruptions allowed is negative")
	case len(s.DisruptedPods) > maxDisruptedPods:
		return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller",
			"too many pending evictions not confirmed by PDB controller")
	case s.DisruptionsAllowed > 0:
		return nil
	}
	c := meta.FindStatusCondition(s.Conditions, policyv1.DisruptionAllowedCondition)
	told := c != nil && c.Status == metav1.ConditionFalse && c.Message != ""
	message := fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", b.Name)
	switch {
	// After a failed sync the status is out of date.
	case told && c.Reason == policyv1.SyncFailedReason:
		message += " because it failed sync: " + c.Message
	case s.CurrentHealthy <= s.DesiredHealthy:
		message = fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name, s.DesiredHealthy, s.CurrentHealthy)
	case told:
		message += fmt.Sprintf(" (%s): %s", c.Reason, c.Message)
	}
	return withCause(apierrors.NewTooManyRequests(wouldViolate, 0), message)
}

// deleteEvicted adds the condition DisruptionTarget to the pod, and deletes it.
func deleteEvicted(ctx context.Context, target resource.Target, opts *metav1.DeleteOptions) error {
	if len(opts.DryRun) == 0 {
		obj, err := target.Update(ctx, func(obj resource.Object) error {
			pod := obj.(*corev1.Pod)
			if err := checkPreconditions(pod, opts.Preconditions); err != nil {
				return err
			}
			setPodCondition(ctx, &pod.Status, corev1.PodCondition{
				Type:    corev1.DisruptionTarget,
				Status:  corev1.ConditionTrue,
				Reason:  "EvictionByEvictionAPI",
				Message: "Eviction API: evicting",
			})
			return nil
		})
		if err != nil {
			return err
		}
		if opts.Preconditions != nil && opts.Preconditions.ResourceVersion != nil {
			opts = pinVersion(opts, obj.(*corev1.Pod)) // the new resourceVersion, after our own update
		}
	}
	_, err := target.Delete(ctx, opts)
	return err
}

func checkPreconditions(pod *corev1.Pod, p *metav1.Preconditions) error {
	conflict := func(what, want, is, happened string) error {
		return apierrors.NewConflict(schema.GroupResource{Resource: "Pod"}, pod.Name, fmt.Errorf(
			"the %s in the precondition (%s) does not match the %s in record (%s). The object might have been %s", what, want, what, is, happened))
	}
	switch {
	case p == nil:
	case p.UID != nil && *p.UID != "" && *p.UID != pod.UID:
		return conflict("UID", string(*p.UID), string(pod.UID), "deleted and then recreated")
	case p.ResourceVersion != nil && *p.ResourceVersion != "" && *p.ResourceVersion != pod.ResourceVersion:
		return conflict("ResourceVersion", *p.ResourceVersion, pod.ResourceVersion, "modified")
	}
	return nil
}
