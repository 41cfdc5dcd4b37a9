package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/trace"
)

// measuredNodes returns the nodes of a store with measurements.
func measuredNodes(t *testing.T, registry *metrics.Registry, backend storage.Backend) *store.Resource {
	t.Helper()
	catalog, err := resource.NewCatalog(builtin.Groups(builtin.Config{})...)
	if err != nil {
		t.Fatal(err)
	}
	places, err := openPlaces(t.Context(), []storage.Backend{backend}, nil, newMeters(registry, func() *resource.Catalog { return catalog }), nil, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { places.close(); backend.Close() })
	def, ok := catalog.Definition("", "nodes")
	if !ok {
		t.Fatal("there are no nodes")
	}
	return places.all[0].objects.Resource(def)
}

// TestWritesAreTraced wants the spans of writes to have the attributes and events that they have in
// kube-apiserver.
func TestWritesAreTraced(t *testing.T) {
	nodes := measuredNodes(t, metrics.New(), memory.New(memory.Options{}))
	var kept []trace.Data
	tracer := &trace.Tracer{Ratio: 1, Export: func(d trace.Data) { kept = append(kept, d) }}
	ctx := request.With(trace.With(t.Context(), tracer.Root(nil, false, "root", trace.Server, time.Now())), &request.Request{AuditID: "7"})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	key := nodes.Key("", "n")
	if _, err := nodes.Create(ctx, key, node, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := nodes.Update(ctx, key, func(_ *store.Record, obj resource.Object) (resource.Object, time.Duration, error) {
		obj.SetLabels(map[string]string{"a": "b"})
		return obj, 0, nil
	}); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"Create etcd3": {"About to Encode", "Encode succeeded", "TransformToStorage succeeded", "Txn call succeeded", "Decode succeeded"},
		"GuaranteedUpdate etcd3": {"initial value restored", "About to Encode", "Encode succeeded", "TransformToStorage succeeded", "Transaction prepared",
			"Txn call completed", "Transaction committed", "Decode succeeded"},
	}
	for _, d := range kept {
		events, ok := want[d.Name]
		if !ok {
			continue
		}
		delete(want, d.Name)
		var got []string
		for _, e := range d.Events {
			got = append(got, e.Name)
		}
		if !slices.Equal(got, events) {
			t.Errorf("%s has the events %q, want %q", d.Name, got, events)
		}
		attributes := map[string]string{}
		for _, a := range d.Attributes {
			attributes[a.Key] = a.Text
		}
		if got, want := fmt.Sprint(attributes), "map[audit-id:7 group: key:/minions/n resource:nodes type:*core.Node]"; got != want {
			t.Errorf("%s has %s, want %s", d.Name, got, want)
		}
	}
	for name := range want {
		t.Errorf("there is no span %s", name)
	}
}

// failingCreate fails to create.
type failingCreate struct {
	storage.Backend
	err error
}

func (f *failingCreate) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	if f.err != nil {
		return storage.KeyValue{}, f.err
	}
	return f.Backend.Create(ctx, key, value, ttl)
}

// TestAnswersOfTheStoreAreNoErrors: etcd_request_errors_total counts requests that failed, not keys that are there
// already, are not there or have changed.
func TestAnswersOfTheStoreAreNoErrors(t *testing.T) {
	registry := metrics.New()
	backend := &failingCreate{Backend: memory.New(memory.Options{})}
	nodes := measuredNodes(t, registry, backend)
	create := func() error {
		_, err := nodes.Create(t.Context(), nodes.Key("", "n"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, 0)
		return err
	}
	counted := func() (sum float64) {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "etcd_request_errors_total" {
				for _, m := range f.GetMetric() {
					sum += m.GetCounter().GetValue()
				}
			}
		}
		return sum
	}
	if err := create(); err != nil {
		t.Fatal(err)
	}
	if err := create(); !errors.Is(err, storage.ErrExists) {
		t.Fatalf("got %v, want %v", err, storage.ErrExists)
	}
	if got := counted(); got != 0 {
		t.Errorf("%v errors after a key that was there, want 0", got)
	}
	backend.err = storage.ErrUnavailable
	if err := create(); !errors.Is(err, storage.ErrUnavailable) {
		t.Fatalf("got %v, want %v", err, storage.ErrUnavailable)
	}
	if got := counted(); got != 1 {
		t.Errorf("%v errors after a write that failed, want 1", got)
	}
}
