package resource

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Replace returns a catalog in which definitions take the places of those of the same
// names. They must have the same versions, which are on or off as those are, and objects
// are stored in the same version as before; a definition that the catalog does not have is
// left out. Everything else is shared with the catalog that it was made from.
func (c *Catalog) Replace(groups ...Group) (*Catalog, error) {
	n := catalogEdit{
		Catalog: &Catalog{sources: slices.Clone(c.sources), groups: slices.Clone(c.groups), byName: maps.Clone(c.byName)},
		copied:  map[string]int{},
	}
	var errs []error
	for i := range groups {
		for _, d := range groups[i].Resources {
			errs = append(errs, n.replace(groups[i].Name, &d))
		}
	}
	return n.Catalog, errors.Join(errs...)
}

// replace puts a definition in the place of the one of the same name.
func (c *catalogEdit) replace(group string, d *Definition) error {
	at := slices.IndexFunc(c.sources, func(s declaredGroup) bool { return s.name == group })
	if at < 0 {
		return nil
	}
	i := slices.IndexFunc(c.sources[at].definitions, func(old *Definition) bool { return old.Resource == d.Resource })
	if i < 0 {
		return nil
	}
	s, _ := c.group(group)
	old := s.definitions[i]
	if len(d.Versions) != len(old.Versions) {
		return fmt.Errorf("group %q: resource %q: replaces a definition with other versions", group, d.Resource)
	}
	d.StoreAs = old.StoreAs
	d.Versions = slices.Clone(d.Versions)
	for i := range d.Versions {
		d.Versions[i].Off = old.Versions[i].Off
	}
	if err := d.declare(group); err != nil {
		return err
	}
	s.definitions[i] = d
	return c.serve(old, d)
}

// serve has a definition served wherever another one was.
func (c *catalogEdit) serve(old, d *Definition) error {
	for i := range d.Versions {
		v := &d.Versions[i]
		if v.Off {
			continue
		}
		name := d.GroupOf(v)
		_, g := c.group(name)
		s := &Served{Definition: d, Version: v, GroupVersion: schema.GroupVersion{Group: name, Version: v.Name}}
		s.complete()
		was := g.resources[[2]string{v.Name, old.Resource}]
		if was == nil || was.Definition.Kind != d.Kind {
			return fmt.Errorf("%s: replaces another kind, or none", s.GroupVersionResource())
		}
		g.resources[[2]string{v.Name, d.Resource}], g.kinds[[2]string{v.Name, d.Kind}] = s, s
		served, _ := g.Version(v.Name)
		served.Resources[slices.Index(served.Resources, was)] = s
	}
	return nil
}
