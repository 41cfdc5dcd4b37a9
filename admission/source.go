package admission

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/apikeel/kelson/resource"
)

// Manifests are objects that are not stored: the administrator has put them
// beside the server. They must not be changed.
type Manifests struct{ Objects []resource.Object }

// Followed caches a value that is made from all objects of a resource.Follower, and made anew after
// each change.
type Followed[T any] struct {
	Source resource.Follower
	// Manifests returns the active static manifests; nil if there are none.
	Manifests func() *Manifests
	// Make makes the value from the objects, sorted by type and name, and the
	// manifests. It is not called concurrently.
	Make func(manifests, objects []resource.Object) T

	making  sync.Mutex // guards objects
	objects map[string]resource.Object

	mu    sync.RWMutex // guards state and used
	state T
	used  *Manifests
}

// Get returns the value after all changes that were acknowledged before the call.
func (f *Followed[T]) Get(ctx context.Context) (T, error) {
	if !f.Source.Current() {
		if err := f.Source.Pull(ctx, f.apply); err != nil {
			var none T
			return none, err
		}
	}
	f.mu.RLock()
	state, used := f.state, f.used
	f.mu.RUnlock()
	if f.Manifests == nil || used == f.Manifests() {
		return state, nil
	}
	f.making.Lock()
	defer f.making.Unlock()
	return f.make(), nil
}

func (f *Followed[T]) apply(reset bool, changes []resource.Change) {
	f.making.Lock()
	defer f.making.Unlock()
	if reset || f.objects == nil {
		f.objects = map[string]resource.Object{}
	}
	for _, c := range changes {
		key := followedKey(c.Object)
		if c.Deleted {
			delete(f.objects, key)
		} else {
			f.objects[key] = c.Object
		}
	}
	f.make()
}

func (f *Followed[T]) make() T {
	used := &Manifests{}
	if f.Manifests != nil {
		used = f.Manifests()
	}
	state := f.Make(used.Objects, inOrder(f.objects))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state, f.used = state, used
	return state
}

func followedKey(obj resource.Object) string { return fmt.Sprintf("%T/%s", obj, obj.GetName()) }

func inOrder(objects map[string]resource.Object) []resource.Object {
	list := make([]resource.Object, 0, len(objects))
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		list = append(list, objects[key])
	}
	return list
}
