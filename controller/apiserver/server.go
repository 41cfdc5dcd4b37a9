// Package apiserver has the controllers of what the API server itself owns: the
// namespaces, roles and other objects that every cluster has, the service kubernetes
// and its endpoints, the lease by which servers know each other, storage versions,
// flow schemas and priority levels. Start at Server, which is what all of them need of
// the server that they work for.
//
// They write the objects of the server in its name, without asking admission or
// authorization; what runs beside the API and uses it like a client is in package
// controller. None of them knows how a server is put together.
package apiserver

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/builtin/bootstrap"
	"github.com/apikeel/kelson/internal/clock"
	"github.com/apikeel/kelson/internal/loopback"
	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// serverManager owns the fields that the server sets, under the name that clients know
// it by.
const serverManager = "kube-apiserver"

// Server is the server whose objects are kept.
type Server struct {
	// Catalog returns what is served now.
	Catalog func() *resource.Catalog
	// Objects returns the objects of a resource; manager owns the fields of those that
	// are created.
	Objects func(manager, group, name string) resource.Objects
	// IsWritten, if set, reports whether an object was created before the hooks began. It
	// does so once for each: whoever asks again has to look.
	IsWritten func(def *resource.Definition, obj resource.Object) bool
	// Loopback carries requests of the server itself to its API.
	Loopback http.RoundTripper
	// Running counts what goes on in the background. The server waits for it when it ends.
	Running *sync.WaitGroup
	// Logger gets what goes wrong behind the calls.
	Logger *slog.Logger
}

func (s *Server) client() *loopback.Client {
	return &loopback.Client{Transport: s.Loopback, Agent: serverManager}
}

// namespacesEvery is how often it is looked whether a namespace is missing, as in
// kube-apiserver.
const namespacesEvery = time.Minute

// StartNamespaces creates the namespaces that every cluster has, and again if they are
// deleted, until ctx ends.
func (s *Server) StartNamespaces(ctx context.Context) error {
	if err := s.EnsureNamespaces(ctx); err != nil {
		return err
	}
	s.recreate(ctx, namespacesEvery, systemNamespaces()...)
	return nil
}

// EnsureNamespaces creates the namespaces that every cluster has.
func (s *Server) EnsureNamespaces(ctx context.Context) error {
	return s.Ensure(ctx, systemNamespaces(), nil)
}

func systemNamespaces() []resource.Object {
	var objs []resource.Object
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		objs = append(objs, &corev1.Namespace{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: name},
		})
	}
	return objs
}

// recreate creates those objects again that the watch cache no longer has, until ctx ends.
func (s *Server) recreate(ctx context.Context, every time.Duration, objs ...resource.Object) {
	clock.Background(ctx, s.Running, every, func() {
		missing := slices.DeleteFunc(slices.Clone(objs), func(obj resource.Object) bool {
			kind := obj.GetObjectKind().GroupVersionKind()
			served, ok := s.Catalog().LookupKind(kind)
			return !ok || s.Objects(serverManager, kind.Group, served.Definition.Resource).Has(ctx, obj.GetNamespace(), obj.GetName())
		})
		if err := s.Ensure(ctx, missing, nil); err != nil && ctx.Err() == nil {
			s.Logger.Warn("an object that every cluster has could not be created again", "error", err)
		}
	})
}

// ensureWorkers is how many objects are made at a time: the store makes few
// commits of them.
const ensureWorkers = 32

// Reconcile returns what becomes of an object that is there, given the one that is
// wanted.
type Reconcile func(existing, wanted resource.Object) (resource.Object, bootstrap.Action)

// Ensure creates objects that are not there, and brings others up to date as
// reconcile says; nil leaves them as they are. Kinds that are not served are left out.
func (s *Server) Ensure(ctx context.Context, objs []resource.Object, reconcile Reconcile) error {
	ctx = request.With(ctx, request.From(ctx)) // one time for all
	return protect.Each(len(objs), ensureWorkers, func(i int) error {
		if err := s.ensure(ctx, objs[i], reconcile); err != nil {
			return fmt.Errorf("%s %s: %w", objs[i].GetObjectKind().GroupVersionKind().Kind, objs[i].GetName(), err)
		}
		return nil
	})
}

func (s *Server) isWritten(def *resource.Definition, obj resource.Object) bool {
	return s.IsWritten != nil && s.IsWritten(def, obj)
}

func (s *Server) ensure(ctx context.Context, wanted resource.Object, reconcile Reconcile) error {
	kind := wanted.GetObjectKind().GroupVersionKind()
	served, ok := s.Catalog().LookupKind(kind)
	if !ok {
		return nil // switched off
	}
	if s.isWritten(served.Definition, wanted) {
		return nil
	}
	objects := s.Objects(serverManager, kind.Group, served.Definition.Resource)
	existing, err := objects.Get(ctx, wanted.GetNamespace(), wanted.GetName())
	// One that cannot be read is there, if nothing is to be changed about it.
	if apierrors.IsNotFound(err) || err != nil && reconcile == nil {
		if err = objects.Create(ctx, wanted.DeepCopyObject().(resource.Object)); apierrors.IsAlreadyExists(err) {
			return nil // another server was faster
		}
		return err
	}
	if err != nil || reconcile == nil {
		return err
	}
	switch next, action := reconcile(existing, wanted); action {
	case bootstrap.Update:
		return objects.Update(ctx, wanted.GetNamespace(), wanted.GetName(), func(obj resource.Object) error {
			next, _ = reconcile(obj, wanted)
			reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(next).Elem())
			return nil
		})
	case bootstrap.Recreate:
		if err := objects.Delete(ctx, wanted.GetNamespace(), wanted.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return objects.Create(ctx, wanted.DeepCopyObject().(resource.Object))
	}
	return nil
}
