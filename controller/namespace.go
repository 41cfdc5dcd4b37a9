package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	namespaceWorkers = 10
	// namespaceRefresh is the delay after a change in a Terminating namespace before
	// its conditions are updated.
	namespaceRefresh = time.Second
)

// Namespaces deletes the content of namespaces that are Terminating, pods first, reports
// in their conditions what remains and why, and removes the finalizer "kubernetes" when
// nothing remains.
//
// If untouched is not zero, a namespace is left alone for that time after its deletion
// has begun: tests that were written for envtest finalize namespaces themselves.
func Namespaces(untouched time.Duration) Controller {
	return Controller{Name: "namespace-controller", Alias: "namespace", Account: "namespace-controller", Start: func(env *Env) Observer {
		n := &namespaces{Env: env, untouched: untouched, left: map[string]int{}, begun: map[string]time.Time{}}
		n.queue = NewQueue(env, namespaceWorkers, n.work)
		return n
	}}
}

type namespaces struct {
	*Env
	queue *Queue[string]

	mu sync.Mutex
	// left is the number of objects known to remain in each Terminating namespace,
	// guarded by mu. The namespace is looked at again when they are gone.
	left map[string]int

	untouched time.Duration
	begun     map[string]time.Time // when the deletion was first seen
}

// Observe implements Observer.
func (n *namespaces) Observe(changes []Change) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range changes {
		c := &changes[i]
		if c.Kind.Is("", "namespaces") {
			switch {
			case c.Gone:
				delete(n.left, c.Name)
				delete(n.begun, c.Name)
			case c.Deleting:
				if _, known := n.left[c.Name]; !known {
					n.left[c.Name], n.begun[c.Name] = 0, time.Now()
					n.queue.Add(c.Name)
				}
			}
			continue
		}
		if c.Kind.Is("apiregistration.k8s.io", "apiservices") {
			for name := range n.left { // resources may be served or gone that were in the way
				n.queue.AddAfter(name, namespaceRefresh)
			}
		}
		left, ending := n.left[c.Namespace]
		if !ending || c.Namespace == "" {
			continue
		}
		if c.Gone && left > 0 {
			left--
			n.left[c.Namespace] = left
		}
		if left == 0 {
			n.queue.Add(c.Namespace)
		} else {
			n.queue.AddAfter(c.Namespace, namespaceRefresh)
		}
	}
}

// work is the work function of the queue.
func (n *namespaces) work(ctx context.Context, name string) error {
	kind := n.Kind("v1", "Namespace")
	var ns corev1.Namespace
	if err := n.Get(ctx, kind, "", name, &ns); err != nil {
		return ignoreNotFound(err)
	}
	if ns.DeletionTimestamp == nil || !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return nil
	}
	n.mu.Lock()
	wait := time.Until(n.begun[name].Add(n.untouched))
	n.mu.Unlock()
	if wait > 0 {
		n.queue.AddAfter(name, wait)
		return nil
	}
	found := n.empty(ctx, name)
	n.mu.Lock()
	if _, ending := n.left[name]; ending {
		n.left[name] = found.objects
	}
	n.mu.Unlock()
	if found.conditions(&ns, metav1.NewTime(n.Now())) {
		err := n.Update(ctx, kind, "", name, "status", &ns, &ns)
		if err != nil {
			return ignoreNotFound(err)
		}
	}
	if err := found.err(); err != nil {
		return err
	}
	if found.objects > 0 {
		// Some objects may have been deleted while they were counted.
		n.queue.AddAfter(name, namespaceRefresh)
		return nil
	}
	ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	return ignoreNotFound(n.Update(ctx, kind, "", name, "finalize", &ns, nil))
}

// remains is what one pass over a namespace could not delete.
type remains struct {
	discovery  error
	failures   []error
	objects    int
	kinds      map[*Kind]int
	finalizers map[string]int
}

// empty deletes the content of a namespace. As long as there are pods, nothing else is
// deleted: they may need it to terminate gracefully.
func (n *namespaces) empty(ctx context.Context, name string) *remains {
	r := &remains{kinds: map[*Kind]int{}, finalizers: map[string]int{}}
	kinds, err := n.Feed.Kinds(ctx)
	r.discovery = err
	kinds = slices.DeleteFunc(slices.Clone(kinds), func(k *Kind) bool { return !k.Namespaced || !k.Can("delete") })
	slices.SortStableFunc(kinds, func(a, b *Kind) int { return deletionOrder(a) - deletionOrder(b) })
	for _, k := range kinds {
		holds, err := n.Feed.Holds(ctx, k, name)
		if err == nil && holds {
			err = n.clear(ctx, k, name, r)
		}
		if err != nil {
			r.failures = append(r.failures, err)
		}
		if k.Is("", "pods") && r.objects > 0 {
			break
		}
	}
	return r
}

// deletionOrder orders kinds: pods first, events last, because events report about the others.
func deletionOrder(k *Kind) int {
	switch {
	case k.Is("", "pods"):
		return 0
	case k.Resource == "events":
		return 2
	}
	return 1
}

// clear deletes the objects of a kind in a namespace and counts those that remain.
func (n *namespaces) clear(ctx context.Context, k *Kind, name string, r *remains) error {
	background := metav1.DeletePropagationBackground
	opts := &metav1.DeleteOptions{PropagationPolicy: &background}
	var err error
	if k.Can("deletecollection") {
		err = n.DeleteAll(ctx, k, name, opts)
	} else {
		err = n.deleteEach(ctx, k, name, opts)
	}
	if err != nil {
		return unlessUnserved(err)
	}
	holds, err := n.Feed.Holds(ctx, k, name)
	if err != nil || !holds {
		return err
	}
	items, err := n.ListMetadata(ctx, k, name)
	if err != nil {
		return unlessUnserved(err)
	}
	if len(items) == 0 {
		return nil
	}
	held := false
	for i := range items {
		// A grace period is counted like a finalizer.
		held = held || len(items[i].Finalizers) > 0 || items[i].DeletionTimestamp != nil
		for _, f := range items[i].Finalizers {
			r.finalizers[f]++
		}
	}
	r.kinds[k] = len(items)
	r.objects += len(items)
	if !held {
		return fmt.Errorf("unexpected items still remain in namespace: %s for gvr: %s/%s, Resource=%s", name, k.Group, k.Version, k.Resource)
	}
	return nil
}

func (n *namespaces) deleteEach(ctx context.Context, k *Kind, name string, opts *metav1.DeleteOptions) error {
	if !k.Can("list") {
		return nil
	}
	items, err := n.ListMetadata(ctx, k, name)
	for i := range items {
		if err = n.Delete(ctx, k, name, items[i].Name, opts); ignoreNotFound(err) != nil {
			return err
		}
	}
	return ignoreNotFound(err)
}

func (r *remains) err() error {
	return errors.Join(append([]error{r.discovery}, r.failures...)...)
}

// conditions updates the conditions of a namespace and reports whether they changed.
func (r *remains) conditions(ns *corev1.Namespace, now metav1.Time) (changed bool) {
	set := func(kind corev1.NamespaceConditionType, okReason, okMessage, reason, message string) {
		next := corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionFalse, Reason: okReason, Message: okMessage, LastTransitionTime: now}
		if message != "" {
			next.Status, next.Reason, next.Message = corev1.ConditionTrue, reason, message
		}
		at := slices.IndexFunc(ns.Status.Conditions, func(c corev1.NamespaceCondition) bool { return c.Type == kind })
		if at < 0 {
			ns.Status.Conditions = append(ns.Status.Conditions, next)
			changed = true
			return
		}
		old := &ns.Status.Conditions[at]
		if old.Status == next.Status {
			next.LastTransitionTime = old.LastTransitionTime
		}
		if *old != next {
			*old, changed = next, true
		}
	}
	discovery, content := "", ""
	if r.discovery != nil {
		discovery = r.discovery.Error()
		if failed := (failedDiscovery)(nil); errors.As(r.discovery, &failed) {
			discovery = fmt.Sprintf("Discovery failed for some groups, %d failing: %s", len(failed), discovery)
		}
	}
	if len(r.failures) > 0 {
		var texts []string
		for _, err := range r.failures {
			texts = append(texts, err.Error())
		}
		slices.Sort(texts)
		content = fmt.Sprintf("Failed to delete all resource types, %d remaining: %s", len(texts), strings.Join(texts, ", "))
	}
	var kinds []string
	for k, number := range r.kinds {
		kinds = append(kinds, fmt.Sprintf("%s.%s has %d resource instances", k.Resource, k.Group, number))
	}
	var finalizers []string
	for _, f := range slices.Sorted(maps.Keys(r.finalizers)) {
		finalizers = append(finalizers, fmt.Sprintf("%s in %d resource instances", f, r.finalizers[f]))
	}
	set(corev1.NamespaceDeletionDiscoveryFailure, "ResourcesDiscovered", "All resources successfully discovered", "DiscoveryFailed", discovery)
	set(corev1.NamespaceDeletionGVParsingFailure, "ParsedGroupVersions", "All legacy kube types successfully parsed", "", "")
	set(corev1.NamespaceDeletionContentFailure, "ContentDeleted", "All content successfully deleted, may be waiting on finalization", "ContentDeletionFailed", content)
	set(corev1.NamespaceContentRemaining, "ContentRemoved", "All content successfully removed", "SomeResourcesRemain", enumerate("Some resources are remaining: ", kinds))
	set(corev1.NamespaceFinalizersRemaining, "ContentHasNoFinalizers", "All content-preserving finalizers finished",
		"SomeFinalizersRemain", enumerate("Some content in the namespace has finalizers remaining: ", finalizers))
	return changed
}

// enumerate joins sorted things behind a prefix; "" if there are none.
func enumerate(begin string, things []string) string {
	if len(things) == 0 {
		return ""
	}
	slices.Sort(things)
	return begin + strings.Join(things, ", ")
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// unlessUnserved returns nil for errors that mean that the resource is not served.
func unlessUnserved(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		return nil
	}
	return err
}
