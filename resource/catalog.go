package resource

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// allVerbs returns the verbs of a Definition that declares none.
func allVerbs() []string {
	return []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
}

// Catalog is the set of resources that a server serves, indexed by group, version,
// resource and kind. A Catalog is immutable: With and Change return another one.
// Lookups therefore need no lock.
type Catalog struct {
	// sources are the groups as they were declared, in that order, with defaults
	// filled in. With starts from them.
	sources []declaredGroup
	// groups are the groups as they are served. They differ from sources where a
	// version of a resource is served in another group.
	groups []*ServedGroup
	byName map[string]*ServedGroup
}

type declaredGroup struct {
	name        string
	definitions []*Definition
}

// Served is a resource in one of its versions.
type Served struct {
	// Definition is complete: names, hub and storage key are filled in.
	Definition *Definition
	Version    *Version
	// GroupVersion in which the resource is served. Its group is that of the
	// version, which may differ from that of the definition.
	GroupVersion schema.GroupVersion
	// APIVersion is GroupVersion as a string.
	APIVersion string
	// Unstructured says that objects are runtime.Unstructured, which contain their
	// own kind and apiVersion.
	Unstructured bool
	// Type is the Go type of the objects, without the pointer.
	Type reflect.Type
	// Index of Version in Definition.Versions.
	Index int
}

// complete fills in the fields that are derived from others.
func (s *Served) complete() {
	s.APIVersion = s.GroupVersion.String()
	obj := s.Version.New()
	_, s.Unstructured = obj.(runtime.Unstructured)
	s.Type = reflect.TypeOf(obj).Elem()
	for s.Index = range s.Definition.Versions {
		if &s.Definition.Versions[s.Index] == s.Version {
			break
		}
	}
}

// GroupVersionKind returns the kind of the objects.
func (s *Served) GroupVersionKind() schema.GroupVersionKind {
	return s.GroupVersion.WithKind(s.Definition.Kind)
}

// GroupVersionResource returns the resource as clients name it.
func (s *Served) GroupVersionResource() schema.GroupVersionResource {
	return s.GroupVersion.WithResource(s.Definition.Resource)
}

// IsHub reports whether this is the version in which objects are stored.
func (s *Served) IsHub() bool { return s.Version == s.Definition.HubVersion() }

// ServedGroup is an API group as clients see it.
type ServedGroup struct {
	Name string
	// Versions, the preferred one first.
	Versions []ServedVersion

	resources, kinds map[[2]string]*Served
}

// ServedVersion is a version of a group.
type ServedVersion struct {
	Name string
	// Resources in the order in which they were declared.
	Resources []*Served
}

// NewCatalog makes a catalog of groups, or returns all errors in their
// definitions. A group without resources reserves a place in the order of groups,
// for resources of other groups that have a version in it.
func NewCatalog(groups ...Group) (*Catalog, error) {
	return new(Catalog).With(groups...)
}

// With returns a catalog in which the groups replace those of the same names, or
// are appended if there are none. A group without resources removes the resources
// of the old one.
func (c *Catalog) With(groups ...Group) (*Catalog, error) {
	n := &Catalog{sources: slices.Clone(c.sources)}
	changed := map[string]bool{}
	var errs []error
	for i := range groups {
		s, err := declare(&groups[i])
		errs = append(errs, err)
		at := slices.IndexFunc(n.sources, func(old declaredGroup) bool { return old.name == s.name })
		if at < 0 {
			n.sources = append(n.sources, s)
		} else {
			if slices.ContainsFunc(groups[:i], func(g Group) bool { return g.Name == s.name }) {
				errs = append(errs, fmt.Errorf("group %q: declared twice", s.name))
			}
			n.sources[at].markGroups(changed)
			n.sources[at] = s
		}
		s.markGroups(changed)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if err := n.index(c.byName, changed); err != nil {
		return nil, err
	}
	return n, nil
}

// markGroups marks every group in which a version of the definitions is served.
func (s declaredGroup) markGroups(mark map[string]bool) {
	mark[s.name] = true
	for _, d := range s.definitions {
		for i := range d.Versions {
			mark[d.GroupOf(&d.Versions[i])] = true
		}
	}
}

// index builds the served groups. It reuses those of an earlier catalog that have
// not changed.
func (c *Catalog) index(old map[string]*ServedGroup, changed map[string]bool) error {
	c.byName = make(map[string]*ServedGroup, len(old)+len(changed))
	group := func(name string) *ServedGroup {
		g := c.byName[name]
		if g == nil {
			if !changed[name] {
				g = old[name]
			}
			if g == nil {
				g = newServedGroup(name)
			}
			c.byName[name] = g
			c.groups = append(c.groups, g)
		}
		return g
	}
	var errs []error
	// A declared group keeps the place of its declaration, even if a resource of
	// another group has a version in it and is declared earlier.
	declared := map[string]bool{}
	for _, s := range c.sources {
		declared[s.name] = true
	}
	for _, s := range c.sources {
		group(s.name)
		met := map[string]bool{}
		s.markGroups(met)
		for _, name := range slices.Sorted(maps.Keys(met)) {
			if !declared[name] {
				group(name)
			}
		}
	}
	for _, s := range c.sources {
		for _, d := range s.definitions {
			for i := range d.Versions {
				v := &d.Versions[i]
				if v.Off {
					continue
				}
				if g := group(d.GroupOf(v)); changed[g.Name] {
					errs = append(errs, g.add(d, v))
				}
			}
		}
	}
	c.groups = slices.DeleteFunc(c.groups, func(g *ServedGroup) bool { return len(g.resources) == 0 })
	for name := range changed {
		if g := c.byName[name]; g == nil || len(g.resources) == 0 {
			delete(c.byName, name)
		} else {
			g.sort()
		}
	}
	return errors.Join(errs...)
}

func newServedGroup(name string) *ServedGroup {
	return &ServedGroup{Name: name, resources: map[[2]string]*Served{}, kinds: map[[2]string]*Served{}}
}

// sort orders the versions by their priority, the preferred one first.
func (g *ServedGroup) sort() {
	slices.SortStableFunc(g.Versions, func(a, b ServedVersion) int {
		return version.CompareKubeAwareVersionStrings(b.Name, a.Name)
	})
}

func (g *ServedGroup) add(d *Definition, v *Version) error {
	gv := schema.GroupVersion{Group: g.Name, Version: v.Name}
	s := &Served{Definition: d, Version: v, GroupVersion: gv}
	s.complete()
	if g.resources[[2]string{v.Name, d.Resource}] != nil {
		return fmt.Errorf("%s: declared twice in %s", d.Resource, s.APIVersion)
	}
	if g.kinds[[2]string{v.Name, d.Kind}] != nil {
		return fmt.Errorf("%s: another resource of %s has the kind %s", d.Resource, s.APIVersion, d.Kind)
	}
	g.resources[[2]string{v.Name, d.Resource}] = s
	g.kinds[[2]string{v.Name, d.Kind}] = s
	at := slices.IndexFunc(g.Versions, func(x ServedVersion) bool { return x.Name == v.Name })
	if at < 0 {
		at = len(g.Versions)
		g.Versions = append(g.Versions, ServedVersion{Name: v.Name})
	}
	g.Versions[at].Resources = append(g.Versions[at].Resources, s)
	return nil
}

// Version returns a version of the group.
func (g *ServedGroup) Version(name string) (*ServedVersion, bool) {
	for i := range g.Versions {
		if g.Versions[i].Name == name {
			return &g.Versions[i], true
		}
	}
	return nil, false
}

// Lookup finds a resource by the group, version and resource of a request path.
func (c *Catalog) Lookup(group, version, resource string) (*Served, bool) {
	if g := c.byName[group]; g != nil {
		s := g.resources[[2]string{version, resource}]
		return s, s != nil
	}
	return nil, false
}

// LookupKind finds a resource by the kind of its objects.
func (c *Catalog) LookupKind(kind schema.GroupVersionKind) (*Served, bool) {
	if g := c.byName[kind.Group]; g != nil {
		s := g.kinds[[2]string{kind.Version, kind.Kind}]
		return s, s != nil
	}
	return nil, false
}

// Definition finds a resource of a group whatever its version. If two definitions
// serve it in different versions, that of the preferred version is returned.
func (c *Catalog) Definition(group, resource string) (*Definition, bool) {
	if g := c.byName[group]; g != nil {
		for i := range g.Versions {
			if s := g.resources[[2]string{g.Versions[i].Name, resource}]; s != nil {
				return s.Definition, true
			}
		}
	}
	return nil, false
}

// Group returns a group by its name.
func (c *Catalog) Group(name string) (*ServedGroup, bool) {
	g := c.byName[name]
	return g, g != nil
}

// Groups returns the groups that have resources, in the order in which they
// were declared. The caller must not change the slice.
func (c *Catalog) Groups() []*ServedGroup { return c.groups }

// Definitions returns every definition once, whatever its versions.
func (c *Catalog) Definitions() []*Definition {
	var all []*Definition
	for _, s := range c.sources {
		all = append(all, s.definitions...)
	}
	return all
}

// declare copies the definitions of a group, fills in defaults and returns all
// errors in them.
func declare(g *Group) (declaredGroup, error) {
	s := declaredGroup{name: g.Name, definitions: make([]*Definition, 0, len(g.Resources))}
	var errs []error
	for i := range g.Resources {
		d := g.Resources[i]
		errs = append(errs, d.declare(g.Name))
		s.definitions = append(s.definitions, &d)
	}
	return s, errors.Join(errs...)
}

// declare fills in the defaults of a definition and returns all errors in it.
func (d *Definition) declare(group string) error {
	if d.Group == "" {
		d.Group = group
	}
	d.complete()
	var errs []error
	if err := d.check(); err != nil {
		errs = append(errs, fmt.Errorf("group %q: resource %q: %w", group, d.Resource, err))
	}
	if d.Group != group {
		errs = append(errs, fmt.Errorf("group %q: resource %q: is of group %q", group, d.Resource, d.Group))
	}
	if hub := d.HubVersion(); hub != nil && hub.New != nil {
		d.stored = &Served{Definition: d, Version: hub, GroupVersion: schema.GroupVersion{Group: d.GroupOf(hub), Version: hub.Name}}
		d.stored.complete()
	}
	return errors.Join(errs...)
}

// complete sets the fields that have a default.
func (d *Definition) complete() {
	if d.Singular == "" {
		d.Singular = strings.ToLower(d.Kind)
	}
	if d.ListKind == "" {
		d.ListKind = d.Kind + "List"
	}
	if d.StorageKey == "" {
		d.StorageKey = d.Resource
		if d.Group != "" {
			d.StorageKey = d.Group + "/" + d.Resource
		}
	}
	if d.Hub == "" && len(d.Versions) > 0 {
		d.Hub = d.Versions[0].Name
	}
	if d.Verbs == nil {
		d.Verbs = allVerbs()
		if d.Answer != nil {
			d.Verbs = []string{"create"}
		}
		if d.Source != nil {
			d.Verbs = []string{"get", "list"}
		}
	}
}

// check returns all errors in a complete definition.
func (d *Definition) check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if d.Resource == "" || d.Resource != strings.ToLower(d.Resource) || strings.Contains(d.Resource, "/") {
		wrong("a resource needs a plural, lower-case name")
	}
	if d.Kind == "" {
		wrong("no kind")
	}
	if strings.HasPrefix(d.StorageKey, "/") || strings.HasSuffix(d.StorageKey, "/") {
		wrong("storage key %q begins or ends with a slash", d.StorageKey)
	}
	if len(d.Versions) == 0 {
		wrong("no versions")
	}
	hub := d.HubVersion()
	if hub == nil && len(d.Versions) > 0 {
		wrong("the hub %q is not one of the versions", d.Hub)
	}
	if d.StoreAs != "" && d.VersionNamed(d.StoreAs) == nil {
		wrong("the version %q to store objects in is not one of the versions", d.StoreAs)
	}
	for i := range d.Versions {
		v := &d.Versions[i]
		switch {
		case v.Name == "":
			wrong("version %d has no name", i)
		case v.New == nil:
			wrong("version %s: no New", v.Name)
		case v.NewList == nil && slices.Contains(d.Verbs, "list"):
			wrong("version %s: no NewList", v.Name)
		case v != hub && hub != nil && !d.Virtual() && (v.ToHub == nil || v.FromHub == nil):
			wrong("version %s: does not convert to the hub %s", v.Name, hub.Name)
		}
	}
	for i := range d.Old {
		if v := &d.Old[i]; v.Name == "" || v.New == nil || v.ToHub == nil {
			wrong("old version %q: no name, New or ToHub", v.Name)
		}
	}
	known := allVerbs()
	for _, verb := range d.Verbs {
		if !slices.Contains(known, verb) {
			wrong("unknown verb %q", verb)
		}
	}
	if d.Columns != nil && d.Cells == nil {
		wrong("columns without cells")
	}
	for i, sub := range d.Subresources {
		switch {
		case sub.Name == "":
			wrong("subresource %d has no name", i)
		case slices.ContainsFunc(d.Subresources[:i], func(s Subresource) bool { return s.Name == sub.Name && s.sharesVersion(&sub) }):
			wrong("subresource %s: declared twice", sub.Name)
		case sub.hasManyRoles():
			wrong("subresource %s: is more than one of part, projection, action and connection", sub.Name)
		case sub.Kind.Kind != "" && sub.New == nil && sub.Connect == nil:
			wrong("subresource %s: no New", sub.Name)
		case sub.Connect != nil && (sub.Connect.Options == nil || sub.Connect.Locate == nil || len(sub.Connect.Methods) == 0):
			wrong("subresource %s: a connection needs methods, options and a location", sub.Name)
		}
	}
	return errors.Join(errs...)
}

// isIn reports whether a version of the resource has the subresource.
func (s *Subresource) isIn(version string) bool {
	return s.Versions == nil || slices.Contains(s.Versions, version)
}

// sharesVersion reports whether some version has both subresources.
func (s *Subresource) sharesVersion(other *Subresource) bool {
	return s.Versions == nil || other.Versions == nil || slices.ContainsFunc(s.Versions, other.isIn)
}

// hasManyRoles reports whether more than one of Part, Projection, Action and Connect
// is set.
func (s *Subresource) hasManyRoles() bool {
	n := 0
	for _, is := range []bool{s.Part != nil, s.Projection != nil, s.Action != nil, s.Connect != nil} {
		if is {
			n++
		}
	}
	return n > 1
}

// Stored returns the resource in the hub version, even if that version is not
// served. The definition must be part of a catalog.
func (d *Definition) Stored() *Served { return d.stored }

// HubVersion returns the version that objects are stored in, nil if Hub names none
// of the versions.
func (d *Definition) HubVersion() *Version {
	for i := range d.Versions {
		if v := &d.Versions[i]; v.Name == d.Hub || d.Hub == "" {
			return v
		}
	}
	return nil
}

// VersionNamed returns one of the versions, nil if there is none of that name.
func (d *Definition) VersionNamed(name string) *Version {
	for i := range d.Versions {
		if d.Versions[i].Name == name {
			return &d.Versions[i]
		}
	}
	return nil
}

// StorageVersion returns the version that objects are written in: that named by StoreAs, or
// the hub.
func (d *Definition) StorageVersion() *Version {
	if v := d.VersionNamed(d.StoreAs); v != nil {
		return v
	}
	return d.HubVersion()
}

// StorageAPIVersion returns the apiVersion that objects are written with.
func (d *Definition) StorageAPIVersion() string {
	if v := d.StorageVersion(); v != nil {
		return schema.GroupVersion{Group: d.GroupOf(v), Version: v.Name}.String()
	}
	return d.HubAPIVersion()
}

// HubAPIVersion returns the apiVersion of the hub.
func (d *Definition) HubAPIVersion() string {
	if hub := d.HubVersion(); hub != nil {
		return schema.GroupVersion{Group: d.GroupOf(hub), Version: hub.Name}.String()
	}
	return ""
}

// GroupOf returns the group in which a version is served. The core group is "", which
// also stands for a Version without Group; so a version can be served in the core
// group only if that is the definition's group.
func (d *Definition) GroupOf(v *Version) string {
	if v.Group != "" {
		return v.Group
	}
	return d.Group
}

// Virtual reports whether nothing of the resource is stored.
func (d *Definition) Virtual() bool { return d.Answer != nil || d.Source != nil }

// Subresources returns those of the version, in the order of the definition.
func (s *Served) Subresources() iter.Seq[*Subresource] {
	return func(yield func(*Subresource) bool) {
		for i := range s.Definition.Subresources {
			if sub := &s.Definition.Subresources[i]; sub.isIn(s.Version.Name) && !yield(sub) {
				return
			}
		}
	}
}

// Subresource finds a subresource of the version by its name, nil if there is
// none.
func (s *Served) Subresource(name string) *Subresource {
	for sub := range s.Subresources() {
		if sub.Name == name {
			return sub
		}
	}
	return nil
}

// Subresource finds a subresource by its name.
func (d *Definition) Subresource(name string) (*Subresource, bool) {
	for i := range d.Subresources {
		if d.Subresources[i].Name == name {
			return &d.Subresources[i], true
		}
	}
	return nil, false
}
