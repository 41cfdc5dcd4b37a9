package store

import (
	"context"
	"strconv"
	"sync"

	"github.com/apikeel/kelson/resource"
)

// View is the objects of one resource as the parts of this process read them: a
// resource.Lister. How current they are is its Read:
//
//	Read{}                    the newest, for which the backend is asked
//	Read{Acknowledged: true}  with every write of this process
//	Read{Any: true}           what the cache has
//
// The objects are decoded for each call and belong to the caller, unless the
// view is Shared. Errors are those of Resource.Get and Resource.Snapshot; a list of objects of
// which one cannot be decoded fails.
type View struct {
	*Resource
	read   Read
	shared bool
}

var _ resource.Lister = View{}

// View returns a view of the resource, which costs nothing.
func (r *Resource) View(read Read) View { return View{Resource: r, read: read} }

// Shared returns a view whose objects are kept decoded, within a bound, and shared
// by all who read them: they must not be changed. It is for who reads the same few
// objects again and again.
func (v View) Shared() View {
	v.shared = true
	return v
}

// maxKeptList is up to how many objects of a list are kept decoded: who reads more
// does that rarely.
const maxKeptList = 100

// Get implements resource.Lister.
func (v View) Get(ctx context.Context, namespace, name string) (resource.Object, error) {
	rec, err := v.Resource.Get(ctx, v.Key(namespace, name), v.read)
	if err != nil {
		return nil, err
	}
	return v.object(rec, true)
}

// List implements resource.Lister.
func (v View) List(ctx context.Context, namespace string) ([]resource.Object, error) {
	snapshot, err := v.Snapshot(ctx, v.read)
	if err == nil {
		err = snapshot.complete(v.Key(namespace, ""))
	}
	if err != nil || snapshot.Len() == 0 {
		return nil, err
	}
	var records []*Record
	snapshot.Range(v.Key(namespace, ""), "", func(rec *Record) bool {
		records = append(records, rec)
		return true
	})
	if len(records) == 0 {
		return nil, nil
	}
	objs := make([]resource.Object, len(records))
	for i, rec := range records {
		if objs[i], err = v.object(rec, len(records) <= maxKeptList); err != nil {
			return nil, err
		}
	}
	return objs, nil
}

// object returns the object of a record, with its resourceVersion. In a shared view
// it is that which was decoded before, or is kept from now on.
func (v View) object(rec *Record, keep bool) (resource.Object, error) {
	if v.shared {
		if obj := v.decoded.get(rec); obj != nil {
			return obj, nil
		}
	}
	obj, err := v.Decode(rec)
	if err != nil {
		return nil, err
	}
	obj.SetResourceVersion(strconv.FormatInt(rec.Revision, 10))
	if v.shared && keep {
		v.decoded.put(rec, obj)
	}
	return obj, nil
}

// maxDecoded bounds the objects that a resource keeps decoded, by the bytes that
// they were decoded from.
const maxDecoded = 4 << 20

// decodedObjects are objects that are kept decoded for shared views.
type decodedObjects struct {
	mu     sync.RWMutex
	byKey  map[string]decodedObject
	stored int // bytes that the objects were decoded from
}

type decodedObject struct {
	revision int64
	stored   int // bytes
	obj      resource.Object
}

// get returns the object of a record, nil if it is not kept.
func (d *decodedObjects) get(rec *Record) resource.Object {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if known := d.byKey[rec.Key]; known.revision == rec.Revision {
		return known.obj
	}
	return nil
}

// put keeps an object in place of an older one. When there is no more room all
// others go: objects that were deleted go this way too.
func (d *decodedObjects) put(rec *Record, obj resource.Object) {
	size := rec.StoredSize()
	if size > maxDecoded {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.byKey[rec.Key]; ok {
		if known.revision > rec.Revision {
			return
		}
		d.stored -= known.stored
	}
	if d.stored += size; d.byKey == nil || d.stored > maxDecoded {
		d.byKey, d.stored = map[string]decodedObject{}, size
	}
	d.byKey[rec.Key] = decodedObject{rec.Revision, size, obj}
}
