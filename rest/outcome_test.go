package rest

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/store"
)

// failingBackend answers writes with an error, if there is one. They are not carried out.
type failingBackend struct {
	storage.Backend
	err error
}

func (b *failingBackend) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	if b.err != nil {
		return storage.KeyValue{}, b.err
	}
	return b.Backend.Create(ctx, key, value, ttl)
}

func (b *failingBackend) Update(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
	if b.err != nil {
		return storage.KeyValue{}, b.err
	}
	return b.Backend.Update(ctx, key, value, guard, ttl)
}

// judge is an admission plugin whose validation returns an error, if there is one.
type judge struct{ err error }

func (*judge) Name() string                                            { return "Judge" }
func (*judge) Handles(admission.Target) bool                           { return true }
func (j *judge) Validate(context.Context, *admission.Attributes) error { return j.err }

// TestOutcomeOfAWrite: what a write has reserved is kept if nobody knows whether it was
// carried out, and given back if the store never got it, whatever the error.
func TestOutcomeOfAWrite(t *testing.T) {
	memory := memory.New(memory.Options{})
	t.Cleanup(func() { memory.Close() })
	backend, plugin := &failingBackend{Backend: memory}, &judge{}
	objects, err := store.Open(t.Context(), backend, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(objects.Close)
	var ends []resource.Outcome
	kind := orderedKind(&steps{})
	kind.Strategy.Begin = func(context.Context, resource.Object, resource.Object) (func(resource.Outcome), error) {
		return func(o resource.Outcome) { ends = append(ends, o) }, nil
	}
	catalog, err := resource.NewCatalog(resource.Group{Resources: []resource.Definition{kind}})
	if err != nil {
		t.Fatal(err)
	}
	h := &Handler{Catalog: func() *resource.Catalog { return catalog }, Store: objects, Admission: admission.NewChain(plugin)}

	const path = "/api/v1/namespaces/default/configmaps"
	if a := do(t, h, "POST", path, `{"metadata":{"name":"a"}}`); a.code != http.StatusCreated {
		t.Fatalf("got %d %s, want 201", a.code, a.body)
	}
	for _, w := range []struct{ method, path, body, media string }{
		{"POST", path, `{"metadata":{"name":"b"}}`, "application/json"},
		{"PUT", path + "/a", `{"metadata":{"name":"a"},"data":{"k":"v"}}`, "application/json"},
		{"PATCH", path + "/a", `{"data":{"k":"v"}}`, "application/merge-patch+json"},
	} {
		for _, c := range []struct {
			name            string
			stored, refused error
			want            resource.Outcome
		}{
			{"the answer of the store is lost", storage.ErrUncertain, nil, resource.Unknown},
			{"the store does not answer in time", context.DeadlineExceeded, nil, resource.Unknown},
			{"admission does not answer in time", nil, context.DeadlineExceeded, resource.NotWritten},
			{"the store refuses", storage.ErrNoSpace, nil, resource.NotWritten},
		} {
			ends, backend.err, plugin.err = nil, c.stored, c.refused
			a := do(t, h, w.method, w.path, w.body, "Content-Type", w.media)
			if a.code < 400 || !slices.Equal(ends, []resource.Outcome{c.want}) {
				t.Errorf("%s, %s: got %d and ends %v, want an error and %v", w.method, c.name, a.code, ends, c.want)
			}
		}
	}
}
