package controlplane

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/admission/plugin"
	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
)

// statusManager owns the fields that admission writes. Clients know the server
// by this name.
const statusManager = "kube-apiserver"

// admission puts the plugins into the way of writes.
func (a *assembly) admission() (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("failed to apply admission: %w", err)
		}
	}()
	if _, err := a.Admission.Configuration(""); err != nil {
		return err // for which no plugin is to blame
	}
	objects := newSeen(a.resources, a.owners)
	cfg := a.Admission
	// The controller that makes the accounts may not run, or not yet be there.
	cfg.MakeAccounts = true
	measured := a.measured
	brought, err := a.policies(objects, measured)
	if err != nil {
		return err
	}
	a.resources.Admission, err = plugin.New(cfg, plugin.Deps{
		Gates:     a.Gates.Enabled,
		Objects:   objects,
		Authorize: a.may,
		Kinds:     a.kinds,
		Plugins:   append(brought, a.Plugins...),
		Metrics:   measured,
		Log:       a.Logger,
	})
	return err
}

// may implements plugin.Authorize.
func (a *assembly) may(ctx context.Context, user *request.User, what request.Info) (bool, string, error) {
	decision, reason, err := a.authz.Authorize(ctx, &authz.Attributes{
		User: user, Verb: what.Verb, IsResource: what.IsResource, Path: what.Path,
		Group: what.Group, Version: what.Version, Namespace: what.Namespace,
		Resource: what.Resource, Subresource: what.Subresource, Name: what.Name,
	})
	return decision == authz.Allow, reason, err
}

// kinds returns how a kind is served.
func (a *assembly) kinds(kind schema.GroupVersionKind) []*resource.Served {
	if served, ok := a.catalogs.get().LookupKind(kind); ok {
		return []*resource.Served{served}
	}
	return nil
}

// seen is the objects as plugins see them: from memory, with everything that
// this server has acknowledged. Decoded objects are kept, since plugins read the
// same few for every write.
type seen struct {
	rest   *rest.Handler
	owners *owners

	resources sync.Map // schema.GroupResource → *seenResource
}

// seenResource is the objects of one resource.
type seenResource struct {
	def     *resource.Definition
	objects *store.Resource

	mu      sync.RWMutex
	decoded map[string]decoded // by key
	size    int                // of what they were decoded from
}

type decoded struct {
	revision int64
	obj      resource.Object
}

const (
	// maxDecoded bounds the objects of a resource that are kept, by the bytes that
	// they are decoded from.
	maxDecoded = 4 << 20
	// maxKeptList is up to how many objects of a list are kept: who reads more
	// does that rarely.
	maxKeptList = 100
)

func newSeen(resources *rest.Handler, owners *owners) *seen {
	return &seen{rest: resources, owners: owners}
}

// resource returns the objects of a resource.
func (s *seen) resource(group, name string) (*seenResource, error) {
	key := schema.GroupResource{Group: group, Resource: name}
	def, ok := s.rest.Catalog().Definition(group, name)
	if !ok {
		return nil, fmt.Errorf("%w: resource %s of group %q", storage.ErrNotFound, name, group)
	}
	if known, ok := s.resources.Load(key); ok && known.(*seenResource).def == def {
		return known.(*seenResource), nil
	}
	r := &seenResource{def: def, objects: s.rest.Store.Resource(def, storedCodec{def}), decoded: map[string]decoded{}}
	if known, loaded := s.resources.LoadOrStore(key, r); loaded {
		if old := known.(*seenResource); old.def == def {
			return old, nil
		}
		s.resources.Store(key, r)
	}
	return r, nil
}

// decode returns the object of a record, which must not be changed.
func (r *seenResource) decode(rec *store.Record, keep bool) (resource.Object, error) {
	r.mu.RLock()
	known := r.decoded[rec.Key]
	r.mu.RUnlock()
	if known.revision == rec.Revision {
		return known.obj, nil
	}
	obj, err := r.objects.Decode(rec)
	if err != nil {
		return nil, err
	}
	obj.SetResourceVersion(strconv.FormatInt(rec.Revision, 10))
	if keep {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.size += len(rec.Stored); r.size > maxDecoded {
			clear(r.decoded) // what is gone goes this way too
			r.size = len(rec.Stored)
		}
		r.decoded[rec.Key] = decoded{rec.Revision, obj}
	}
	return obj, nil
}

// Get implements admission.Objects.
func (s *seen) Get(ctx context.Context, group, name, namespace, key string) (resource.Object, error) {
	return s.get(ctx, group, name, namespace, key, store.Read{Acknowledged: true})
}

// GetNewest implements admission.Objects.
func (s *seen) GetNewest(ctx context.Context, group, name, namespace, key string) (resource.Object, error) {
	return s.get(ctx, group, name, namespace, key, store.Read{})
}

func (s *seen) get(ctx context.Context, group, name, namespace, key string, read store.Read) (resource.Object, error) {
	r, err := s.resource(group, name)
	var rec *store.Record
	if err == nil {
		rec, err = r.objects.Get(ctx, r.objects.Key(namespace, key), read)
	}
	if errors.Is(err, storage.ErrNotFound) {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: name}, key)
	}
	if err != nil {
		return nil, unavailable(err)
	}
	return r.decode(rec, true)
}

// unavailable says of a store that does not do its work that it is not the
// client's fault.
func unavailable(err error) error {
	if errors.Is(err, storage.ErrUnavailable) || errors.Is(err, storage.ErrClosed) || errors.Is(err, storage.ErrNoSpace) || errors.Is(err, storage.ErrReadOnly) {
		return apierrors.NewServiceUnavailable(err.Error())
	}
	return err
}

// List implements admission.Objects.
func (s *seen) List(ctx context.Context, group, name, namespace string) ([]resource.Object, error) {
	r, err := s.resource(group, name)
	if err != nil {
		return nil, err
	}
	snapshot, err := r.objects.Snapshot(ctx, store.Read{Acknowledged: true})
	if err != nil || snapshot.Len() == 0 {
		return nil, unavailable(err)
	}
	var records []*store.Record
	snapshot.Range(r.objects.Key(namespace, ""), "", func(rec *store.Record) bool {
		records = append(records, rec)
		return true
	})
	var objs []resource.Object
	for _, rec := range records {
		obj, err := r.decode(rec, len(records) <= maxKeptList)
		if err != nil {
			return nil, err
		}
		objs = append(objs, obj)
	}
	return objs, nil
}

// Create implements plugin.Objects.
func (s *seen) Create(ctx context.Context, group, name string, obj resource.Object) error {
	return s.rest.Objects(group, name).Create(ctx, obj)
}

// UpdateStatus implements quota.Objects.
func (s *seen) UpdateStatus(ctx context.Context, group, name, namespace, key string, change func(obj resource.Object) error) (resource.Object, error) {
	r, err := s.resource(group, name)
	if err != nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: name}, key)
	}
	served, ok := s.rest.Catalog().Lookup(group, r.def.HubVersion().Name, name)
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: name}, key)
	}
	var result resource.Object
	rec, err := r.objects.Update(ctx, r.objects.Key(namespace, key), func(current *store.Record, obj resource.Object) (resource.Object, time.Duration, error) {
		obj.SetResourceVersion(strconv.FormatInt(current.Revision, 10))
		live := obj.DeepCopyObject().(resource.Object)
		if err := change(obj); err != nil {
			return nil, 0, err
		}
		owned, err := s.owners.Update(served, "status", live, obj, statusManager, request.From(ctx).Received)
		if err != nil && owned == nil {
			return nil, 0, err
		}
		result = owned
		return owned, 0, nil
	})
	if errors.Is(err, storage.ErrNotFound) {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: name}, key)
	}
	if err != nil {
		return nil, unavailable(err)
	}
	result.SetResourceVersion(strconv.FormatInt(rec.Revision, 10))
	return result, nil
}
