// Package managedfields keeps track of who owns which field of an object, and
// merges what clients apply: server-side apply.
//
// A Manager does it for the requests to one path of one version of a kind. Its
// Update compares the object before and after a write and gives what changed to
// the writer; its Apply merges a configuration into the live object, refusing to
// change what others own unless it is forced to, and removes what the applier
// owned and no longer mentions.
//
// # Where it belongs in a write
//
// Both run on the object that the client wants, after defaulting and before
// admission and the strategy: fields that the server fills in later belong to
// nobody. What the strategy is going to undo, such as the status in a write to
// the main resource, is named by a Scope, so that nobody comes to own it.
// KeepTimes runs last, before the write is compared with what is stored.
//
// # How it is fast
//
// Only what changed is looked at. A comparison walks both Go values at once,
// guided by the schema (plan.go, compare.go; loose.go for unstructured objects)
// and results in a tree of changed fields (set.go); owners whose fields did not
// change keep their entries as they are. Encoded sets are decoded once and
// kept (cache.go): objects made from one template have equal sets.
package managedfields

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/apikeel/kelson/resource"
)

// ErrNoVersion is what Options.Convert returns for a version that the resource
// is not served in any more. Who owns fields in such a version is forgotten.
var ErrNoVersion = errors.New("managedfields: no such version")

// Scope names the fields that requests to a path can change. Paths are names
// joined by dots; "*" stands for any step, such as an item of a list.
type Scope struct {
	// Except these, and all below them.
	Except []string
	// Only these, and all below them; nil stands for all.
	Only []string
}

// Options say what a Manager is for.
type Options struct {
	// Types of the kind; nil if it has no schema, and every list is atomic.
	Types Types
	// Kind in the version of the requests. Required.
	Kind schema.GroupVersionKind
	// Subresource that the requests are for, "" for the main resource.
	Subresource string
	// Scope of the requests, and the apiVersions in which it counts what it says:
	// whoever knows the object in another one sees all of a change. nil stands for
	// all.
	Scope    Scope
	ScopedIn []string
	// New returns an empty object of Kind. Required.
	New func() resource.Object
	// Default fills in defaults after an apply, in the version of the request.
	Default func(resource.Object)
	// Hub is the version of the objects that Update and Apply take and return;
	// it defaults to that of Kind.
	Hub schema.GroupVersion
	// Convert returns an object in another version, which it may share memory
	// with. It is needed if the kind has several versions.
	Convert func(obj resource.Object, to schema.GroupVersion) (resource.Object, error)
	// Custom is set for custom resources. Owners that know one of those in a version
	// that it does not have are in the way, where they are forgotten otherwise.
	Custom bool
	// Shown is set for what a custom resource is shown as. Nothing that is applied
	// can be made into that: it is taken for the resource itself.
	Shown bool
	// Cache to share with other managers.
	Cache *Cache
}

// Manager keeps the owners of fields for requests to one path. It may be used
// by several goroutines.
type Manager struct {
	opts    Options
	version string
	ignore  *node            // what does not count in a comparison
	never   *node            // what does not count in any, whatever the Scope
	only    *node            // what counts, nil for all
	strip   *node            // what nobody owns
	filter  fieldpath.Filter // the Scope, nil for all
}

// New returns a manager.
func New(opts Options) (*Manager, error) {
	if opts.Kind.Empty() || opts.New == nil {
		return nil, errors.New("managedfields: Kind and New are required")
	}
	if opts.Hub.Empty() {
		opts.Hub = opts.Kind.GroupVersion()
	}
	if opts.Cache == nil {
		opts.Cache = &Cache{}
	}
	if len(opts.Scope.Except) > 0 && len(opts.Scope.Only) > 0 {
		return nil, errors.New("managedfields: a Scope has either Except or Only")
	}
	m := &Manager{opts: opts, version: opts.Kind.GroupVersion().String()}
	never := []string{"apiVersion", "kind", "metadata.managedFields"}
	m.ignore, m.never = paths(append(never, opts.Scope.Except...)...), paths(never...)
	m.strip = paths("apiVersion", "kind", "metadata", "metadata.name", "metadata.namespace", "metadata.creationTimestamp",
		"metadata.selfLink", "metadata.uid", "metadata.clusterName", "metadata.generation", "metadata.managedFields",
		"metadata.resourceVersion")
	if len(opts.Scope.Except) > 0 {
		m.filter = fieldpath.NewExcludeSetFilter(paths(opts.Scope.Except...).set())
	}
	if len(opts.Scope.Only) > 0 {
		m.only = paths(opts.Scope.Only...)
		m.filter = includeFilter{m.only}
	}
	return m, nil
}

// paths returns the tree of dotted paths.
func paths(in ...string) *node {
	root := &node{}
	for _, path := range in {
		n := root
		for _, name := range strings.Split(path, ".") {
			n = n.child(fieldStep(name))
		}
		n.flags |= member
	}
	return root
}

// includeFilter is Scope.Only for the library.
type includeFilter struct{ only *node }

func (f includeFilter) Filter(s *fieldpath.Set) *fieldpath.Set {
	return treeOf(s).include(f.only).set()
}

// include returns the part of a tree that the patterns cover.
func (n *node) include(patterns *node) *node {
	out := &node{step: n.step, flags: n.flags}
	for _, k := range n.kids {
		p := patterns.get(&step{name: "*"})
		if p == nil {
			p = patterns.get(&k.step)
		}
		switch {
		case p == nil:
		case p.flags&member != 0:
			out.kids = append(out.kids, k)
		default:
			in := k.include(p)
			if len(in.kids) > 0 || in.flags&touched != 0 {
				out.kids = append(out.kids, in)
			}
		}
	}
	return out
}

// Update gives what a create, an update or a patch other than apply changes to
// manager. It returns the object to go on with, which is new with managedFields
// set. live is nil if the object is created. Neither may be changed by others
// meanwhile; live is only read.
//
// If ownership cannot be told, as for an object that does not fit its schema,
// the error says why, and the object is new with the managedFields of live: a
// write does not fail for it.
func (m *Manager) Update(live, new resource.Object, manager string, now time.Time) (resource.Object, error) {
	var before []metav1.ManagedFieldsEntry
	if live != nil {
		before = resource.ManagedFields(live)
	}
	entries := m.opts.Cache.liveOrNew(before, resource.ManagedFields(new), m.opts.Subresource != "")
	entries, err := m.update(live, new, entries, manager, now)
	if err != nil {
		resource.SetManagedFields(new, before)
		return new, err
	}
	resource.SetManagedFields(new, encodeEntries(entries))
	return new, nil
}

func (m *Manager) update(live, new resource.Object, entries []entry, manager string, now time.Time) ([]entry, error) {
	if len(entries) == 0 && live != nil && live.GetUID() != "" {
		// Nothing is known of the object's owners, and a part would be misleading.
		return nil, nil
	}
	return m.track(live, new, entries, manager, now)
}

// track gives what changed between two objects to a manager.
func (m *Manager) track(live, new resource.Object, entries []entry, manager string, now time.Time) ([]entry, error) {
	c := &comparisons{m: m, live: live, new: new}
	changes, err := c.in(m.version)
	if err != nil {
		return nil, err
	}
	taken := changes.members().minus(m.strip, member)
	if manager == "" {
		manager = unknownManager
	}
	who := owner{manager, metav1.ManagedFieldsOperationUpdate, m.version, m.opts.Subresource}
	known := false
	out := entries[:0:len(entries)]
	for _, e := range entries {
		var left *node
		if e.owner == who && !taken.empty() && !e.set.tree.overlaps(m.strip) {
			// What it owned and changed, it still owns.
			left = m.reconciled(e).minus(changes, removed).plus(taken)
			e.time, known = stamp(now), true
		} else if left, err = c.subtract(e); errors.Is(err, ErrNoVersion) {
			continue
		} else if err != nil {
			return nil, err
		}
		if left.empty() {
			continue
		}
		if left != e.set.tree {
			e.set = m.opts.Cache.encoded(left)
		}
		out = append(out, e)
	}
	if !taken.empty() && !known {
		out = m.give(out, entry{owner: who, version: m.version, time: stamp(now)}, taken)
	}
	return m.opts.Cache.capUpdaters(out), nil
}

// give adds fields to those of an owner.
func (m *Manager) give(entries []entry, to entry, fields *node) []entry {
	i := slices.IndexFunc(entries, func(e entry) bool { return e.owner == to.owner })
	if i >= 0 {
		to.set = m.opts.Cache.encoded(entries[i].set.tree.plus(fields))
		entries[i] = to
		return entries
	}
	to.set = m.opts.Cache.encoded(fields)
	return append(entries, to)
}

// comparisons compare two objects in all versions that owners know them in.
type comparisons struct {
	m         *Manager
	live, new resource.Object
	done      map[string]*node
}

// noVersion is the error about a version that the kind does not have.
func (m *Manager) noVersion(gv schema.GroupVersion) error {
	if m.opts.Custom || m.opts.Shown {
		return fmt.Errorf("request to convert CR to an invalid group/version: %s", gv)
	}
	return ErrNoVersion
}

// in returns what changed, as seen in a version; ErrNoVersion if there is none.
func (c *comparisons) in(version string) (*node, error) {
	if changes, ok := c.done[version]; ok {
		return changes, nil
	}
	gv, err := schema.ParseGroupVersion(version)
	if err != nil {
		return nil, err
	}
	kind := c.m.opts.Kind.Kind
	types, ok := c.m.opts.Cache.kind(c.m.opts.Types, gv.WithKind(kind))
	if !ok || gv.Group != c.m.opts.Kind.Group {
		return nil, c.m.noVersion(gv) // the versions of a group know nothing of another
	}
	live, err := c.m.liveIn(c.live, gv)
	if err != nil {
		return nil, err
	}
	new, err := c.m.convert(c.new, gv)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(c.m.fits(types, live, version), c.m.fits(types, new, version)); err != nil {
		return nil, err
	}
	changes, err := c.m.compare(types, live, new, c.m.scoped(version))
	if err != nil {
		return nil, err
	}
	if c.done == nil {
		c.done = map[string]*node{}
	}
	c.done[version] = changes
	return changes, nil
}

// fits returns what is wrong with an object that is a map where the comparison
// does not look: with what the request cannot change and, if it was converted, with
// all of it. Metadata has been seen to.
func (m *Manager) fits(types *kindType, obj resource.Object, version string) error {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	switch {
	case version != m.version:
		return types.typ.checkParts(u.Object, false, nil)
	case len(m.opts.Scope.Except) > 0:
		return types.typ.checkParts(u.Object, true, m.opts.Scope.Except)
	}
	return nil
}

// subtract returns what an owner is left with after what others changed or
// removed.
func (c *comparisons) subtract(e entry) (*node, error) {
	changes, err := c.in(e.version)
	if err != nil {
		return nil, err
	}
	return c.m.reconciled(e).minus(changes, touched), nil
}

// reconciled returns what an owner owns in terms of the schema of today.
func (m *Manager) reconciled(e entry) *node {
	gv, err := schema.ParseGroupVersion(e.version)
	if err != nil {
		return e.set.tree
	}
	types, ok := m.opts.Cache.kind(m.opts.Types, gv.WithKind(m.opts.Kind.Kind))
	if !ok || e.set.fits.Load() == types.typ {
		return e.set.tree
	}
	tree := types.typ.reconcile(e.set.tree)
	if tree == e.set.tree {
		e.set.fits.Store(types.typ)
	}
	return tree
}

// scoped reports whether the Scope counts in a version.
func (m *Manager) scoped(version string) bool {
	return m.opts.ScopedIn == nil || slices.Contains(m.opts.ScopedIn, version)
}

// compare returns the tree of what changed and counts, within the Scope or at all.
func (m *Manager) compare(types *kindType, live, new resource.Object, scoped bool) (*node, error) {
	w := &walk{}
	root := w.start(m.ignore)
	if !scoped {
		root = w.start(m.never)
	}
	lu, lok := live.(*unstructured.Unstructured)
	nu, nok := new.(*unstructured.Unstructured)
	switch {
	case lok && nok:
		w.diffLoose(types.typ, loose{lu.Object, true}, loose{nu.Object, true}, root)
	case !lok && !nok:
		w.diff(types.plan(new), goOperand(live), goOperand(new), root)
	default:
		return nil, fmt.Errorf("managedfields: cannot compare %T with %T", live, new)
	}
	if w.err != nil {
		return nil, w.err
	}
	if m.only != nil && scoped {
		return root.node.include(m.only), nil
	}
	return root.node, nil
}

// liveIn returns the live object in a version; the empty one if there is none.
func (m *Manager) liveIn(live resource.Object, gv schema.GroupVersion) (resource.Object, error) {
	if live == nil {
		empty := m.opts.New()
		if gv == m.opts.Kind.GroupVersion() {
			return empty, nil
		}
		hub, err := m.toHub(empty)
		if err != nil {
			return nil, err
		}
		live = hub
	}
	return m.convert(live, gv)
}

// convert returns an object of the hub in a version.
func (m *Manager) convert(obj resource.Object, gv schema.GroupVersion) (resource.Object, error) {
	if gv == m.opts.Hub {
		return obj, nil
	}
	if m.opts.Convert == nil {
		return nil, m.noVersion(gv)
	}
	obj, err := m.opts.Convert(obj, gv)
	if errors.Is(err, ErrNoVersion) {
		err = m.noVersion(gv)
	}
	return obj, err
}

// toHub returns an object of the request's version in that of the hub.
func (m *Manager) toHub(obj resource.Object) (resource.Object, error) {
	if m.opts.Hub == m.opts.Kind.GroupVersion() {
		return obj, nil
	}
	if m.opts.Convert == nil {
		return nil, ErrNoVersion
	}
	return m.opts.Convert(obj, m.opts.Hub)
}
