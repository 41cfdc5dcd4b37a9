package controller

import (
	"slices"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// graph is the graph of owner references. An object has a node if it has owners, or is
// in foreground or orphaning deletion. An owner is known only through its dependents, so
// objects without owner references cost nothing.
type graph struct {
	mu     sync.Mutex
	nodes  map[types.UID]*node
	owners map[types.UID]*owner
}

// node is the state of an object at a revision. Nodes are immutable.
type node struct {
	kind            *Kind
	namespace, name string
	version         string
	Meta
}

// foreground reports whether the object is in foreground deletion.
func (n *node) foreground() bool { return n.Deleting && n.Has(metav1.FinalizerDeleteDependents) }

// orphaning reports whether the object is being deleted with orphaned dependents.
func (n *node) orphaning() bool { return n.Deleting && n.Has(metav1.FinalizerOrphanDependents) }

// to returns the reference of n to an owner, nil if there is none.
func (n *node) to(uid types.UID) *metav1.OwnerReference {
	for i := range n.Owners {
		if n.Owners[i].UID == uid {
			return &n.Owners[i]
		}
	}
	return nil
}

func blocks(ref *metav1.OwnerReference) bool {
	return ref != nil && ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}

// owner is an object that others name as their owner.
type owner struct {
	dependents map[types.UID]bool
	// identity is set once the owner was found to exist.
	identity *identity
	// gone is set when its deletion was seen. A uid is never reused.
	gone bool
	// searched: it was searched for in other namespaces; elsewhere: it was found.
	searched, elsewhere bool
}

// identity is the name of an object, as an owner reference has it.
type identity struct{ apiVersion, kind, namespace, name string }

// matches reports whether a reference of n names this owner, in the same apiVersion.
func (id *identity) matches(n *node, ref *metav1.OwnerReference) bool {
	return id.kind == ref.Kind && id.apiVersion == ref.APIVersion && id.name == ref.Name && (id.namespace == "" || id.namespace == n.namespace)
}

func newGraph() *graph {
	return &graph{nodes: map[types.UID]*node{}, owners: map[types.UID]*owner{}}
}

// get returns a node.
func (g *graph) get(uid types.UID) *node {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.nodes[uid]
}

// dependents returns the objects that refer to an owner.
func (g *graph) dependents(uid types.UID) []*node {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dependentsOf(uid)
}

func (g *graph) dependentsOf(uid types.UID) []*node {
	o := g.owners[uid]
	if o == nil {
		return nil
	}
	all := make([]*node, 0, len(o.dependents))
	for dep := range o.dependents {
		if n := g.nodes[dep]; n != nil {
			all = append(all, n)
		}
	}
	return all
}

// standing returns the state of an owner, and whether it is known. It may be out of date;
// the feed then brings the change.
func (g *graph) standing(n *node, ref *metav1.OwnerReference) (standing, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.owners[ref.UID]
	switch {
	case o == nil:
		return 0, false
	case o.gone:
		return absent, true
	case o.identity == nil || !o.identity.matches(n, ref):
		return 0, false
	}
	if waits := g.nodes[ref.UID]; waits != nil && waits.foreground() {
		return waiting, true
	}
	return solid, true
}

// search reports whether an owner was searched for in other namespaces, and found.
func (g *graph) search(uid types.UID) (searched, found bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.owners[uid]
	return o == nil || o.searched, o != nil && o.elsewhere
}

// searched records the result of that search.
func (g *graph) searched(uid types.UID, found bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o := g.owners[uid]; o != nil {
		o.searched, o.elsewhere = true, found
	}
}

// exists records that an owner exists.
func (g *graph) exists(uid types.UID, id *identity) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o := g.owners[uid]; o != nil {
		o.identity = id
	}
}

// see applies a change to the graph and calls check for every object that may have to be
// deleted or changed because of it.
func (g *graph) see(c *Change, check func(types.UID)) {
	if c.UID == "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.nodes[c.UID]
	if c.Gone {
		g.remove(c.UID, old, check)
		return
	}
	n := &node{kind: c.Kind, namespace: c.Namespace, name: c.Name, version: c.Version, Meta: c.Meta}
	if n.version == "" {
		n.version = strconv.FormatInt(c.Revision, 10)
	}
	if len(n.Owners) == 0 && !n.foreground() && !n.orphaning() {
		if old != nil {
			delete(g.nodes, c.UID)
			g.unlink(old, nil, check)
		}
		return
	}
	g.nodes[c.UID] = n
	if old != nil {
		g.unlink(old, n, check)
	}
	if g.link(n, old) {
		check(n.UID)
	}
	if n.foreground() && (old == nil || !old.foreground()) {
		for _, dep := range g.dependentsOf(n.UID) {
			check(dep.UID)
		}
	}
	if n.foreground() || n.orphaning() {
		check(n.UID)
	}
}

// remove removes an object that was deleted. Its dependents are checked, and owners
// that waited for it.
func (g *graph) remove(uid types.UID, old *node, check func(types.UID)) {
	if old != nil {
		delete(g.nodes, uid)
		g.unlink(old, nil, check)
	}
	if o := g.owners[uid]; o != nil {
		o.gone, o.identity = true, nil
		for dep := range o.dependents {
			check(dep)
		}
	}
}

// link adds the references of an object. It reports whether there is one to an owner that
// is not known to exist.
func (g *graph) link(n, old *node) (doubtful bool) {
	for i := range n.Owners {
		ref := &n.Owners[i]
		o := g.owners[ref.UID]
		if o == nil {
			o = &owner{dependents: map[types.UID]bool{}}
			g.owners[ref.UID] = o
		}
		o.dependents[n.UID] = true
		if old != nil && slices.ContainsFunc(old.Owners, func(was metav1.OwnerReference) bool { return sameOwner(&was, ref) }) {
			continue // unchanged: checked before
		}
		doubtful = doubtful || o.gone || o.identity == nil || !o.identity.matches(n, ref)
		if waits := g.nodes[ref.UID]; waits != nil && waits.foreground() {
			doubtful = true
		}
	}
	return doubtful
}

func sameOwner(a, b *metav1.OwnerReference) bool {
	return a.UID == b.UID && a.Kind == b.Kind && a.APIVersion == b.APIVersion && a.Name == b.Name
}

// unlink removes the references of old that next does not have, and checks the owners
// whose deletion they blocked.
func (g *graph) unlink(old, next *node, check func(types.UID)) {
	for i := range old.Owners {
		ref := &old.Owners[i]
		var now *metav1.OwnerReference
		if next != nil {
			now = next.to(ref.UID)
		}
		if now == nil {
			if o := g.owners[ref.UID]; o != nil {
				delete(o.dependents, old.UID)
				if len(o.dependents) == 0 {
					delete(g.owners, ref.UID)
				}
			}
		}
		if blocks(ref) && !blocks(now) {
			if waits := g.nodes[ref.UID]; waits != nil && waits.foreground() {
				check(ref.UID)
			}
		}
	}
}
