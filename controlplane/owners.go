package controlplane

import (
	"reflect"
	"sync"
	"time"

	"github.com/apikeel/kelson/managedfields"
	"github.com/apikeel/kelson/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// owners keeps track of who owns which fields, with a manager for every path
// that is written to, made when it is first needed.
type owners struct {
	types managedfields.Builtin
	cache managedfields.Cache

	mu       sync.Mutex
	managers map[ownersKey]*managedfields.Manager
}

type ownersKey struct {
	served      *resource.Served
	subresource string
}

// Update implements rest.Owners.
func (o *owners) Update(s *resource.Served, subresource string, live, obj resource.Object, manager string, now time.Time) (resource.Object, error) {
	m, err := o.manager(s, subresource)
	if err != nil {
		return nil, err
	}
	return m.Update(live, obj, manager, now)
}

// KeepTimes implements rest.Owners.
func (o *owners) KeepTimes(obj, live resource.Object) { managedfields.KeepTimes(obj, live) }

// Apply implements rest.Owners.
func (o *owners) Apply(s *resource.Served, subresource string, live resource.Object, patch []byte, manager string, force bool, now time.Time) (resource.Object, error) {
	m, err := o.manager(s, subresource)
	if err != nil {
		return nil, err
	}
	config, err := managedfields.DecodePatch(patch)
	if err != nil {
		return nil, err
	}
	return m.Apply(live, config, manager, force, now)
}

func (o *owners) manager(s *resource.Served, subresource string) (*managedfields.Manager, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := ownersKey{s, subresource}
	if m := o.managers[key]; m != nil {
		return m, nil
	}
	def := s.Definition
	hub := def.HubVersion()
	m, err := managedfields.New(managedfields.Options{
		Types:       &o.types,
		Kind:        s.GroupVersionKind(),
		Subresource: subresource,
		Scope:       managedfields.Scope{Except: resets(def, subresource)},
		New:         s.Version.New,
		Default:     s.Version.Default,
		Hub:         groupVersion(def, hub),
		Convert:     convert(def),
		Cache:       &o.cache,
	})
	if err != nil {
		return nil, err
	}
	if o.managers == nil {
		o.managers = map[ownersKey]*managedfields.Manager{}
	}
	o.managers[key] = m
	return m, nil
}

// resets returns the fields that writes to a path leave alone, so that nobody
// comes to own them by it. Unless a strategy says, the object's own path leaves
// the status alone, and that of the status the spec.
func resets(def *resource.Definition, subresource string) []string {
	strategy, usual := &def.Strategy, []string(nil)
	for i := range def.Subresources {
		sub := &def.Subresources[i]
		if sub.Name == "status" && subresource == "" {
			usual = []string{"status"}
		}
		if sub.Name == subresource && sub.Part != nil {
			strategy = sub.Part
			if sub.Name == "status" {
				usual = []string{"spec"}
			}
		}
	}
	if strategy.Resets != nil {
		return strategy.Resets
	}
	return usual
}

func groupVersion(def *resource.Definition, v *resource.Version) schema.GroupVersion {
	group := def.Group
	if v.Group != "" {
		group = v.Group
	}
	return schema.GroupVersion{Group: group, Version: v.Name}
}

// convert returns a function between the versions of a definition.
func convert(def *resource.Definition) func(resource.Object, schema.GroupVersion) (resource.Object, error) {
	return func(obj resource.Object, to schema.GroupVersion) (resource.Object, error) {
		var from, into *resource.Version
		for i := range def.Versions {
			v := &def.Versions[i]
			if reflect.TypeOf(v.New()) == reflect.TypeOf(obj) {
				from = v
			}
			if groupVersion(def, v) == to {
				into = v
			}
		}
		if into == nil {
			return nil, managedfields.ErrNoVersion
		}
		if from == into {
			return obj, nil
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
