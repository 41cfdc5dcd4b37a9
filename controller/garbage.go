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

// garbageWorkers is how many objects are looked at, and dependents let go, at a
// time.
const garbageWorkers = 16

// unknownAgain is how long after a change of what is served objects are looked at
// whose owners are of a kind that nobody knew.
const unknownAgain = 100 * time.Millisecond

// GarbageCollector deletes objects whose owners are all gone, finishes
// deletions in the foreground when no dependent blocks them any more, and lets
// dependents go where their owner is deleted without them.
//
// An object is judged by what the feed has shown of it, and what is done to it
// carries its resourceVersion: if it has changed since, nothing happens, and
// the feed brings what it is now. That an owner does not exist is never
// concluded from the feed's silence: the API is asked, for the object that the
// reference names, and answers to its uid.
//
// With invented, owners that have never been seen keep what refers to them: there
// are tests that make them up. That is only of use where the whole past of a
// server is seen.
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
	starting []types.UID        // what to look at when the whole state is known
	synced   bool               // it is
	unknown  map[types.UID]bool // objects with owners of a kind that nobody knows

	existed *latest[types.UID, bool] // what was seen; nil if that does not matter
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

// check puts an object into the queue, when the graph is complete.
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

// work does what an object needs.
func (g *garbage) work(ctx context.Context, uid types.UID) error {
	n := g.graph.get(uid)
	if n == nil {
		return nil
	}
	n = g.spoken(n)
	switch {
	case (n.orphaning() || n.foreground()) && !g.remotes.settled():
		return errUnsettled
	case n.orphaning():
		return g.release(ctx, n)
	case n.foreground():
		return g.finish(ctx, n)
	case n.Deleting:
		return nil // it goes, and then its dependents are looked at
	}
	err := g.judge(ctx, n)
	g.mu.Lock()
	defer g.mu.Unlock()
	if delete(g.unknown, uid); errors.Is(err, errUnknown) {
		g.unknown[uid] = true
	}
	return err
}

// spoken returns a node with its kind in the version that is served now.
func (g *garbage) spoken(n *node) *node {
	kind, ok := g.Feed.Served(n.kind.Group, n.kind.Resource)
	if !ok || kind == n.kind {
		return n
	}
	now := *n
	now.kind = kind
	return &now
}

// errUnknown: the kind of an owner is not served. It may come back, or have been
// misspelt: either way nobody knows that the owner is gone.
var errUnknown = errors.New("the kind of an owner is not known")

// errUnsettled: there may be dependents that have not been seen yet.
var errUnsettled = errors.New("what other servers keep is not known yet")

// errOutdated: what was decided by is not what is there. The feed will tell.
var errOutdated = errors.New("the object has changed")

// outdated tells errors by which the feed will have more to say from others. It
// returns nil for what is gone.
func outdated(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return errOutdated
	}
	return err
}

// The ways in which an owner can be found.
type standing int

const (
	solid   standing = iota // it is there to stay
	waiting                 // it waits for its dependents to go
	absent                  // it does not exist
)

// judge deletes an object that has lost its owners, and takes from one that has
// not the references that lead nowhere.
func (g *garbage) judge(ctx context.Context, n *node) error {
	var kept []metav1.OwnerReference
	waits := false
	for i := range n.Owners {
		ref := &n.Owners[i]
		is, err := g.standing(ctx, n, ref)
		if errors.Is(err, errImpossible) {
			return nil // nothing will make it good
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
		return outdated(err)
	}
	policy := metav1.DeletePropagationBackground
	dependents := g.graph.dependents(n.UID)
	switch {
	case waits && len(dependents) > 0:
		policy = metav1.DeletePropagationForeground
		if slices.ContainsFunc(dependents, func(d *node) bool { return d.foreground() }) {
			// The two may wait for each other: this one stops blocking.
			refs := slices.Clone(n.Owners)
			for i := range refs {
				no := false
				refs[i].BlockOwnerDeletion = &no
			}
			if slices.ContainsFunc(n.Owners, func(r metav1.OwnerReference) bool { return blocks(&r) }) {
				next, err := g.setOwners(ctx, n, refs)
				if err != nil {
					return outdated(err)
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

// delete deletes an object whose references are still those that were judged.
func (g *garbage) delete(ctx context.Context, n *node, policy metav1.DeletionPropagation) error {
	opts := &metav1.DeleteOptions{
		PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &n.UID, ResourceVersion: &n.version},
	}
	err := g.Delete(ctx, n.kind, n.namespace, n.name, opts)
	if !apierrors.IsConflict(err) {
		return outdated(err)
	}
	// Others may write to it all the time. What matters is whose it is.
	now, err := g.Metadata(ctx, n.kind, n.namespace, n.name)
	if err != nil || now.UID != n.UID {
		return outdated(err)
	}
	if !equality.Semantic.DeepEqual(now.OwnerReferences, n.Owners) {
		return errOutdated
	}
	opts.Preconditions.ResourceVersion = nil
	return outdated(g.Delete(ctx, n.kind, n.namespace, n.name, opts))
}

// errImpossible: a reference that nothing can make good, such as that of a
// cluster's object to one in a namespace. It neither keeps nor dooms an object.
var errImpossible = errors.New("the reference cannot be resolved")

// standing finds out about the owner that a reference names.
func (g *garbage) standing(ctx context.Context, n *node, ref *metav1.OwnerReference) (standing, error) {
	kind, ok := g.Feed.Find(ref.APIVersion, ref.Kind)
	if !ok {
		return solid, fmt.Errorf("%w: %s in version %s", errUnknown, ref.Kind, ref.APIVersion)
	}
	if kind.Namespaced && n.namespace == "" {
		g.elsewhere(ctx, n, kind, ref)
		return solid, errImpossible
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
			g.elsewhere(ctx, n, kind, ref)
		}
		if g.existed != nil && !g.existed.get(ref.UID) {
			return solid, nil
		}
		return absent, nil
	case err != nil:
		return solid, err
	}
	if !kind.Remote { // of others nobody knows how soon it is told that they go
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

// patch changes the metadata of an object if it is still as it was seen.
func (g *garbage) patch(ctx context.Context, n *node, metadata map[string]any) (*metav1.PartialObjectMetadata, error) {
	metadata["uid"], metadata["resourceVersion"] = n.UID, n.version
	return g.Patch(ctx, n.kind, n.namespace, n.name, types.MergePatchType, map[string]any{"metadata": metadata})
}

// drop takes a finalizer from an object.
func (g *garbage) drop(ctx context.Context, n *node, finalizer string) error {
	left := []string{}
	for _, f := range n.Finalizers {
		if f != finalizer {
			left = append(left, f)
		}
	}
	_, err := g.patch(ctx, n, map[string]any{"finalizers": left})
	return outdated(err)
}

// finish ends a deletion in the foreground when nothing blocks it any more, and
// else looks at what does. Dependents that do not block have to be judged while
// their owner waits: for those that come later it would be one that stays, if
// another finalizer keeps it.
func (g *garbage) finish(ctx context.Context, n *node) error {
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
		if err := g.judge(ctx, g.spoken(dep)); err != nil && !errors.Is(err, errUnknown) {
			return err
		}
	}
	return g.drop(ctx, n, metav1.FinalizerDeleteDependents)
}

// release takes the references to an owner from its dependents, and then lets
// the owner go. A dependent that is made meanwhile is found with an owner that
// is gone, and goes too: so it is in Kubernetes.
func (g *garbage) release(ctx context.Context, n *node) error {
	slots := make(chan struct{}, garbageWorkers)
	var all protect.Group
	var mu sync.Mutex
	var failed error
	for _, dep := range g.graph.dependents(n.UID) {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			kept := slices.DeleteFunc(slices.Clone(dep.Owners), func(r metav1.OwnerReference) bool { return r.UID == n.UID })
			if _, err := g.setOwners(ctx, dep, kept); outdated(err) != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = outdated(err)
			}
		})
	}
	all.Wait()
	if failed != nil {
		return failed
	}
	return g.drop(ctx, n, metav1.FinalizerOrphanDependents)
}

// elsewhere makes an event of a reference to an owner in another namespace. An
// owner is searched for once.
func (g *garbage) elsewhere(ctx context.Context, n *node, kind *Kind, ref *metav1.OwnerReference) {
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
