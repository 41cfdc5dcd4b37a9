package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/apikeel/kelson/crd"
	"github.com/apikeel/kelson/internal/loopback"
	"github.com/apikeel/kelson/managedfields"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/store"
)

// definitions is the crd.Store over the store of the server, which it writes to
// like any client.
type definitions struct {
	catalog func() *resource.Catalog
	client  *loopback.Client
	// handler and owners write a status without the detour over HTTP: it is
	// written for every definition.
	handler *rest.Handler
	owners  *managedfields.Owners
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
		var bytes []byte
		if bytes, err = rec.Stored(); err != nil {
			return false
		}
		text, plainErr := crd.Plain(r.Definition(), bytes)
		if plainErr != nil {
			text = bytes // who reads it says so
		}
		stored = append(stored, crd.Stored{Name: rec.Name, Revision: rec.Revision, JSON: text})
		return true
	})
	if err != nil {
		return nil, 0, false, err
	}
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
	if err != nil || s.Len()+len(s.LeftOut("")) == 0 {
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
		return s.Len() + len(s.LeftOut("")), 0, fmt.Errorf("no version of %s.%s is served", name, group)
	}
	namespaces := map[string]bool{}
	s.Range(r.Key("", ""), "", func(rec *store.Record) bool {
		namespaces[rec.Namespace] = true
		return true
	})
	for _, one := range s.LeftOut("") { // those that cannot be read go with the others
		ns, _, namespaced := strings.Cut(strings.TrimPrefix(one.Key, r.Key("", "")), "/")
		if !namespaced {
			ns = ""
		}
		namespaces[ns] = true
	}
	for ns := range namespaces {
		path := "/apis/" + group + "/" + version
		if ns != "" {
			path += "/namespaces/" + ns
		}
		if err := d.client.Do(ctx, loopback.Call{Method: http.MethodDelete, Path: path + "/" + name}); err != nil {
			return s.Len() + len(s.LeftOut("")), 0, err
		}
	}
	after, err := list()
	if err != nil {
		return 0, 0, err
	}
	// As of before: something may have been created meanwhile, and is not deleted yet.
	return after.Len() + len(after.LeftOut("")), s.Revision, nil
}

// WaitObjects implements crd.Store.
func (d *definitions) WaitObjects(ctx context.Context, group, name string, revision int64) error {
	r, ok := d.handler.Stored(group, name)
	if !ok {
		return nil
	}
	return r.WaitForChange(ctx, revision)
}
