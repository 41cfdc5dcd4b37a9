package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/internal/protect"
)

// garbageWorkers is how many objects are worked on at a time, and how many dependents
// are orphaned at a time.
const garbageWorkers = 16

// unknownAgain is the delay after a change of CRDs or APIServices before objects are
// looked at again whose owners were of an unknown kind.
const unknownAgain = 100 * time.Millisecond

// GarbageCollector deletes objects whose owners are all gone, finishes foreground
// deletion when no dependent blocks it any more, and orphans dependents.
//
// It decides by the state of an object in the feed, and sends the resourceVersion of
// that state with each write. A write that conflicts is dropped: the feed brings the
// newer state. That an owner is absent is never concluded from the feed: the API is
// asked for the object that the reference names, and its uid is compared.
//
// With invented, owners that were never seen count as existing, for tests that make up
// owner references. That is useful only if the feed starts with an empty store.
func GarbageCollector(invented bool) Controller {
	return Controller{Name: "garbage-collector-controller", Alias: "garbagecollector", Account: "generic-garbage-collector", Start: func(env *Env) Observer {
		g := &garbage{Env: env, graph: newGraph(), unknown: map[types.UID]bool{}}
		if invented {
			g.existed = newLatest[types.UID, bool]()
		}
		g.queue = NewQueue(env, garbageWorkers, g.work)
		return g
	}}
}

type garbage struct {
	*Env
	graph *graph
	queue *Queue[types.UID]

	mu       sync.Mutex
	starting []types.UID        // queued when the initial state is complete
	synced   bool               // the initial state is complete
	unknown  map[types.UID]bool // objects with an owner of an unknown kind

	existed *latest[types.UID, bool] // uids of all objects seen; nil unless invented
}

// Observe implements Observer.
func (g *garbage) Observe(changes []Change) {
	for i := range changes {
		c := &changes[i]
		if g.existed != nil {
			g.existed.set(c.UID, true)
		}
		g.graph.see(c, g.check)
		if c.Kind.Is("apiextensions.k8s.io", "customresourcedefinitions") || c.Kind.Is("apiregistration.k8s.io", "apiservices") {
			g.mu.Lock()
			for uid := range g.unknown {
				g.queue.AddAfter(uid, unknownAgain)
			}
			g.mu.Unlock()
		}
	}
}

// check adds an object to the queue, or to starting before the graph is complete.
func (g *garbage) check(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.synced {
		g.queue.Add(uid)
	} else {
		g.starting = append(g.starting, uid)
	}
}

// Synced implements Starter.
func (g *garbage) Synced() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.synced = true
	for _, uid := range g.starting {
		g.queue.Add(uid)
	}
	g.starting = nil
}

// work is the work function of the queue.
func (g *garbage) work(ctx context.Context, uid types.UID) error {
	n := g.graph.get(uid)
	if n == nil {
		return nil
	}
	n = g.inServedVersion(n)
	switch {
	case (n.orphaning() || n.foreground()) && !g.remotes.allListed():
		return errNotListed
	case n.orphaning():
		return g.orphanDependents(ctx, n)
	case n.foreground():
		return g.finishForeground(ctx, n)
	case n.Deleting:
		return nil // deletion is under way; dependents are looked at when it is gone
	}
	err := g.collect(ctx, n)
	g.mu.Lock()
	defer g.mu.Unlock()
	if delete(g.unknown, uid); errors.Is(err, errUnknown) {
		g.unknown[uid] = true
	}
	return err
}

// inServedVersion returns the node with its kind in the version that is preferred now.
func (g *garbage) inServedVersion(n *node) *node {
	kind, ok := g.Feed.Served(n.kind.Group, n.kind.Resource)
	if !ok || kind == n.kind {
		return n
	}
	now := *n
	now.kind = kind
	return &now
}

// errUnknown says that the kind of an owner is not served. It may be served again later,
// so the owner does not count as absent.
var errUnknown = errors.New("the kind of an owner is not known")

// errNotListed says that objects of aggregated servers have not all been listed, so that
// there may be unknown dependents.
var errNotListed = errors.New("what other servers keep is not known yet")

// errOutdated says that a write conflicted. The feed will bring the newer state.
var errOutdated = errors.New("the object has changed")

// mapOutdated maps the error of a write: nil for NotFound, errOutdated for a conflict.
func mapOutdated(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return errOutdated
	}
	return err
}

// standing is the state of an owner.
type standing int

const (
	solid   standing = iota // it exists
	waiting                 // in foreground deletion: it waits for its dependents
	absent                  // it does not exist
)

// collect deletes an object whose owners are all gone. From an object that has other
// owners it removes the references to absent ones.
func (g *garbage) collect(ctx context.Context, n *node) error {
	var kept []metav1.OwnerReference
	waits := false
	for i := range n.Owners {
		ref := &n.Owners[i]
		is, err := g.standing(ctx, n, ref)
		if errors.Is(err, errUnresolvable) {
			return nil // retrying cannot help
		}
		if err != nil {
			return err
		}
		switch is {
		case solid:
			kept = append(kept, *ref)
		case waiting:
			waits = true
		}
	}
	switch {
	case len(kept) == len(n.Owners):
		return nil
	case len(kept) > 0:
		_, err := g.setOwners(ctx, n, kept)
		return mapOutdated(err)
	}
	policy := metav1.DeletePropagationBackground
	dependents := g.graph.dependents(n.UID)
	switch {
	case waits && len(dependents) > 0:
		policy = metav1.DeletePropagationForeground
		if slices.ContainsFunc(dependents, func(d *node) bool { return d.foreground() }) {
			// Owner and dependent may block each other: unblock.
			refs := slices.Clone(n.Owners)
			for i := range refs {
				no := false
				refs[i].BlockOwnerDeletion = &no
			}
			if slices.ContainsFunc(n.Owners, func(r metav1.OwnerReference) bool { return blocks(&r) }) {
				next, err := g.setOwners(ctx, n, refs)
				if err != nil {
					return mapOutdated(err)
				}
				now := *n
				now.version, now.Owners, n = next.ResourceVersion, refs, &now
			}
		}
	case n.Has(metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	case n.Has(metav1.FinalizerDeleteDependents):
		policy = metav1.DeletePropagationForeground
	}
	return g.delete(ctx, n, policy)
}

// delete deletes an object if its owner references are still those that collect saw.
func (g *garbage) delete(ctx context.Context, n *node, policy metav1.DeletionPropagation) error {
	opts := &metav1.DeleteOptions{
		PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &n.UID, ResourceVersion: &n.version},
	}
	err := g.Delete(ctx, n.kind, n.namespace, n.name, opts)
	if !apierrors.IsConflict(err) {
		return mapOutdated(err)
	}
	// Others may update the object often. Retry if its owner references are unchanged.
	now, err := g.Metadata(ctx, n.kind, n.namespace, n.name)
	if err != nil || now.UID != n.UID {
		return mapOutdated(err)
	}
	if !equality.Semantic.DeepEqual(now.OwnerReferences, n.Owners) {
		return errOutdated
	}
	opts.Preconditions.ResourceVersion = nil
	return mapOutdated(g.Delete(ctx, n.kind, n.namespace, n.name, opts))
}

// errUnresolvable says that a reference can never be resolved, such as one from a
// cluster-scoped object to a namespaced one. It neither keeps nor deletes the object.
var errUnresolvable = errors.New("the reference cannot be resolved")

// standing returns the state of the owner that a reference names.
func (g *garbage) standing(ctx context.Context, n *node, ref *metav1.OwnerReference) (standing, error) {
	kind, ok := g.Feed.Find(ref.APIVersion, ref.Kind)
	if !ok {
		if is, ok := g.graph.standing(n, ref); ok && is == absent {
			return absent, nil // it went with the definition of its kind
		}
		return solid, fmt.Errorf("%w: %s in version %s", errUnknown, ref.Kind, ref.APIVersion)
	}
	if kind.Namespaced && n.namespace == "" {
		g.warnOtherNamespace(ctx, n, kind, ref)
		return solid, errUnresolvable
	}
	namespace := n.namespace
	if !kind.Namespaced {
		namespace = ""
	}
	if is, ok := g.graph.standing(n, ref); ok {
		return is, nil
	}
	owner, err := g.Metadata(ctx, kind, namespace, ref.Name)
	switch {
	case apierrors.IsNotFound(err), err == nil && owner.UID != ref.UID:
		if kind.Namespaced {
			g.warnOtherNamespace(ctx, n, kind, ref)
		}
		if g.existed != nil && !g.existed.get(ref.UID) {
			return solid, nil
		}
		return absent, nil
	case err != nil:
		return solid, err
	}
	if !kind.Remote { // the feed reports the deletion of local owners, so the result can be cached
		g.graph.exists(ref.UID, &identity{apiVersion: ref.APIVersion, kind: ref.Kind, namespace: namespace, name: ref.Name})
	}
	if owner.DeletionTimestamp != nil && slices.Contains(owner.Finalizers, metav1.FinalizerDeleteDependents) {
		return waiting, nil
	}
	return solid, nil
}

// setOwners replaces the references of an object.
func (g *garbage) setOwners(ctx context.Context, n *node, owners []metav1.OwnerReference) (*metav1.PartialObjectMetadata, error) {
	if owners == nil {
		owners = []metav1.OwnerReference{}
	}
	return g.patch(ctx, n, map[string]any{"ownerReferences": owners})
}

// patch changes the metadata of an object if its uid and resourceVersion are unchanged.
func (g *garbage) patch(ctx context.Context, n *node, metadata map[string]any) (*metav1.PartialObjectMetadata, error) {
	metadata["uid"], metadata["resourceVersion"] = n.UID, n.version
	return g.Patch(ctx, n.kind, n.namespace, n.name, types.MergePatchType, map[string]any{"metadata": metadata})
}

// removeFinalizer removes a finalizer.
func (g *garbage) removeFinalizer(ctx context.Context, n *node, finalizer string) error {
	left := []string{}
	for _, f := range n.Finalizers {
		if f != finalizer {
			left = append(left, f)
		}
	}
	_, err := g.patch(ctx, n, map[string]any{"finalizers": left})
	return mapOutdated(err)
}

// finishForeground removes the foreground finalizer when no dependent blocks the deletion, and
// otherwise queues the dependents that do. Dependents that do not block are checked now,
// while the owner is in foreground deletion: if another finalizer keeps the owner
// afterwards, they would find an owner that exists.
func (g *garbage) finishForeground(ctx context.Context, n *node) error {
	blocked := false
	var loose []*node
	for _, dep := range g.graph.dependents(n.UID) {
		switch {
		case dep.UID == n.UID:
		case !blocks(dep.to(n.UID)):
			if !dep.Deleting {
				loose = append(loose, dep)
			}
		default:
			blocked = true
			if !dep.foreground() {
				g.queue.Add(dep.UID)
			}
		}
	}
	if blocked {
		return nil
	}
	for _, dep := range loose {
		if err := g.collect(ctx, g.inServedVersion(dep)); err != nil && !errors.Is(err, errUnknown) {
			return err
		}
	}
	return g.removeFinalizer(ctx, n, metav1.FinalizerDeleteDependents)
}

// orphanDependents orphans the dependents of an owner, and then removes its orphan finalizer. A
// dependent that is created meanwhile is deleted, as in Kubernetes.
func (g *garbage) orphanDependents(ctx context.Context, n *node) error {
	slots := make(chan struct{}, garbageWorkers)
	var all protect.Group
	var mu sync.Mutex
	var failed error
	for _, dep := range g.graph.dependents(n.UID) {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			kept := slices.DeleteFunc(slices.Clone(dep.Owners), func(r metav1.OwnerReference) bool { return r.UID == n.UID })
			if _, err := g.setOwners(ctx, dep, kept); mapOutdated(err) != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = mapOutdated(err)
			}
		})
	}
	all.Wait()
	if failed != nil {
		return failed
	}
	return g.removeFinalizer(ctx, n, metav1.FinalizerOrphanDependents)
}

// warnOtherNamespace creates an Event about a reference to an owner in another namespace. Each
// owner is searched for once.
func (g *garbage) warnOtherNamespace(ctx context.Context, n *node, kind *Kind, ref *metav1.OwnerReference) {
	searched, found := g.graph.search(ref.UID)
	if !searched {
		items, err := g.ListNamed(ctx, kind, ref.Name)
		found = err == nil && slices.ContainsFunc(items, func(m metav1.PartialObjectMetadata) bool { return m.UID == ref.UID })
		g.graph.searched(ref.UID, found)
	}
	if found {
		g.warn(ctx, "garbage-collector-controller", n.kind, n.namespace, n.name, n.UID, "OwnerRefInvalidNamespace", fmt.Sprintf(
			"ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
			ref.APIVersion, ref.Kind, n.namespace, ref.Name, ref.UID, n.namespace))
	}
}
