package builtin_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/wire"
)

// loadedConfigMap returns a ConfigMap of a kilobyte as it is stored, and what encodes it.
func loadedConfigMap(t testing.TB) (stored []byte, e *wire.Encoder) {
	t.Helper()
	catalog, err := resource.NewCatalog(builtin.Groups(builtin.Config{})...)
	if err != nil {
		t.Fatal(err)
	}
	served, ok := catalog.Lookup("", "v1", "configmaps")
	if !ok {
		t.Fatal("no ConfigMaps")
	}
	stored, err = wire.EncodeStored(served.Definition, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default", UID: "1", Labels: map[string]string{"app": "web"}},
		Data:       map[string]string{"k": strings.Repeat("v", 1000)},
		BinaryData: map[string][]byte{"empty": {}, "null": nil, "some": {1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return stored, &wire.Encoder{Served: served, Format: wire.Format{Media: wire.JSON}}
}

// TestLoadedConfigMap: the JSON of a ConfigMap that an older program may have stored is
// made without decoding it, and has empty values where protobuf has none.
func TestLoadedConfigMap(t *testing.T) {
	stored, e := loadedConfigMap(t)
	rec := wire.NewRecord(wire.Record{Key: "k", Namespace: "default", Name: "a", Revision: 9}, stored, nil, nil, nil, nil)
	got, err := e.AppendObject(nil, rec)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"default","uid":"1","resourceVersion":"9","labels":{"app":"web"}},"data":{"k":"` +
		strings.Repeat("v", 1000) + `"},"binaryData":{"empty":"","null":"","some":"AQ=="}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	most := float64(testsize.Pick(20, 15, 15)) // with the race detector pools lose some of what they have
	if allocs := testing.AllocsPerRun(10, func() {
		rec := wire.NewRecord(wire.Record{Key: "k", Namespace: "default", Name: "a", Revision: 9}, stored, nil, nil, nil, nil)
		_, err = e.AppendObject(nil, rec)
	}); allocs > most || err != nil {
		t.Errorf("%v allocations (%v), want at most %v: was it decoded?", allocs, err, most)
	}
}

// BenchmarkLoadedConfigMap is the JSON of a ConfigMap that was loaded from disk.
func BenchmarkLoadedConfigMap(b *testing.B) {
	stored, e := loadedConfigMap(b)
	var out []byte
	b.ReportAllocs()
	for b.Loop() {
		rec := wire.NewRecord(wire.Record{Key: "k", Namespace: "default", Name: "a", Revision: 9}, stored, nil, nil, nil, nil)
		var err error
		if out, err = e.AppendObject(out[:0], rec); err != nil {
			b.Fatal(err)
		}
	}
}

// TestLoadedMetadata: the metadata of an object that an older program stored without its
// defaults are those in the JSON of all of it.
func TestLoadedMetadata(t *testing.T) {
	catalog, err := resource.NewCatalog(builtin.Groups(builtin.Config{})...)
	if err != nil {
		t.Fatal(err)
	}
	for name, obj := range map[string]resource.Object{
		"namespaces": &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "old"}},
		"replicationcontrollers": &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "old"},
			Spec: corev1.ReplicationControllerSpec{Template: &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}}}},
		"pods": &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "old", Labels: map[string]string{"a": "b"}}},
	} {
		served, ok := catalog.Lookup("", "v1", name)
		if !ok {
			t.Fatalf("no %s", name)
		}
		stored, err := wire.EncodeStored(served.Definition, obj)
		if err != nil {
			t.Fatal(err)
		}
		encode := func(shape wire.Shape) string {
			e := &wire.Encoder{Served: served, Format: wire.Format{Media: wire.JSON, Shape: shape}}
			b, err := e.AppendObject(nil, wire.NewRecord(wire.Record{Key: "k", Name: "old", Revision: 9}, stored, nil, nil, nil, nil))
			if err != nil {
				t.Fatal(err)
			}
			meta, ok := wire.MetadataJSON(b)
			if !ok {
				t.Fatalf("%s have no metadata", b)
			}
			return string(meta)
		}
		if got, want := encode(wire.ShapeMetadata), encode(wire.ShapeObject); got != want || name != "pods" && !strings.Contains(got, "labels") {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}
