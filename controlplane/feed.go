package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/controller"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
)

// feedPage is how many objects are read at a time when the feed begins.
const feedPage = 500

// feed is the controller.Feed over the backend. It reads metadata out of stored
// bytes and keeps nothing, so that controllers load no resource into the cache
// by following it.
type feed struct {
	backend storage.Backend
	catalog func() *resource.Catalog

	mu    sync.Mutex
	kinds *kinds
	wake  context.CancelFunc // ends the wait for changes
}

// kinds are the stored resources of a catalog.
type kinds struct {
	catalog  *resource.Catalog
	all      []*controller.Kind
	prefixes map[string]*controller.Kind // by where they are stored
	paths    map[*controller.Kind]string
	names    map[schema.GroupResource]*controller.Kind
}

// current returns the resources of the catalog as it is now.
func (f *feed) current() *kinds {
	f.mu.Lock()
	defer f.mu.Unlock()
	catalog := f.catalog()
	if f.kinds != nil && f.kinds.catalog == catalog {
		return f.kinds
	}
	k := &kinds{
		catalog: catalog, prefixes: map[string]*controller.Kind{}, paths: map[*controller.Kind]string{},
		names: map[schema.GroupResource]*controller.Kind{},
	}
	for _, def := range catalog.Definitions() {
		version := served(def)
		if version == nil || def.Virtual() || def.CreateOn != "" {
			continue
		}
		gv := groupVersion(def, version)
		kind := &controller.Kind{
			Group: gv.Group, Version: gv.Version, Resource: def.Resource, Kind: def.Kind, Namespaced: def.Namespaced, Verbs: def.Verbs,
		}
		prefix := storage.Root + def.StorageKey + "/"
		k.all = append(k.all, kind)
		k.prefixes[prefix], k.paths[kind] = kind, prefix
		k.names[schema.GroupResource{Group: gv.Group, Resource: def.Resource}] = kind
	}
	f.kinds = k
	return k
}

// served returns the version of a definition that is served and preferred.
func served(def *resource.Definition) *resource.Version {
	for i := range def.Versions {
		if !def.Versions[i].Off {
			return &def.Versions[i]
		}
	}
	return nil
}

// Kinds implements controller.Feed.
func (f *feed) Kinds(context.Context) ([]*controller.Kind, error) { return f.current().all, nil }

// Serves implements controller.Feed.
func (f *feed) Serves(group, version string) bool {
	g, ok := f.catalog().Group(group)
	return ok && slices.ContainsFunc(g.Versions, func(v resource.ServedVersion) bool { return v.Name == version })
}

// Served implements controller.Feed.
func (f *feed) Served(group, name string) (*controller.Kind, bool) {
	k, ok := f.current().names[schema.GroupResource{Group: group, Resource: name}]
	return k, ok
}

// Find implements controller.Feed.
func (f *feed) Find(apiVersion, kind string) (*controller.Kind, bool) {
	k := f.current()
	s, ok := k.catalog.LookupKind(schema.FromAPIVersionAndKind(apiVersion, kind))
	if !ok {
		return nil, false
	}
	found, ok := k.prefixes[storage.Root+s.Definition.StorageKey+"/"]
	return found, ok
}

// Holds implements controller.Feed.
func (f *feed) Holds(ctx context.Context, kind *controller.Kind, namespace string) (bool, error) {
	prefix, ok := f.current().paths[kind]
	if !ok {
		return true, nil // nothing is known of it any more
	}
	if kind.Namespaced && namespace != "" {
		prefix += namespace + "/"
	}
	page, err := f.backend.List(ctx, prefix, storage.ListOptions{Limit: 1, KeysOnly: true})
	return err != nil || len(page.Items) > 0, err
}

// changed tells the feed that there is another catalog: objects of kinds that
// were not known may be there already.
func (f *feed) changed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wake != nil {
		f.wake()
	}
}

// errLostPlace: a change cannot be told since its object is not known.
var errLostPlace = errors.New("the last state of a deleted object is not kept")

// Follow implements controller.Feed.
func (f *feed) Follow(ctx context.Context, see func([]controller.Change)) error {
	position, err := f.backend.Revision(ctx)
	if err != nil {
		return err
	}
	w, err := f.backend.Watch(ctx, storage.Root, position)
	if err != nil {
		return err
	}
	defer w.Close()
	known := f.current()
	if err := f.scan(ctx, known, storage.Root, position, see); err != nil {
		return err
	}
	see(nil)
	for {
		batch, err := f.next(ctx, w, known)
		if now := f.current(); now != known {
			// Objects of a kind that is new are told as they were when what has
			// been told so far ended.
			for prefix := range now.prefixes {
				if known.prefixes[prefix] == nil {
					if err := f.scan(ctx, now, prefix, position, see); err != nil {
						return err
					}
				}
			}
			known = now
		}
		if err != nil {
			if ctx.Err() == nil && errors.Is(err, context.Canceled) {
				continue // woken
			}
			return err
		}
		changes, err := known.changes(batch.Events)
		if err != nil {
			return err
		}
		if len(changes) > 0 {
			see(changes)
		}
		position = batch.Revision
	}
}

// next waits for changes, or for another catalog.
func (f *feed) next(ctx context.Context, w storage.Watcher, known *kinds) (storage.Batch, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.mu.Lock()
	f.wake = cancel
	if f.catalog() != known.catalog {
		cancel()
	}
	f.mu.Unlock()
	return w.Next(ctx)
}

// scan tells of all objects below a prefix at a revision.
func (f *feed) scan(ctx context.Context, known *kinds, prefix string, revision int64, see func([]controller.Change)) error {
	opts := storage.ListOptions{Revision: revision, Limit: feedPage}
	for {
		page, err := f.backend.List(ctx, prefix, opts)
		if err != nil {
			return err
		}
		var changes []controller.Change
		for i := range page.Items {
			kv := &page.Items[i]
			if c, ok := known.change(kv.Key); ok {
				c.Revision = kv.ModRevision
				if err := readMeta(kv.Value, &c.Meta); err != nil {
					continue // the store says so
				}
				changes = append(changes, c)
			}
		}
		if len(changes) > 0 {
			see(changes)
		}
		if !page.More {
			return nil
		}
		opts.Start = storage.NextKey(page.Items[len(page.Items)-1].Key)
	}
}

// changes are what events mean.
func (k *kinds) changes(events []storage.Event) ([]controller.Change, error) {
	var changes []controller.Change
	for i := range events {
		ev := &events[i]
		c, ok := k.change(ev.KV.Key)
		if !ok {
			continue
		}
		c.Revision, c.Gone = ev.KV.ModRevision, ev.Op == storage.Deleted
		value := ev.KV.Value
		if c.Gone {
			if value = ev.Prev.Value; value == nil {
				return nil, fmt.Errorf("%s: %w", ev.KV.Key, errLostPlace)
			}
		}
		if err := readMeta(value, &c.Meta); err != nil {
			continue
		}
		changes = append(changes, c)
	}
	return changes, nil
}

// change tells which object a key is about. Events are told of by nobody.
func (k *kinds) change(key string) (c controller.Change, ok bool) {
	for i := len(storage.Root); ; {
		n := strings.IndexByte(key[i:], '/')
		if n < 0 {
			return c, false
		}
		i += n + 1
		if kind := k.prefixes[key[:i]]; kind != nil {
			c.Kind, c.Name = kind, key[i:]
			if kind.Namespaced {
				c.Namespace, c.Name, _ = strings.Cut(c.Name, "/")
			}
			return c, c.Name != "" && kind.Resource != "events"
		}
	}
}

var errNoMetadata = errors.New("the object has no metadata that can be read")

// readMeta reads what controllers want to know out of stored bytes.
func readMeta(stored []byte, m *controller.Meta) error {
	if _, _, raw, ok := resource.OpenEnvelope(stored); ok {
		metadata, ok := resource.MetadataProto(raw)
		if !ok || !readMetaProto(metadata, m) {
			return errNoMetadata
		}
		return nil
	}
	metadata, ok := resource.MetadataJSON(stored)
	if !ok {
		return errNoMetadata
	}
	var j struct {
		UID               apitypes.UID
		DeletionTimestamp *string
		Finalizers        []string
		OwnerReferences   []metav1.OwnerReference
	}
	if err := json.Unmarshal(metadata, &j); err != nil {
		return err
	}
	*m = controller.Meta{UID: j.UID, Deleting: j.DeletionTimestamp != nil, Finalizers: j.Finalizers, Owners: j.OwnerReferences}
	return nil
}

// Numbers of fields in the protobuf form of ObjectMeta.
const (
	uidField        = 5
	deletionField   = 9
	ownersField     = 13
	finalizersField = 14
)

// readMetaProto reads the fields that are wanted and skips the others, which are
// most of the bytes.
func readMetaProto(b []byte, m *controller.Meta) bool {
	for len(b) > 0 {
		field, kind, value, rest, ok := protoField(b)
		if !ok {
			return false
		}
		b = rest
		if kind != 2 {
			continue
		}
		switch field {
		case uidField:
			m.UID = apitypes.UID(value)
		case deletionField:
			m.Deleting = true
		case finalizersField:
			m.Finalizers = append(m.Finalizers, string(value))
		case ownersField:
			var ref metav1.OwnerReference
			if ref.Unmarshal(value) != nil {
				return false
			}
			m.Owners = append(m.Owners, ref)
		}
	}
	return true
}
