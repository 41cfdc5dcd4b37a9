// Package managedfields implements server-side apply and field ownership
// (metadata.managedFields). Start at Manager, which handles the requests to one
// path of one version of a kind, and at Owners, which makes a Manager for every
// path. The package must not know HTTP or stores.
//
// Manager.Update compares the object before and after a write and gives the changed
// fields to the writer. Manager.Apply merges an apply configuration into the live
// object: it returns a conflict for fields that other managers own, unless forced,
// and removes fields that the applier owned and no longer has in its configuration.
//
// # Place in a write
//
// Both run after defaulting and before admission and Strategy: fields that the server
// sets later have no owner. Fields that the Strategy is going to restore, such as the
// status in a write to the main resource, are excluded by a Scope. KeepTimes runs last,
// before the write is compared with the stored object.
//
// # Performance
//
// Only changed fields are looked at. A comparison walks both Go values at once, guided by
// the schema (plan.go, walk.go, compare.go; loose.go for unstructured objects), and results in a
// tree of changed fields (set.go); those of a new object are written in one pass
// (created.go). Entries whose fields did not change are kept as they are. Encoded sets are
// decoded once and cached (cache.go): objects made from one template have equal sets. What these paths cannot decide is left to the library
// structured-merge-diff, whose result is the reference.
package managedfields

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/apikeel/kelson/resource"
)

// ErrNoVersion is returned by Options.Convert for a version that is no longer served.
// Entries of managedFields in such a version are removed.
var ErrNoVersion = errors.New("managedfields: no such version")

// Scope names the fields that requests to a path can change. Paths are names joined by
// dots; "*" stands for any step, such as an item of a list.
type Scope struct {
	// Except excludes these paths and all below them.
	Except []string
	// Only includes these paths and all below them; nil stands for all.
	Only []string
}

// Options configure a Manager.
type Options struct {
	// Types knows the schema of the kind; nil means no schema, and all lists are atomic.
	Types Types
	// Kind in the version of the requests. Required.
	Kind schema.GroupVersionKind
	// Subresource that the requests are for, "" for the main resource.
	Subresource string
	// Scope of the requests. It applies to entries in the apiVersions of ScopedIn; nil
	// stands for all. Entries in other apiVersions are compared without Scope.
	Scope    Scope
	ScopedIn []string
	// New returns an empty object of Kind. Required.
	New func() resource.Object
	// Default is the defaulting of the version of the request, run after an apply.
	Default func(resource.Object)
	// Hub is the version of the objects that Update and Apply take and return;
	// it defaults to that of Kind.
	Hub schema.GroupVersion
	// Convert converts an object to another version; the result may share memory with
	// it. It is needed if the kind has several versions.
	Convert func(obj resource.Object, to schema.GroupVersion) (resource.Object, error)
	// Custom is set for custom resources. For those an entry in an unknown version is
	// an error; for others the entry is removed.
	Custom bool
	// CustomScale is set for the scale subresource of a custom resource. An apply to it fails
	// as in kube-apiserver, which cannot convert the result.
	CustomScale bool
	// Cache to share with other managers.
	Cache *Cache
}

// Manager tracks field ownership for requests to one path. It is safe for concurrent
// use.
type Manager struct {
	opts    Options
	version string
	ignore  *node            // fields that are not compared, within the Scope
	never   *node            // fields that are never compared
	only    *node            // fields that are compared; nil for all
	strip   *node            // fields that are never owned
	filter  fieldpath.Filter // the Scope; nil for all

	empty atomic.Pointer[map[string]any] // the fields of an empty object, see fieldsBefore
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
	m.ignore, m.never, m.strip = neverOwned(), neverOwned(), stripped()
	if len(opts.Scope.Except) > 0 {
		m.ignore = paths(append(neverOwnedPaths(), opts.Scope.Except...)...)
		m.filter = fieldpath.NewExcludeSetFilter(paths(opts.Scope.Except...).set())
	}
	if len(opts.Scope.Only) > 0 {
		m.only = paths(opts.Scope.Only...)
		m.filter = includeFilter{m.only}
	}
	return m, nil
}

// neverOwnedPaths are the fields that nobody can own.
func neverOwnedPaths() []string { return []string{"apiVersion", "kind", "metadata.managedFields"} }

// neverOwned is neverOwnedPaths as a tree, which all managers share: it is not changed.
var neverOwned = sync.OnceValue(func() *node { return paths(neverOwnedPaths()...) })

// stripped is the tree of fields that are taken out of sets before they are stored. All
// managers share it.
var stripped = sync.OnceValue(func() *node {
	return paths("apiVersion", "kind", "metadata", "metadata.name", "metadata.namespace", "metadata.creationTimestamp",
		"metadata.selfLink", "metadata.uid", "metadata.clusterName", "metadata.generation", "metadata.managedFields",
		"metadata.resourceVersion")
})

// paths returns dotted paths as a tree.
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

// includeFilter is Scope.Only for structured-merge-diff.
type includeFilter struct{ only *node }

func (f includeFilter) Filter(s *fieldpath.Set) *fieldpath.Set {
	return treeOf(s).include(f.only).set()
}

// include returns the part of a tree that matches the patterns.
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

// Update gives the fields that a create, an update or a patch other than apply changes to
// manager. It returns new with managedFields set. live is nil on create. The caller must not
// change either object meanwhile; live is only read.
//
// If ownership cannot be computed, as for an object that does not match its schema, the
// error says why, and the returned object is new with the managedFields of live: the write
// need not fail. After budget.ErrBusy from Options.Convert it should: it can be sent again.
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
		// An object without managedFields keeps none: a part of the owners would mislead.
		return nil, nil
	}
	return m.track(live, new, entries, manager, now)
}

// track gives the fields that changed between two objects to a manager.
func (m *Manager) track(live, new resource.Object, entries []entry, manager string, now time.Time) ([]entry, error) {
	if manager == "" {
		manager = unknownManager
	}
	who := owner{manager, metav1.ManagedFieldsOperationUpdate, m.version, m.opts.Subresource}
	if live == nil && len(entries) == 0 {
		switch set := m.createdSet(new); {
		case set == nil:
		case set.raw == "{}":
			return nil, nil
		default:
			return []entry{{owner: who, version: m.version, time: stamp(now), set: set}}, nil
		}
	}
	c := &comparisons{m: m, live: live, new: new}
	changes, err := c.in(m.version)
	if err != nil {
		return nil, err
	}
	taken := changes.members().minus(m.strip, member)
	known, shared := false, false
	out := entries[:0:len(entries)]
	for _, e := range entries {
		var left *node
		if e.owner == who && !taken.empty() && !e.set.tree().overlaps(m.strip) {
			// Fields that it owned and changed remain its own.
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
		if left != e.set.tree() {
			e.set = m.opts.Cache.encoded(left)
			shared = shared || e.set.tree() == left
		}
		out = append(out, e)
	}
	if !taken.empty() && !known {
		var all *node
		out, all = m.give(out, entry{owner: who, version: m.version, time: stamp(now)}, taken)
		shared = shared || slices.ContainsFunc(out, func(e entry) bool { return e.set.tree() == all })
	}
	out = m.opts.Cache.capUpdaters(out)
	if !shared { // all sets were in the cache
		c.reuse()
	}
	return out, nil
}

// give adds fields to the entry of an owner. It also returns all that are in the entry then.
func (m *Manager) give(entries []entry, to entry, fields *node) ([]entry, *node) {
	i := slices.IndexFunc(entries, func(e entry) bool { return e.owner == to.owner })
	if i >= 0 {
		fields = entries[i].set.tree().plus(fields)
	}
	to.set = m.opts.Cache.encoded(fields)
	if i >= 0 {
		entries[i] = to
		return entries, fields
	}
	return append(entries, to), fields
}

// comparisons caches the comparison of two objects in each version that entries use.
type comparisons struct {
	m         *Manager
	live, new resource.Object
	done      map[string]*node
	walks     []*walk
}

// reuse gives away what the comparisons have made. No tree of theirs may be in use.
func (c *comparisons) reuse() {
	for _, w := range c.walks {
		w.reuse()
	}
}

// noVersion returns the error for a version that the kind does not have.
func (m *Manager) noVersion(gv schema.GroupVersion) error {
	if m.opts.Custom || m.opts.CustomScale {
		return fmt.Errorf("request to convert CR to an invalid group/version: %s", gv)
	}
	return ErrNoVersion
}

// in returns the changes as seen in a version; ErrNoVersion if it is not served.
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
		return nil, c.m.noVersion(gv) // versions of one group do not convert to another group
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
	w := walks.Get().(*walk)
	c.walks = append(c.walks, w)
	changes, err := c.m.compare(w, types, live, new, c.m.scoped(version))
	if err != nil {
		return nil, err
	}
	if c.done == nil {
		c.done = map[string]*node{}
	}
	c.done[version] = changes
	return changes, nil
}

// fits checks those parts of an unstructured object that the comparison does not look at:
// the fields outside of the Scope and, if the object was converted, all of it. Metadata was
// validated before.
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

// subtract returns the fields that an owner keeps after others changed or removed some.
func (c *comparisons) subtract(e entry) (*node, error) {
	changes, err := c.in(e.version)
	if err != nil {
		return nil, err
	}
	return c.m.reconciled(e).minus(changes, touched), nil
}

// reconciled returns the fields of an owner in terms of the current schema.
func (m *Manager) reconciled(e entry) *node {
	gv, err := schema.ParseGroupVersion(e.version)
	if err != nil {
		return e.set.tree()
	}
	types, ok := m.opts.Cache.kind(m.opts.Types, gv.WithKind(m.opts.Kind.Kind))
	if !ok || e.set.fits.Load() == types.typ {
		return e.set.tree()
	}
	tree := types.typ.reconcile(e.set.tree())
	if tree == e.set.tree() {
		e.set.fits.Store(types.typ)
	}
	return tree
}

// scoped reports whether the Scope applies to a version.
func (m *Manager) scoped(version string) bool {
	return m.opts.ScopedIn == nil || slices.Contains(m.opts.ScopedIn, version)
}

// compare returns the tree of changes, within the Scope or without.
func (m *Manager) compare(w *walk, types *kindType, live, new resource.Object, scoped bool) (*node, error) {
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

// liveIn returns the live object in a version; an empty object on create.
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
