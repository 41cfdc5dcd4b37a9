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

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/internal/loopback"
)

// remoteStart is how long after the start the garbage collector waits for the objects of
// aggregated servers. A dead server must not block it forever.
const remoteStart = 30 * time.Second

// rediscover is the interval of discovery requests to aggregated servers. Changes of
// APIServices trigger discovery at once.
const rediscover = 30 * time.Second

// remotes is a Feed that adds the objects of aggregated servers. They are not in this
// server's storage, so controllers learn of them as clients do: by discovery, lists and
// watches. While no APIService names another server, nothing is requested.
type remotes struct {
	Feed
	env     *Env
	refresh *Queue[struct{}]
	until   time.Time // after this time, allListed returns true

	telling sync.Mutex // held while observers are called
	see     func([]Change)

	mu sync.Mutex
	// named are group versions that have an APIService and are not served here.
	named     map[schema.GroupVersion]bool
	kinds     map[schema.GroupVersionResource]*Kind
	followers map[*Kind]*follower
	unknown   bool // some group versions could not be discovered
}

// newRemotes returns a Feed that adds aggregated servers to local. env is that of the
// garbage collector, whose client makes the requests.
func newRemotes(env *Env, local Feed) *remotes {
	r := &remotes{
		Feed: local, env: env, until: time.Now().Add(remoteStart), named: map[schema.GroupVersion]bool{},
		kinds: map[schema.GroupVersionResource]*Kind{}, followers: map[*Kind]*follower{},
	}
	r.refresh = NewQueue(env, 1, func(ctx context.Context, _ struct{}) error { return r.update(ctx) })
	return r
}

// Follow implements Feed.
func (r *remotes) Follow(ctx context.Context, see func([]Change)) error {
	r.see = see
	return r.Feed.Follow(ctx, func(changes []Change) {
		for i := range changes {
			if c := &changes[i]; c.Kind.Is("apiregistration.k8s.io", "apiservices") {
				r.note(c)
			}
		}
		r.tell(changes)
	})
}

func (r *remotes) tell(changes []Change) {
	r.telling.Lock()
	defer r.telling.Unlock()
	r.see(changes)
}

// note records a change of an APIService.
func (r *remotes) note(c *Change) {
	version, group, _ := strings.Cut(c.Name, ".")
	gv := schema.GroupVersion{Group: group, Version: version}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case c.Gone && !r.named[gv], !c.Gone && r.Serves(group, version):
		return
	case c.Gone:
		delete(r.named, gv)
	default:
		r.named[gv] = true
	}
	r.unknown = len(r.named) > 0
	r.refresh.Add(struct{}{})
}

// allListed reports whether the objects of aggregated servers have been listed, or
// remoteStart has passed.
func (r *remotes) allListed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().After(r.until) {
		return true
	}
	for _, f := range r.followers {
		if !f.listed {
			return false
		}
	}
	return !r.unknown
}

// Kinds implements Feed. It makes a discovery request each time: an aggregated server may
// change what it serves without notice.
func (r *remotes) Kinds(ctx context.Context) ([]*Kind, error) {
	local, err := r.Feed.Kinds(ctx)
	if err != nil {
		return local, err
	}
	found, err := r.discover(ctx)
	return slices.Concat(local, found), err
}

// Find implements Feed.
func (r *remotes) Find(apiVersion, kind string) (*Kind, bool) {
	if k, ok := r.Feed.Find(apiVersion, kind); ok {
		return k, true
	}
	return r.lookup(func(k *Kind) bool { return k.Kind == kind && k.APIVersion() == apiVersion })
}

// Served implements Feed.
func (r *remotes) Served(group, resource string) (*Kind, bool) {
	if k, ok := r.Feed.Served(group, resource); ok {
		return k, true
	}
	return r.lookup(func(k *Kind) bool { return k.Is(group, resource) })
}

func (r *remotes) lookup(match func(*Kind) bool) (*Kind, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.kinds {
		if match(k) {
			return k, true
		}
	}
	return nil, false
}

// Holds implements Feed.
func (r *remotes) Holds(ctx context.Context, kind *Kind, namespace string) (bool, error) {
	if kind.Remote {
		return true, nil
	}
	return r.Feed.Holds(ctx, kind, namespace)
}

// failedDiscovery lists group versions whose resources could not be discovered.
type failedDiscovery []schema.GroupVersion

func (f failedDiscovery) Error() string {
	var texts []string
	for _, gv := range f {
		texts = append(texts, fmt.Sprintf("%s: stale GroupVersion discovery: %s", gv, gv))
	}
	slices.Sort(texts)
	return "unable to retrieve the complete list of server APIs: " + strings.Join(texts, ", ")
}

// discover returns the resources of aggregated servers, each in one version. If the error
// is a failedDiscovery, the other resources are returned.
func (r *remotes) discover(ctx context.Context) ([]*Kind, error) {
	r.mu.Lock()
	named := slices.Collect(maps.Keys(r.named))
	r.mu.Unlock()
	remote := map[schema.GroupVersion]bool{}
	services := &Kind{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	for _, gv := range named {
		var s struct{ Spec struct{ Service *struct{} } }
		if err := r.env.Get(ctx, services, "", gv.Version+"."+gv.Group, &s); ignoreNotFound(err) != nil {
			return nil, err
		}
		if s.Spec.Service != nil {
			remote[gv] = true
		}
	}
	if len(remote) == 0 {
		return nil, nil
	}
	var groups apidiscovery.APIGroupDiscoveryList
	if err := r.env.do(ctx, loopback.Call{Method: "GET", Path: "/apis", Accept: asDiscovery, Into: &groups}); err != nil {
		return nil, err
	}
	var found []*Kind
	var failed failedDiscovery
	for _, g := range groups.Items {
		seen := map[string]bool{}
		for _, v := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
			if v.Freshness == apidiscovery.DiscoveryFreshnessStale {
				if remote[gv] {
					failed = append(failed, gv)
				}
				continue
			}
			for i := range v.Resources {
				if d := &v.Resources[i]; !seen[d.Resource] && d.ResponseKind != nil {
					seen[d.Resource] = true
					if remote[gv] {
						found = append(found, r.intern(gv, d))
					}
				}
			}
		}
	}
	if len(failed) > 0 {
		return found, failed
	}
	return found, nil
}

// intern returns the known Kind of a resource, or a new one.
func (r *remotes) intern(gv schema.GroupVersion, d *apidiscovery.APIResourceDiscovery) *Kind {
	r.mu.Lock()
	defer r.mu.Unlock()
	gvr := gv.WithResource(d.Resource)
	k := &Kind{
		Group: gv.Group, Version: gv.Version, Resource: d.Resource, Kind: d.ResponseKind.Kind,
		Namespaced: d.Scope == apidiscovery.ScopeNamespace, Verbs: d.Verbs, Remote: true,
	}
	if old := r.kinds[gvr]; old != nil && old.Kind == k.Kind && old.Namespaced == k.Namespaced && slices.Equal(old.Verbs, k.Verbs) {
		return old
	}
	r.kinds[gvr] = k
	return k
}

// update starts and stops followers by what is discovered.
func (r *remotes) update(ctx context.Context) error {
	found, err := r.discover(ctx)
	var failed failedDiscovery
	if err != nil && !errors.As(err, &failed) {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	keep := map[*Kind]bool{}
	for _, k := range found {
		keep[k] = true
		if r.followers[k] == nil && k.Can("list") && k.Can("watch") && k.Can("delete") {
			r.follow(k)
		}
	}
	maps.DeleteFunc(r.kinds, func(gvr schema.GroupVersionResource, k *Kind) bool {
		return !keep[k] && !slices.Contains(failed, gvr.GroupVersion()) // a server that cannot be reached may still have them
	})
	for k, f := range r.followers {
		if r.kinds[schema.GroupVersionResource{Group: k.Group, Version: k.Version, Resource: k.Resource}] != k {
			f.stop()
			delete(r.followers, k)
		}
	}
	if r.unknown = len(failed) > 0; r.unknown || len(found) > 0 {
		r.refresh.AddAfter(struct{}{}, rediscover)
	}
	return nil
}

func (r *remotes) follow(k *Kind) {
	ctx, cancel := context.WithCancel(r.env.ctx)
	f := &follower{remotes: r, kind: k, stop: cancel, objects: map[types.UID]Change{}}
	r.followers[k] = f
	r.env.running.Go(func() { f.run(ctx) })
}

// follower lists and watches one resource of an aggregated server.
type follower struct {
	*remotes
	kind    *Kind
	stop    context.CancelFunc
	objects map[types.UID]Change
	listed  bool // guarded by remotes.mu
}

func (f *follower) run(ctx context.Context) {
	wait := firstRetry
	for ctx.Err() == nil {
		began := time.Now()
		err := f.pass(ctx)
		if time.Since(began) > lastRetry {
			wait = firstRetry
		}
		if ctx.Err() == nil {
			f.env.Log.Debug("what another server keeps is read again", "resource", f.kind.Resource, "group", f.kind.Group, "wait", wait, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, lastRetry)
	}
}

// pass lists the objects, reports the differences to the objects it knows, and then
// watches, until the watch cannot be resumed.
func (f *follower) pass(ctx context.Context) error {
	items, version, err := f.env.listAll(ctx, f.kind)
	if err != nil {
		return err
	}
	var changes []Change
	present := map[types.UID]bool{}
	for i := range items {
		present[items[i].UID] = true
		changes = append(changes, f.change(&items[i]))
	}
	for uid, c := range f.objects {
		if !present[uid] {
			c.Gone = true
			changes = append(changes, c)
		}
	}
	f.take(changes)
	f.mu.Lock()
	f.listed = true
	f.mu.Unlock()
	for {
		began := time.Now()
		version, err = f.env.watch(ctx, f.kind, version, func(event string, m *metav1.PartialObjectMetadata) {
			c := f.change(m)
			c.Gone = event == "DELETED"
			f.take([]Change{c})
		})
		switch {
		case err != nil:
			return err
		case time.Since(began) < time.Second:
			return errors.New("the watch has ended at once")
		}
	}
}

// take records changes and passes them to the observers.
func (f *follower) take(changes []Change) {
	for _, c := range changes {
		if c.Gone {
			delete(f.objects, c.UID)
		} else {
			f.objects[c.UID] = c
		}
	}
	if len(changes) > 0 {
		f.tell(changes)
	}
}

func (f *follower) change(m *metav1.PartialObjectMetadata) Change {
	return Change{
		Kind: f.kind, Namespace: m.Namespace, Name: m.Name, Version: m.ResourceVersion,
		Meta: Meta{UID: m.UID, Deleting: m.DeletionTimestamp != nil, Finalizers: m.Finalizers, Owners: m.OwnerReferences},
	}
}
