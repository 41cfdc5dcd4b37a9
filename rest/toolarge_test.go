package rest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/managedfields"
	"github.com/apikeel/kelson/request"
	kresource "github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/store"
	corev1 "k8s.io/api/core/v1"
)

// narrowBackend refuses values of more than max bytes.
type narrowBackend struct {
	storage.Backend
	max int
}

func (b narrowBackend) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	if len(value) > b.max {
		return storage.KeyValue{}, storage.ErrTooLarge
	}
	return b.Backend.Create(ctx, key, value, ttl)
}

func (b narrowBackend) Update(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
	if len(value) > b.max {
		return storage.KeyValue{}, storage.ErrTooLarge
	}
	return b.Backend.Update(ctx, key, value, guard, ttl)
}

// TestManagedFieldsGiveWayToLargeObjects wants a write to succeed whose object fits into
// the store only without managedFields, except for an apply, which cannot do without.
func TestManagedFieldsGiveWayToLargeObjects(t *testing.T) {
	whole := memory.New(memory.Options{})
	defer whole.Close()
	backend := narrowBackend{whole, 60_000}
	objects, err := store.Open(t.Context(), backend, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer objects.Close()
	catalog, err := kresource.NewCatalog(builtin.Groups(builtin.Config{})...)
	if err != nil {
		t.Fatal(err)
	}
	h := &rest.Handler{Catalog: func() *kresource.Catalog { return catalog }, Store: objects, Owners: &managedfields.Owners{}}

	const path = "/api/v1/namespaces/ns/configmaps"
	send := func(method, path, media, body string) (int, corev1.ConfigMap) {
		t.Helper()
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", media)
		info, err := request.Parse(r)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.Route(w, r.WithContext(request.With(r.Context(), &request.Request{Info: info, Received: time.Now(), Warned: &request.Warnings{}})))
		var obj corev1.ConfigMap
		if err := json.NewDecoder(bytes.NewReader(w.Body.Bytes())).Decode(&obj); err != nil {
			t.Fatal(err)
		}
		return w.Code, obj
	}
	config := func(name string, keys int) string {
		data := map[string]string{}
		for i := range keys {
			data[fmt.Sprintf("this-key-is-long-so-that-its-owner-takes-much-room-%d", i)] = "A"
		}
		b, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]string{"name": name}, "data": data})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	const large, huge = 700, 1500
	code, obj := send("POST", path, "application/json", config("created", large))
	if code != http.StatusCreated || len(obj.Data) != large || len(obj.ManagedFields) != 0 {
		t.Errorf("create: got %d with %d keys and %d managers, want 201 with %d and none", code, len(obj.Data), len(obj.ManagedFields), large)
	}
	for _, name := range []string{"updated", "patched", "applied"} {
		code, obj := send("POST", path, "application/json", config(name, 1))
		if code != http.StatusCreated || len(obj.ManagedFields) != 1 {
			t.Fatalf("create %s: got %d with %d managers, want 201 with 1", name, code, len(obj.ManagedFields))
		}
	}
	for _, c := range []struct {
		method, name, query, media string
		keys, code                 int
	}{
		{"PUT", "updated", "", "application/json", large, http.StatusOK},
		{"PUT", "updated", "", "application/json", huge, http.StatusRequestEntityTooLarge},
		{"PATCH", "patched", "", "application/merge-patch+json", large, http.StatusOK},
		{"PATCH", "patched", "", "application/merge-patch+json", huge, http.StatusRequestEntityTooLarge},
		{"PATCH", "applied", "?fieldManager=m&force=true", "application/apply-patch+yaml", large, http.StatusRequestEntityTooLarge},
		{"PATCH", "new", "?fieldManager=m", "application/apply-patch+yaml", large, http.StatusRequestEntityTooLarge},
	} {
		code, obj := send(c.method, path+"/"+c.name+c.query, c.media, config(c.name, c.keys))
		if code != c.code {
			t.Errorf("%s of %s with %d keys: got %d, want %d", c.method, c.name, c.keys, code, c.code)
		} else if code == http.StatusOK && (len(obj.Data) != c.keys || len(obj.ManagedFields) != 0) {
			t.Errorf("%s of %s: got %d keys and %d managers, want %d and none", c.method, c.name, len(obj.Data), len(obj.ManagedFields), c.keys)
		}
	}
}
