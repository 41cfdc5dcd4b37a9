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
	// namespaceRefresh is how long after a change in a namespace that cannot end
	// its conditions are brought up to date.
	namespaceRefresh = time.Second
)

// Namespaces ends namespaces: it deletes what is in one that is Terminating,
// pods first, says in its conditions what is left and why, and takes the
// finalizer away when nothing is.
//
// A namespace is left alone for a while after its deletion has begun, if untouched
// is not zero: clients that were written for a server without controllers finish
// it themselves.
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
	// left is how many objects are known to be left in namespaces that are
	// Terminating. When they are gone it is time to look again.
	left map[string]int

	untouched time.Duration
	begun     map[string]time.Time // when it was seen that the deletion has begun
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
			for name := range n.left { // what was in the way may be so no longer
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

// work does what can be done for a namespace now.
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
		// Some may have gone while they were counted.
		n.queue.AddAfter(name, namespaceRefresh)
		return nil
	}
	ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	return ignoreNotFound(n.Update(ctx, kind, "", name, "finalize", &ns, nil))
}

// remains is what a pass over a namespace has left.
type remains struct {
	discovery  error
	failures   []error
	objects    int
	kinds      map[*Kind]int
	finalizers map[string]int
}

// empty deletes what is in a namespace. Pods come first, and as long as there
// are any nothing else goes: they may need it to end well.
func (n *namespaces) empty(ctx context.Context, name string) *remains {
	r := &remains{kinds: map[*Kind]int{}, finalizers: map[string]int{}}
	kinds, err := n.Feed.Kinds(ctx)
	r.discovery = err
	kinds = slices.DeleteFunc(slices.Clone(kinds), func(k *Kind) bool { return !k.Namespaced || !k.Can("delete") })
	slices.SortStableFunc(kinds, func(a, b *Kind) int { return last(a) - last(b) })
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

// last orders kinds: pods first, and events, which tell of the others, at the
// end.
func last(k *Kind) int {
	switch {
	case k.Is("", "pods"):
		return 0
	case k.Resource == "events":
		return 2
	}
	return 1
}

// clear deletes the objects of a kind in a namespace and notes what is left.
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
		// A grace period is a reason to be there as a finalizer is.
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

// conditions brings the conditions of a namespace up to date and reports whether
// they have changed.
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

// enumerate is a sentence of things, in order; nothing if there are none.
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

// unlessUnserved drops errors that say that a resource is not served in this way.
func unlessUnserved(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		return nil
	}
	return err
}
