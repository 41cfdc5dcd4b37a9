package managedfields

import (
	"reflect"
	"sync"
	"time"

	"github.com/apikeel/kelson/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Owners implements rest.Owners with a Manager for every path that is written to, made on
// first use. The zero value is ready to use.
type Owners struct {
	cache Cache

	mu       sync.Mutex
	managers map[ownersKey]*Manager
	// schemas are the types of definitions that have their own OpenAPI schemas.
	schemas map[*resource.Definition]*Schemas
}

type ownersKey struct {
	served      *resource.Served
	subresource string
}

// Update implements rest.Owners.
func (o *Owners) Update(s *resource.Served, subresource string, live, obj resource.Object, manager string, now time.Time) (resource.Object, error) {
	m, err := o.manager(s, subresource)
	if err != nil {
		return nil, err
	}
	return m.Update(live, obj, manager, now)
}

// KeepTimes implements rest.Owners.
func (o *Owners) KeepTimes(obj, live resource.Object) { KeepTimes(obj, live) }

// Apply implements rest.Owners.
func (o *Owners) Apply(s *resource.Served, subresource string, live resource.Object, patch []byte, manager string, force bool, now time.Time) (resource.Object, error) {
	m, err := o.manager(s, subresource)
	if err != nil {
		return nil, err
	}
	config, err := DecodePatch(patch)
	if err != nil {
		return nil, err
	}
	return m.Apply(live, config, manager, force, now)
}

// CheckPatch implements rest.Owners.
func (o *Owners) CheckPatch(patch []byte) error { return CheckPatch(patch) }

// Project implements rest.Owners.
func (o *Owners) Project(s *resource.Served, sub *resource.Subresource, obj, projection resource.Object) error {
	entries, err := o.projection(s, sub).Project(resource.ManagedFields(obj))
	if err == nil {
		resource.SetManagedFields(projection, entries)
	}
	return err
}

// Restore implements rest.Owners.
func (o *Owners) Restore(s *resource.Served, sub *resource.Subresource, obj, projection resource.Object) error {
	entries, err := o.projection(s, sub).Restore(resource.ManagedFields(obj), resource.ManagedFields(projection))
	if err == nil {
		resource.SetManagedFields(obj, entries)
	}
	return err
}

func (o *Owners) projection(s *resource.Served, sub *resource.Subresource) *Projection {
	p := &Projection{
		Paths: map[string]map[string]string{}, Kind: sub.Kind.GroupVersion().String(), Version: s.GroupVersion.String(), Cache: &o.cache,
	}
	for i := range s.Definition.Versions {
		v := &s.Definition.Versions[i]
		var paths map[string]string // nil for versions without the subresource
		if in := (&resource.Served{Definition: s.Definition, Version: v}).Subresource(sub.Name); in != nil && in.Projection != nil {
			paths = in.Projection.Managed
		}
		p.Paths[groupVersion(s.Definition, v).String()] = paths
	}
	return p
}

func (o *Owners) manager(s *resource.Served, subresource string) (*Manager, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := ownersKey{s, subresource}
	if m := o.managers[key]; m != nil {
		return m, nil
	}
	m, err := New(o.options(s, subresource))
	if err != nil {
		return nil, err
	}
	if o.managers == nil {
		o.managers = map[ownersKey]*Manager{}
	}
	o.managers[key] = m
	return m, nil
}

// Forget drops the managers of a group after its definitions have changed.
func (o *Owners) Forget(group string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key := range o.managers {
		if key.served.GroupVersion.Group == group {
			delete(o.managers, key)
		}
	}
	for def, types := range o.schemas {
		if def.Group == group {
			o.cache.Forget(types)
			delete(o.schemas, def)
		}
	}
}

// typesOf returns the types of a definition. The caller holds mu.
func (o *Owners) typesOf(s *resource.Served) Types {
	def := s.Definition
	if s.Version.Schema == nil {
		return sharedBuiltin()
	}
	if types := o.schemas[def]; types != nil {
		return types
	}
	types := &Schemas{Builtin: sharedBuiltin(), Schema: func(kind schema.GroupVersionKind) *spec.Schema {
		for i := range def.Versions {
			if v := &def.Versions[i]; v.Schema != nil && groupVersion(def, v) == kind.GroupVersion() {
				return v.Schema()
			}
		}
		return nil
	}}
	if o.schemas == nil {
		o.schemas = map[*resource.Definition]*Schemas{}
	}
	o.schemas[def] = types
	return types
}

// options returns the options of the Manager of a path: for the object, or for the kind of
// a subresource.
func (o *Owners) options(s *resource.Served, subresource string) Options {
	def := s.Definition
	opts := Options{Types: sharedBuiltin(), Subresource: subresource, Cache: &o.cache}
	if sub := s.Subresource(subresource); sub != nil && sub.Projection != nil {
		opts.Kind, opts.New, opts.CustomScale = sub.Kind, sub.New, s.Unstructured
		return opts
	} else if sub != nil && sub.Owned {
		// Fields that New sets are owned by the client too, so the body starts empty.
		empty := reflect.TypeOf(sub.New()).Elem()
		opts.Kind, opts.New = sub.Kind, func() resource.Object { return reflect.New(empty).Interface().(resource.Object) }
		return opts
	}
	opts.Types = o.typesOf(s)
	opts.Kind, opts.New, opts.Default = s.GroupVersionKind(), s.Version.New, s.Version.Default
	opts.Hub, opts.Convert = groupVersion(def, def.HubVersion()), converterOf(def)
	if def.Between != nil {
		// Fields that the version of the request does not have keep their owners.
		opts.Hub = opts.Kind.GroupVersion()
	}
	opts.Scope, opts.Custom = scopeOf(s, subresource), s.Version.Schema != nil
	switch {
	case opts.Custom && subresource == "":
		opts.ScopedIn = []string{s.GroupVersion.String()}
	case opts.Custom:
		for i := range def.Versions {
			v := &def.Versions[i]
			if (&resource.Served{Definition: def, Version: v}).Subresource(subresource) != nil {
				opts.ScopedIn = append(opts.ScopedIn, groupVersion(def, v).String())
			}
		}
	}
	return opts
}

// scopeOf returns which fields writes to a path can change. Unless the Strategy has Resets,
// the main resource cannot change the status, and the status subresource not the spec.
func scopeOf(s *resource.Served, subresource string) Scope {
	strategy, usual := &s.Definition.Strategy, []string(nil)
	if sub := s.Subresource(subresource); sub != nil && sub.Part != nil {
		strategy = sub.Part
	}
	switch {
	case subresource == "status":
		usual = []string{"spec"}
	case subresource == "" && s.Subresource("status") != nil:
		usual = []string{"status"}
	}
	if strategy.Resets != nil {
		usual = strategy.Resets
	}
	return Scope{Except: usual}
}

func groupVersion(def *resource.Definition, v *resource.Version) schema.GroupVersion {
	group := def.Group
	if v.Group != "" {
		group = v.Group
	}
	return schema.GroupVersion{Group: group, Version: v.Name}
}

// isOf reports whether an object is in a version: by its Go type, or for an unstructured
// object by its apiVersion.
func isOf(obj resource.Object, def *resource.Definition, v *resource.Version) bool {
	if _, ok := obj.(runtime.Unstructured); ok {
		return obj.GetObjectKind().GroupVersionKind().GroupVersion() == groupVersion(def, v)
	}
	return reflect.TypeOf(v.New()) == reflect.TypeOf(obj)
}

// converterOf returns a function that converts between the versions of a definition.
func converterOf(def *resource.Definition) func(resource.Object, schema.GroupVersion) (resource.Object, error) {
	return func(obj resource.Object, to schema.GroupVersion) (resource.Object, error) {
		var from, into *resource.Version
		for i := range def.Versions {
			v := &def.Versions[i]
			if isOf(obj, def, v) {
				from = v
			}
			if groupVersion(def, v) == to {
				into = v
			}
		}
		if into == nil {
			return nil, ErrNoVersion
		}
		if from == into {
			return obj, nil
		}
		if def.Between != nil {
			return def.Between(obj, into.Name)
		}
		var err error
		if from != nil && from.ToHub != nil && from != def.HubVersion() {
			if obj, err = from.ToHub(obj); err != nil {
				return nil, err
			}
		}
		if into.FromHub == nil || into == def.HubVersion() {
			return obj, nil
		}
		return into.FromHub(obj)
	}
}
