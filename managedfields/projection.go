package managedfields

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Projection maps managedFields between an object and the kind of a subresource that is
// computed from it, such as Scale. A write to the subresource is
//
//	old := Get(obj); old.ManagedFields = p.Project(obj.ManagedFields)
//	new := manager.Update(old, …) or manager.Apply(old, …)
//	Set(obj, new); obj.ManagedFields = p.Restore(obj.ManagedFields, new.ManagedFields)
//
// with the Manager of the subresource's kind.
type Projection struct {
	// Paths maps, for each apiVersion of the object, field paths of the object to
	// those of the projection. Entries of other apiVersions are removed.
	Paths map[string]map[string]string
	// Kind is the apiVersion of the projection: autoscaling/v1.
	Kind string
	// Version is the apiVersion of the object that the request is for.
	Version string
	// Cache to share with managers.
	Cache *Cache
}

// Project returns the owners of the projection's fields.
func (p *Projection) Project(object []metav1.ManagedFieldsEntry) ([]metav1.ManagedFieldsEntry, error) {
	entries, err := p.Cache.decodeEntries(object)
	if err != nil {
		return nil, err
	}
	var out []entry
	for _, e := range entries {
		managed, known := p.Paths[e.version]
		if !known {
			continue
		}
		var owned []string
		for from, to := range managed {
			if e.set.tree().has(from) {
				owned = append(owned, to)
			}
		}
		if len(owned) > 0 {
			e.version, e.set = p.Kind, p.Cache.encoded(paths(owned...))
			out = append(out, e)
		}
	}
	return encodeEntries(out), nil
}

// Restore returns the owners of the object's fields after a write to its
// projection.
func (p *Projection) Restore(object, projected []metav1.ManagedFieldsEntry) ([]metav1.ManagedFieldsEntry, error) {
	before, err := p.Cache.decodeEntries(object)
	if err != nil {
		return nil, err
	}
	after, err := p.Cache.decodeEntries(projected)
	if err != nil {
		return nil, err
	}
	find := func(in []entry, o owner) int { return slices.IndexFunc(in, func(e entry) bool { return e.owner == o }) }
	var out []entry
	for _, e := range before {
		managed, known := p.Paths[e.version]
		if !known {
			continue
		}
		var owned []string
		for from := range managed {
			if e.set.tree().has(from) {
				owned = append(owned, from)
			}
		}
		if len(owned) > 0 {
			// An Update entry has another apiVersion in the projection, so it is another
			// owner; it loses its fields here and gets them back below.
			if i := find(after, e.owner); i >= 0 {
				after = slices.Delete(after, i, i+1)
			} else {
				left := e.set.tree().minus(paths(owned...), member)
				if left.empty() {
					continue
				}
				e.set = p.Cache.encoded(left)
			}
		}
		out = append(out, e)
	}
	for _, e := range after {
		var owned []string
		for to, from := range p.Paths[p.Version] {
			if e.set.tree().has(from) {
				owned = append(owned, to)
			}
		}
		if len(owned) == 0 {
			continue
		}
		e.version, e.set, e.time = p.Version, p.Cache.encoded(paths(owned...)), nil
		if i := find(before, e.owner); i >= 0 {
			e.time = before[i].time
		}
		if i := find(out, e.owner); i >= 0 {
			out[i] = e
		} else {
			out = append(out, e)
		}
	}
	return encodeEntries(out), nil
}

// has reports whether the field at a dotted path is in the set.
func (n *node) has(path string) bool {
	at := n.at(strings.Split(path, "."))
	return at != nil && at.flags&member != 0
}
