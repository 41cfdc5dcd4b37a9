package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/crd"
	"github.com/apikeel/kelson/internal/loopback"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/store"
)

// catalogs is the catalog as it is now: built-in kinds, and the custom ones
// that come and go.
type catalogs struct {
	mu      sync.Mutex // held by who changes it
	current atomic.Pointer[resource.Catalog]
	objects *store.Store
	owners  *owners
	// onChange is called when there is another catalog; nil if nobody cares.
	onChange func()
}

func (c *catalogs) get() *resource.Catalog { return c.current.Load() }

// publish brings custom resources into the catalog, and takes others out.
func (c *catalogs) publish(put []*resource.Definition, gone []schema.GroupResource) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.get()
	next, err := old.Change(put, gone)
	if err != nil {
		return err
	}
	c.current.Store(next)
	if c.onChange != nil {
		defer c.onChange()
	}
	groups := map[string]bool{}
	for _, def := range put {
		groups[def.Group] = true
	}
	for _, gr := range gone {
		groups[gr.Group] = true
		if was, ok := old.Definition(gr.Group, gr.Resource); ok {
			c.objects.Forget(was)
		}
	}
	for name := range groups {
		if _, ok := old.Group(name); ok {
			c.owners.Forget(name)
		}
	}
	return nil
}

// definitions is the crd.Store over the store of the server, which it writes to
// like any client.
type definitions struct {
	catalog func() *resource.Catalog
	client  *loopback.Client
	// handler and owners write a status without the detour over HTTP: it is
	// written for every definition.
	handler *rest.Handler
	owners  *owners
}

func (d *definitions) resource() (*store.Resource, error) {
	r, ok := d.handler.Stored(crd.Group, crd.Resource)
	if !ok {
		return nil, errors.New("custom resource definitions are not served")
	}
	return r, nil
}

// Definitions implements crd.Store.
func (d *definitions) Definitions(ctx context.Context, seen int64) ([]crd.Stored, int64, bool, error) {
	r, err := d.resource()
	if err != nil {
		return nil, 0, false, err
	}
	s, err := r.Snapshot(ctx, store.Read{})
	if err != nil {
		return nil, 0, false, err
	}
	if seen != 0 && !r.ChangedSince(seen) {
		return nil, s.Revision, false, nil
	}
	stored := make([]crd.Stored, 0, s.Len())
	s.Range(r.Key("", ""), "", func(rec *store.Record) bool {
		text, err := crd.Plain(r.Definition(), rec.Stored)
		if err != nil {
			text = rec.Stored // who reads it says so
		}
		stored = append(stored, crd.Stored{Name: rec.Name, Revision: rec.Revision, JSON: text})
		return true
	})
	return stored, s.Revision, true, nil
}

// Wait implements crd.Store.
func (d *definitions) Wait(ctx context.Context, revision int64) error {
	r, err := d.resource()
	if err != nil {
		return err
	}
	return r.WaitForChange(ctx, revision)
}

// serverName owns the fields that the server sets in definitions.
const serverName = "kube-apiserver"

// UpdateStatus implements crd.Store.
func (d *definitions) UpdateStatus(ctx context.Context, name string, change func(*apiextensions.CustomResourceDefinition) error) error {
	served, ok := d.catalog().Lookup(crd.Group, "v1", crd.Resource)
	if !ok {
		return errors.New("custom resource definitions are not served")
	}
	return d.handler.Objects(crd.Group, crd.Resource).Update(ctx, "", name, func(obj resource.Object) error {
		c := obj.(*apiextensions.CustomResourceDefinition)
		live := *c // but for the status, nothing is changed
		live.Status = *c.Status.DeepCopy()
		if err := change(c); err != nil {
			return err
		}
		if equality.Semantic.DeepEqual(&live.Status, &c.Status) {
			return nil
		}
		// Who owns what is worth less than the status itself.
		_, _ = d.owners.Update(served, "status", &live, c, serverName, request.From(ctx).Received)
		return nil
	})
}

// Release implements crd.Store.
func (d *definitions) Release(ctx context.Context, name string, change func(*apiextensions.CustomResourceDefinition) error) error {
	path := "/apis/" + crd.Group + "/v1/" + crd.Resource + "/" + name
	return loopback.Update(ctx, d.client, path, "/status", change)
}

// DeleteObjects implements crd.Store.
func (d *definitions) DeleteObjects(ctx context.Context, group, name string) (int, int64, error) {
	r, ok := d.handler.Stored(group, name)
	if !ok {
		return 0, 0, nil
	}
	def := r.Definition()
	list := func() (*store.Snapshot, error) { return r.Snapshot(ctx, store.Read{}) }
	s, err := list()
	if err != nil || s.Len() == 0 {
		return 0, 0, err
	}
	// That of the hub, if it can be: for others a webhook may have to be asked, and
	// it may be gone already.
	version := ""
	for i := range def.Versions {
		if v := &def.Versions[i]; !v.Off && (version == "" || v.Name == def.Hub) {
			version = v.Name
		}
	}
	if version == "" {
		return s.Len(), 0, fmt.Errorf("no version of %s.%s is served", name, group)
	}
	namespaces := map[string]bool{}
	s.Range(r.Key("", ""), "", func(rec *store.Record) bool {
		namespaces[rec.Namespace] = true
		return true
	})
	for ns := range namespaces {
		path := "/apis/" + group + "/" + version
		if ns != "" {
			path += "/namespaces/" + ns
		}
		if err := d.client.Do(ctx, loopback.Call{Method: http.MethodDelete, Path: path + "/" + name}); err != nil {
			return s.Len(), 0, err
		}
	}
	after, err := list()
	if err != nil {
		return 0, 0, err
	}
	// As of before: something may have been created meanwhile, and is not deleted yet.
	return after.Len(), s.Revision, nil
}

// WaitObjects implements crd.Store.
func (d *definitions) WaitObjects(ctx context.Context, group, name string, revision int64) error {
	r, ok := d.handler.Stored(group, name)
	if !ok {
		return nil
	}
	return r.WaitForChange(ctx, revision)
}

// loopbackUser is who the server is to itself.
func loopbackUser() request.User {
	return request.User{Name: "system:apiserver", Groups: []string{"system:authenticated", "system:masters"}}
}

// extensions ends the chain: it looks once more for custom resources whose
// definitions have just come, and then says that there is nothing.
type extensions struct {
	custom *crd.Server
	core   *api
}

// Paths implements kelson.Router.
func (extensions) Paths() []string { return nil }

// Route implements kelson.Router.
func (e extensions) Route(w http.ResponseWriter, r *http.Request) bool {
	req := request.From(r.Context())
	if req.IsResource && req.Group != "" {
		// The built-in kinds are asked again even if Sync has nothing to do: somebody
		// else may have published the definition since they were asked first.
		if err := e.custom.Sync(r.Context()); err == nil && e.core.Route(w, r) {
			return true
		}
	}
	if e.isCustom(req.Group) {
		return false
	}
	return e.core.NotFound(w, r)
}

// isCustom reports whether a group has nothing but custom resources: of such a
// one, nobody knows which paths there might be.
func (e extensions) isCustom(name string) bool {
	group, ok := e.core.catalog().Group(name)
	if !ok {
		return false
	}
	for i := range group.Versions {
		for _, s := range group.Versions[i].Resources {
			if !s.Unstructured {
				return false
			}
		}
	}
	return true
}

var _ kelson.Router = extensions{}
