package controlplane

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
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
	"github.com/apikeel/kelson/internal/protect"
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
	roles   []resource.Object // of RBAC, as they are wanted
	objects []*template       // as they are stored, in the order in which they were created
}

// imageKey is what decides about the content of an image.
type imageKey struct {
	kinds    kindsKey
	roles    bool // rules of cluster roles are aggregated
	statuses bool // flow schemas have a status
}

// imageTime is the time of all objects while an image is made.
var imageTime = time.Unix(1_234_567_890, 0).UTC()

// openImage writes the image into the store, if that is empty. It is done before
// anything follows the store: parts read the objects at once then, instead of hearing of
// each.
func (a *assembly) openImage(ctx context.Context) error {
	if !a.isFresh(ctx) {
		return nil
	}
	a.image = kindsOfProcess().image(imageKey{kinds: a.kinds, roles: a.runsController(controller.AggregationName), statuses: a.flow != nil})
	a.image.once.Do(a.fillImage)
	a.writeImage(ctx)
	return nil
}

// imageWriters is how many objects are written at a time: the store makes few commits of
// them.
const imageWriters = 32

// writeImage creates the objects of the image. Those that cannot be created are left to
// the hooks, which try again.
func (a *assembly) writeImage(ctx context.Context) {
	now := time.Now
	if a.Now != nil {
		now = a.Now
	}
	c, backend := &imprint{seed: uuid.New(), at: now().Unix()}, a.places.all[0].backend
	if !fits(c.at) {
		return
	}
	// What nobody would ask for is not noted.
	services, roles := storage.Root+aggregator.Group+"/", storage.Root+"clusterroles/"
	_ = protect.Each(len(a.image.objects), imageWriters, func(i int) error {
		t := a.image.objects[i]
		revision, err := storage.CreateLazy(ctx, backend, t.key, len(t.stored), func() []byte { return t.fill(c) })
		if err != nil {
			return err
		}
		if !strings.HasPrefix(t.key, services) {
			a.written.add(t.key)
		}
		if a.image.key.roles && strings.HasPrefix(t.key, roles) {
			a.aggregated.add(revision)
		}
		return nil
	})
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

// isWritten implements apiserver.Server.IsWritten.
func (a *assembly) isWritten(def *resource.Definition, obj resource.Object) bool {
	key := storage.Root + def.StorageKey + "/" + obj.GetName()
	if def.Namespaced {
		key = storage.Root + def.StorageKey + "/" + obj.GetNamespace() + "/" + obj.GetName()
	}
	return a.written.take(key)
}

// claims is a set of which each member is taken once.
type claims[K comparable] struct {
	mu  sync.Mutex
	all map[K]struct{}
}

func (c *claims[K]) add(k K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[K]struct{}{}
	}
	c.all[k] = struct{}{}
}

// take removes a member, and reports whether it was there.
func (c *claims[K]) take(k K) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.all[k]
	if delete(c.all, k); len(c.all) == 0 {
		c.all = nil // a map keeps the memory of its members
	}
	return ok
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
	return a.image.roles
}

// makeImage has the objects created in a store of its own, by the code that creates
// them in any other store.
func (a *assembly) makeImage() ([]*template, error) {
	ctx, cancel := context.WithCancel(request.With(context.Background(), &request.Request{Received: imageTime}))
	defer cancel()
	backend := memory.New(memory.Options{})
	defer backend.Close()
	objects, err := store.Open(ctx, backend, store.Options{})
	if err != nil {
		return nil, err
	}
	defer objects.Close()
	resources := &rest.Handler{Catalog: a.catalogs.get, Store: objects, Owners: &managedfields.Owners{}, Server: a.resources.Server}
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
	slices.SortFunc(page.Items, func(x, y storage.KeyValue) int { return cmp.Compare(x.CreateRevision, y.CreateRevision) })
	var made []*template
	uid := regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	for _, kv := range page.Items {
		if t := newTemplate(kv.Key, kv.Value, uid); t != nil {
			made = append(made, t)
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

// imprint is what the objects of an image have of the server that wrote them.
type imprint struct {
	seed uuid.UUID // random; uids are made from it, so that none has to be kept
	at   int64     // when they were created, in seconds; it fits
}

// uid returns the uid of an object: a random one to whoever does not know the seed.
func (c *imprint) uid(key string) (id uuid.UUID) {
	text := make([]byte, 0, 256)
	sum := sha256.Sum256(append(append(text, c.seed[:]...), key...))
	copy(id[:], sum[:])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // version 4, of RFC 9562
	return id
}

// fill returns the object of a server.
func (t *template) fill(c *imprint) []byte {
	at := time.Unix(c.at, 0)
	binary, text := binaryTime(at), textTime(at)
	stored := bytes.Clone(t.stored)
	copy(stored[t.uid:], c.uid(t.key).String())
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
