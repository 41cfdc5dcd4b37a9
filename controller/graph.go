package controller

import (
	"slices"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// graph is what garbage collection knows. An object is in it if it has owners, or
// is being deleted in a way that is about its dependents; an owner is known
// by its dependents only. So what takes no part in ownership costs nothing.
type graph struct {
	mu     sync.Mutex
	nodes  map[types.UID]*node
	owners map[types.UID]*owner
}

// node is an object, as it was at a revision. Nodes are never changed.
type node struct {
	kind            *Kind
	namespace, name string
	version         string
	Meta
}

// foreground reports whether the object waits for its dependents to go.
func (n *node) foreground() bool { return n.Deleting && n.Has(metav1.FinalizerDeleteDependents) }

// orphaning reports whether the object waits for its dependents to be let go.
func (n *node) orphaning() bool { return n.Deleting && n.Has(metav1.FinalizerOrphanDependents) }

// to returns the reference to an owner.
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

// owner is what something refers to as its owner.
type owner struct {
	dependents map[types.UID]bool
	// identity is set when the owner was found to exist, as what it is.
	identity *identity
	// gone: it was seen to go. A uid never comes back.
	gone bool
	// searched: it was looked for in other namespaces, and elsewhere: found there.
	searched, elsewhere bool
}

// identity is where an object is found.
type identity struct{ apiVersion, kind, namespace, name string }

// matches reports whether a reference in an object means this owner. A
// reference names the owner's kind in any version that it knows.
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

// standing tells how the owner stands that a reference names, if that is known.
// It can be true no more, but then the feed will tell.
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

// search tells whether an owner that is not where it should be was searched for
// elsewhere, and found.
func (g *graph) search(uid types.UID) (searched, found bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.owners[uid]
	return o == nil || o.searched, o != nil && o.elsewhere
}

// searched notes the result of a search.
func (g *graph) searched(uid types.UID, found bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o := g.owners[uid]; o != nil {
		o.searched, o.elsewhere = true, found
	}
}

// exists notes that an owner was found to exist.
func (g *graph) exists(uid types.UID, id *identity) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o := g.owners[uid]; o != nil {
		o.identity = id
	}
}

// see brings a change into the graph and calls check for every object that has
// to be looked at because of it.
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

// remove takes an object out that is gone: its dependents are looked at, and
// owners that waited for it.
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

// link notes the references of an object, and reports whether it has some that
// are not known to be good.
func (g *graph) link(n, old *node) (doubtful bool) {
	for i := range n.Owners {
		ref := &n.Owners[i]
		o := g.owners[ref.UID]
		if o == nil {
			o = &owner{dependents: map[types.UID]bool{}}
			g.owners[ref.UID] = o
		}
		o.dependents[n.UID] = true
		if old != nil && slices.ContainsFunc(old.Owners, func(was metav1.OwnerReference) bool { return same(&was, ref) }) {
			continue // it was judged before
		}
		doubtful = doubtful || o.gone || o.identity == nil || !o.identity.matches(n, ref)
		if waits := g.nodes[ref.UID]; waits != nil && waits.foreground() {
			doubtful = true
		}
	}
	return doubtful
}

func same(a, b *metav1.OwnerReference) bool {
	return a.UID == b.UID && a.Kind == b.Kind && a.APIVersion == b.APIVersion && a.Name == b.Name
}

// unlink removes the references that an object had and next has not, and looks
// at the owners that they kept from going.
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
