package resource

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Change returns a catalog with some definitions added or replaced (put) and some
// removed (gone). With replaces whole groups; Change leaves the other definitions of
// a group alone, and its cost does not depend on their number. The resources of a
// changed group are sorted by name. Definitions in put must not have versions in
// other groups, and must not be changed afterwards.
func (c *Catalog) Change(put []*Definition, gone []schema.GroupResource) (*Catalog, error) {
	n := catalogEdit{
		Catalog: &Catalog{sources: slices.Clone(c.sources), groups: slices.Clone(c.groups), byName: maps.Clone(c.byName)},
		copied:  map[string]int{},
	}
	for _, gr := range gone {
		n.remove(gr)
	}
	var errs []error
	for _, d := range put {
		err := d.declare(d.Group)
		n.remove(schema.GroupResource{Group: d.Group, Resource: d.Resource})
		errs = append(errs, err, n.insert(d))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for name := range n.copied {
		if g := n.byName[name]; len(g.resources) > 0 {
			g.sort()
		} else {
			delete(n.byName, name)
		}
	}
	n.groups = slices.DeleteFunc(n.groups, func(g *ServedGroup) bool { return len(g.resources) == 0 })
	n.sources = slices.DeleteFunc(n.sources, func(s declaredGroup) bool {
		_, touched := n.copied[s.name]
		return touched && len(s.definitions) == 0
	})
	return n.Catalog, nil
}

// catalogEdit is a catalog that Change is building from another one. copied holds the
// names of the groups that were cloned and may be changed, with their indices in
// sources.
type catalogEdit struct {
	*Catalog
	copied map[string]int
}

// group returns a group and its declaration, cloned on first use.
func (c *catalogEdit) group(name string) (*declaredGroup, *ServedGroup) {
	if at, ok := c.copied[name]; ok {
		return &c.sources[at], c.byName[name]
	}
	at := slices.IndexFunc(c.sources, func(s declaredGroup) bool { return s.name == name })
	if at < 0 {
		at = len(c.sources)
		c.sources = append(c.sources, declaredGroup{name: name})
	}
	c.copied[name] = at
	s := &c.sources[at]
	s.definitions = slices.Clone(s.definitions)
	old := c.byName[name]
	if old == nil {
		c.byName[name] = newServedGroup(name)
		c.groups = append(c.groups, c.byName[name])
		return s, c.byName[name]
	}
	g := &ServedGroup{Name: name, Versions: slices.Clone(old.Versions), resources: maps.Clone(old.resources), kinds: maps.Clone(old.kinds)}
	for i := range g.Versions {
		g.Versions[i].Resources = slices.Clone(g.Versions[i].Resources)
	}
	c.groups[slices.Index(c.groups, old)] = g
	c.byName[name] = g
	return s, g
}

func (c *catalogEdit) remove(gr schema.GroupResource) {
	s, g := c.group(gr.Group)
	s.definitions = slices.DeleteFunc(s.definitions, func(d *Definition) bool { return d.Resource == gr.Resource })
	for i := range g.Versions {
		v := &g.Versions[i]
		served := g.resources[[2]string{v.Name, gr.Resource}]
		if served == nil {
			continue
		}
		delete(g.resources, [2]string{v.Name, gr.Resource})
		delete(g.kinds, [2]string{v.Name, served.Definition.Kind})
		v.Resources = slices.DeleteFunc(v.Resources, func(s *Served) bool { return s == served })
	}
	g.Versions = slices.DeleteFunc(g.Versions, func(v ServedVersion) bool { return len(v.Resources) == 0 })
}

func (c *catalogEdit) insert(d *Definition) error {
	s, g := c.group(d.Group)
	at, _ := slices.BinarySearchFunc(s.definitions, d.Resource, func(d *Definition, name string) int { return strings.Compare(d.Resource, name) })
	s.definitions = slices.Insert(s.definitions, at, d)
	var errs []error
	for i := range d.Versions {
		v := &d.Versions[i]
		if d.GroupOf(v) != d.Group {
			errs = append(errs, fmt.Errorf("%s: version %s is of another group", d.Resource, v.Name))
		} else if !v.Off {
			errs = append(errs, g.add(d, v))
			g.placeLast(v.Name)
		}
	}
	return errors.Join(errs...)
}

// placeLast moves the last resource of a version to its place in the order of names.
func (g *ServedGroup) placeLast(version string) {
	v, _ := g.Version(version)
	if v == nil || len(v.Resources) == 0 {
		return // add refused the resource
	}
	end := len(v.Resources) - 1
	last := v.Resources[end]
	at, _ := slices.BinarySearchFunc(v.Resources[:end], last.Definition.Resource, func(s *Served, name string) int {
		return strings.Compare(s.Definition.Resource, name)
	})
	copy(v.Resources[at+1:], v.Resources[at:end])
	v.Resources[at] = last
}
