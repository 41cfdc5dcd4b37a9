package controlplane

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/admission/plugin"
	"github.com/apikeel/kelson/aggregator"
	"github.com/apikeel/kelson/builtin/bootstrap"
	"github.com/apikeel/kelson/controller"
	"github.com/apikeel/kelson/controller/apiserver"
	"github.com/apikeel/kelson/managedfields"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/store"
)

// image is the objects that every cluster has, as they are stored: namespaces, roles
// with their aggregated rules, flow schemas with their status, priority classes,
// APIServices. A server writes them into an empty store instead of completing,
// validating and encoding each of them. All servers of a process with the same kinds
// share an image; only uids and times differ between clusters.
type image struct {
	once    sync.Once // makes what is below, which is never changed then
	key     imageKey
	roles   []resource.Object    // of RBAC, as they are wanted
	objects map[string]*template // by key, as they are stored
}

// imageKey is what decides about the content of an image.
type imageKey struct {
	kinds    kindsKey
	roles    bool // rules of cluster roles are aggregated
	statuses bool // flow schemas have a status
}

// imageTime is the time of all objects while an image is made.
var imageTime = time.Unix(1_234_567_890, 0).UTC()

// openImage finds the image that the server writes from, if its store is empty.
func (a *assembly) openImage(ctx context.Context) error {
	if !a.isFresh(ctx) {
		return nil
	}
	on, err := controller.Enabled(a.manager.Controllers, a.manager.Enabled)
	aggregates := slices.ContainsFunc(on, func(c controller.Controller) bool { return c.Name == controller.AggregationName })
	a.image = kindsOfProcess().image(imageKey{kinds: a.kinds, roles: aggregates, statuses: a.flow != nil})
	return err
}

// isFresh reports whether the store is empty, and no admission plugin but the default
// ones has a say in what is created.
func (a *assembly) isFresh(ctx context.Context) bool {
	cfg := a.Admission
	cfg.MakeAccounts = false
	if len(a.Plugins) > 0 || len(a.EtcdOverrides) > 0 || !equality.Semantic.DeepEqual(cfg, plugin.Config{}) {
		return false
	}
	page, err := a.places.all[0].backend.List(ctx, storage.Root, storage.ListOptions{Limit: 1, KeysOnly: true})
	return err == nil && len(page.Items) == 0
}

// createFromImage implements apiserver.Server.CreatePrepared: it creates an object as
// it is in the image. It reports false if the image has none, or the store has one.
func (a *assembly) createFromImage(ctx context.Context, def *resource.Definition, obj resource.Object) (bool, error) {
	if a.image == nil {
		return false, nil
	}
	a.image.once.Do(a.fillImage)
	objects, ok := a.resources.Stored(def.Group, def.Resource)
	if !ok {
		return false, nil
	}
	key := objects.Key(obj.GetNamespace(), obj.GetName())
	found := a.image.objects[key]
	if found == nil {
		return false, nil
	}
	uid, at := uuid.New(), request.From(ctx).Received.Unix()
	if !fits(at) {
		return false, nil
	}
	revision, err := objects.CreateLazy(ctx, found.key, len(found.stored), func() []byte { return found.fill(uid, at) })
	if errors.Is(err, storage.ErrExists) {
		return false, nil
	}
	if err == nil && a.image.key.roles && def.Group == rbacv1.GroupName && def.Resource == "clusterroles" {
		a.aggregated.add(revision)
	}
	return err == nil, err
}

// revisions is a set.
type revisions struct {
	mu  sync.Mutex
	all []int64
}

func (r *revisions) add(revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, revision)
}

// take removes a revision, and reports whether it was there.
func (r *revisions) take(revision int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.all, revision)
	if i < 0 {
		return false
	}
	if r.all = slices.Delete(r.all, i, i+1); len(r.all) == 0 {
		r.all = nil
	}
	return true
}

func (a *assembly) fillImage() {
	a.image.roles = bootstrap.RBAC(a.Gates)
	var err error
	if a.image.objects, err = a.makeImage(); err != nil {
		a.Logger.Warn("bootstrap objects could not be prepared, and are created one by one", "error", err)
	}
}

// bootstrapRoles returns the objects of RBAC that every cluster has. They must not be
// changed.
func (a *assembly) bootstrapRoles() []resource.Object {
	if a.image == nil {
		return bootstrap.RBAC(a.Gates)
	}
	a.image.once.Do(a.fillImage)
	return a.image.roles
}

// makeImage has the objects created in a store of its own, by the code that creates
// them in any other store.
func (a *assembly) makeImage() (map[string]*template, error) {
	ctx, cancel := context.WithCancel(request.With(context.Background(), &request.Request{Received: imageTime}))
	defer cancel()
	backend := memory.New(memory.Options{})
	defer backend.Close()
	objects, err := store.Open(ctx, backend, store.Options{})
	if err != nil {
		return nil, err
	}
	defer objects.Close()
	resources := &rest.Handler{Catalog: a.catalogs.get, Store: objects, Owners: &managedfields.Owners{}}
	server := &kelson.Server{
		Name: "image", API: newAPI(a.catalogs.get, resources, a.Gates), PKI: a.authority, Now: func() time.Time { return imageTime },
	}
	if err := server.PrepareRun(); err != nil {
		return nil, err
	}
	own := &apiserver.Server{Catalog: a.catalogs.get, Objects: resources.ObjectsAs, Loopback: server.Loopback(loopbackUser()), Logger: a.Logger}
	var services []resource.Object
	for _, s := range aggregator.LocalServices(a.catalogs.get()) {
		services = append(services, s)
	}
	flow := &apiserver.FlowControl{Server: own}
	err = errors.Join(
		own.EnsureNamespaces(ctx), own.Ensure(ctx, a.image.roles, nil), own.Ensure(ctx, bootstrap.PriorityClasses(), nil),
		own.Ensure(ctx, services, nil), flow.Ensure(ctx),
	)
	if err == nil && a.image.key.statuses {
		err = flow.ReportAll(ctx)
	}
	if err == nil && a.image.key.roles {
		err = aggregateRoles(ctx, &controller.Client{Transport: server.Loopback(loopbackUser())})
	}
	if err != nil {
		return nil, err
	}
	page, err := backend.List(ctx, storage.Root, storage.ListOptions{})
	if err != nil {
		return nil, err
	}
	made := map[string]*template{}
	uid := regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	for _, kv := range page.Items {
		if t := newTemplate(kv.Key, kv.Value, uid); t != nil {
			made[kv.Key] = t
		}
	}
	return made, nil
}

// aggregateRoles sets the rules of roles that gather those of others, which may
// themselves be such roles.
func aggregateRoles(ctx context.Context, client *controller.Client) error {
	const maxDepth = 10
	kind := &controller.Kind{Group: rbacv1.GroupName, Version: "v1", Resource: "clusterroles", Kind: "ClusterRole"}
	for range maxDepth {
		if changed, err := controller.AggregateRoles(ctx, client, kind); err != nil || !changed {
			return err
		}
	}
	return fmt.Errorf("the rules of cluster roles still change after %d rounds", maxDepth)
}

// template is an object as it is stored, with the places of what differs between
// clusters. Nothing in it changes.
type template struct {
	key    string
	stored []byte
	uid    int   // where the uid is
	binary []int // where times are as protobuf messages
	text   []int // where times are as in JSON
}

// newTemplate makes a template of an object that was created at imageTime. It returns
// nil unless there is exactly one match of uid in it.
func newTemplate(key string, stored []byte, uid *regexp.Regexp) *template {
	uids := uid.FindAllIndex(stored, -1)
	if len(uids) != 1 {
		return nil
	}
	return &template{
		key: key, stored: stored, uid: uids[0][0],
		binary: indexAll(stored, binaryTime(imageTime)), text: indexAll(stored, textTime(imageTime)),
	}
}

// fits reports whether a time, in seconds, takes as much room as imageTime.
func fits(at int64) bool {
	t := time.Unix(at, 0)
	return len(binaryTime(t)) == len(binaryTime(imageTime)) && len(textTime(t)) == len(textTime(imageTime))
}

// fill returns the object with a uid, created at a time in seconds that fits.
func (t *template) fill(uid uuid.UUID, at int64) []byte {
	binary, text := binaryTime(time.Unix(at, 0)), textTime(time.Unix(at, 0))
	stored := bytes.Clone(t.stored)
	copy(stored[t.uid:], uid.String())
	for _, i := range t.binary {
		copy(stored[i:], binary)
	}
	for _, i := range t.text {
		copy(stored[i:], text)
	}
	return stored
}

// binaryTime returns the protobuf message of a metav1.Time: seconds, and nanoseconds
// that are always 0.
func binaryTime(t time.Time) []byte {
	return append(binary.AppendUvarint([]byte{1 << 3}, uint64(t.Unix())), 2<<3, 0)
}

func textTime(t time.Time) []byte { return t.UTC().AppendFormat(nil, time.RFC3339) }

// indexAll returns where a part is in b.
func indexAll(b, part []byte) (all []int) {
	for at := 0; ; at += len(part) {
		i := bytes.Index(b[at:], part)
		if i < 0 {
			return all
		}
		at += i
		all = append(all, at)
	}
}
