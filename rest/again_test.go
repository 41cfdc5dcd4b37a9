package rest

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/store"
	corev1 "k8s.io/api/core/v1"
)

// contended is a backend in which somebody else writes just before, once.
type contended struct {
	storage.Backend
	before func(key string, value []byte)
}

func (b *contended) first(key string, value []byte) {
	if before := b.before; before != nil {
		b.before = nil
		before(key, value)
	}
}

func (b *contended) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	b.first(key, value)
	return b.Backend.Create(ctx, key, value, ttl)
}

func (b *contended) Update(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
	b.first(key, value)
	return b.Backend.Update(ctx, key, value, guard, ttl)
}

// TestAgain: a write that has to be tried again begins with what was sent, and not with what
// the first attempt has made of it.
func TestAgain(t *testing.T) {
	memory := memory.New(memory.Options{})
	t.Cleanup(func() { memory.Close() })
	backend := &contended{Backend: memory}
	objects, err := store.Open(t.Context(), backend, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(objects.Close)
	count := func(obj resource.Object) {
		data := obj.(*corev1.ConfigMap)
		data.Data["attempts"] += "+"
	}
	kind := orderedKind(&steps{})
	kind.Strategy.PrepareCreate = func(_ context.Context, obj resource.Object) { count(obj) }
	kind.Strategy.PrepareUpdate = func(_ context.Context, obj, _ resource.Object) { count(obj) }
	catalog, err := resource.NewCatalog(resource.Group{Resources: []resource.Definition{kind}})
	if err != nil {
		t.Fatal(err)
	}
	h := &Handler{Catalog: func() *resource.Catalog { return catalog }, Store: objects}
	const path = "/api/v1/namespaces/default/configmaps"

	taken := ""
	backend.before = func(key string, value []byte) {
		taken = key[strings.LastIndexByte(key, '/')+1:]
		if _, err := memory.Create(t.Context(), key, value, 0); err != nil {
			t.Error(err)
		}
	}
	a := do(t, h, "POST", path, `{"metadata":{"generateName":"a-"},"data":{"k":"v"}}`)
	if a.code != http.StatusCreated || taken == "" || strings.Contains(a.body, `"name":"`+taken+`"`) || !strings.Contains(a.body, `"attempts":"+"`) {
		t.Errorf("got %d %s after %q was taken, want another name and one attempt", a.code, a.body, taken)
	}

	backend.before = func(key string, _ []byte) {
		kv, err := memory.Get(t.Context(), key)
		if err == nil {
			_, err = memory.Update(t.Context(), key, kv.Value, kv.ModRevision, 0)
		}
		if err != nil {
			t.Error(err)
		}
	}
	a = do(t, h, "PUT", path+"/"+taken, `{"metadata":{"name":"`+taken+`"},"data":{"k":"w"}}`)
	if a.code != http.StatusOK || backend.before != nil || !strings.Contains(a.body, `"attempts":"+"`) || !strings.Contains(a.body, `"k":"w"`) {
		t.Errorf("got %d %s, want what was sent and one attempt", a.code, a.body)
	}
}
