package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"testing"

	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/resource"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
)

// decodedCBOR decodes CBOR that must begin with the self-described tag, for comparisons.
func decodedCBOR(t testing.TB, data []byte) any {
	t.Helper()
	if !IsCBOR(data) {
		t.Fatalf("got % x, want it to begin with the self-described tag", data[:min(len(data), 8)])
	}
	var v any
	if err := direct.Unmarshal(data, &v); err != nil {
		t.Fatalf("got %v for % x", err, data)
	}
	return v
}

// anyOf is what decodedCBOR returns for an object that the types of the API encode.
func anyOf(t testing.TB, obj any) any {
	t.Helper()
	data, err := direct.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return decodedCBOR(t, append([]byte(cborPrefix), data...))
}

func compareCBOR(t testing.TB, what string, got []byte, want any) {
	t.Helper()
	if got, want := decodedCBOR(t, got), anyOf(t, want); !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}

// things is a custom resource of two versions.
func things(t testing.TB, storeCBOR bool) (hub, other *resource.Served) {
	t.Helper()
	empty := func() resource.Object { return &unstructured.Unstructured{Object: map[string]any{}} }
	list := func() runtime.Object { return &unstructured.UnstructuredList{} }
	convert := func(to string) func(resource.Object) (resource.Object, error) {
		return func(obj resource.Object) (resource.Object, error) {
			obj = obj.DeepCopyObject().(resource.Object)
			obj.(*unstructured.Unstructured).SetAPIVersion("example.com/" + to)
			return obj, nil
		}
	}
	catalog, err := resource.NewCatalog(resource.Group{Name: "example.com", Resources: []resource.Definition{{
		Group: "example.com", Resource: "things", Kind: "Thing", ListKind: "ThingList", Hub: "v1", StoreJSON: true, StoreCBOR: storeCBOR,
		Versions: []resource.Version{
			{Name: "v1", New: empty, NewList: list},
			{Name: "v2", New: empty, NewList: list, FromHub: convert("v2"), ToHub: convert("v1")},
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	find := func(version string) *resource.Served {
		s, ok := catalog.Lookup("example.com", version, "things")
		if !ok {
			t.Fatalf("version %s is not served", version)
		}
		return s
	}
	return find("v1"), find("v2")
}

func thing() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Thing", "metadata": map[string]any{"name": "a", "creationTimestamp": nil},
		"spec": map[string]any{"int": int64(7), "float": 1.5, "text": "ü", "list": []any{true, nil, map[string]any{}}},
	}}
}

// TestStoredCBOR stores a custom resource in either encoding, and reads it whichever of
// them its definition wants now.
func TestStoredCBOR(t *testing.T) {
	for _, inCBOR := range []bool{false, true} {
		writer, _ := things(t, inCBOR)
		obj := thing()
		obj.SetResourceVersion("5")
		stored, err := EncodeStored(writer.Definition, obj)
		if err != nil || IsCBOR(stored) != inCBOR {
			t.Fatalf("stored in CBOR: got %v, %v, want %v", IsCBOR(stored), err, inCBOR)
		}
		again, err := EncodeStored(writer.Definition, obj)
		if err != nil || !bytes.Equal(stored, again) {
			t.Errorf("encoded a second time: got % x, %v, want % x", again, err, stored)
		}
		for _, wantCBOR := range []bool{false, true} {
			reader, _ := things(t, wantCBOR)
			got, err := DecodeStored(reader.Definition, stored)
			if err != nil || !reflect.DeepEqual(got, resource.Object(thing())) {
				t.Errorf("stored in CBOR: %v, read with StoreCBOR %v: got %v, %v, want %v", inCBOR, wantCBOR, got, err, thing())
			}
		}
	}
}

// TestStoredCBOROfBuiltIn refuses CBOR for kinds that are never stored in it.
func TestStoredCBOROfBuiltIn(t *testing.T) {
	if obj, err := DecodeStored(pods(t).Definition, []byte(cborPrefix+"\xa0")); err == nil {
		t.Errorf("got %v, want an error", obj)
	}
	hub, _ := things(t, true)
	for _, data := range []string{cborPrefix, cborPrefix + "\xf6", cborPrefix + "\x80", cborPrefix + "\xbf\x61a\x01", cborPrefix + "\xa2\x41a\x01\x41a\x02"} {
		if obj, err := DecodeStored(hub.Definition, []byte(data)); err == nil {
			t.Errorf("% x: got %v, want an error", data, obj)
		}
	}
}

// TestAppendCBOR encodes structs and maps in CBOR, whole and their metadata, and compares
// them with what the types of the API encode.
func TestAppendCBOR(t *testing.T) {
	s := pods(t)
	pod := testPod(t)
	pod.TypeMeta, pod.Name, pod.ResourceVersion = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, "a", "77"
	partial := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}, ObjectMeta: pod.ObjectMeta}
	rec := podRecord(t, s.Definition, "a", 77)
	orders := map[string]bool{}
	for range 40 {
		got, err := (&Encoder{Served: s, Format: Format{Media: CBOR}}).AppendObject(nil, rec)
		if err != nil {
			t.Fatal(err)
		}
		compareCBOR(t, "pod", got, pod)
		orders[string(got)] = true
		if got, err = (&Encoder{Served: s, Format: Format{Media: CBOR, Shape: ShapeMetadata}}).AppendObject(nil, rec); err != nil {
			t.Fatal(err)
		}
		compareCBOR(t, "metadata", got, partial)
	}
	if len(orders) < 2 {
		t.Error("got the same bytes 40 times, want the order of keys to vary")
	}
	for _, storeCBOR := range []bool{false, true} {
		hub, other := things(t, storeCBOR)
		stored, err := EncodeStored(hub.Definition, thing())
		if err != nil {
			t.Fatal(err)
		}
		rec := NewRecord(Record{Key: "k", Name: "a", Revision: 9}, stored, nil, nil, nil, nil)
		for _, s := range []*resource.Served{hub, other} {
			want := thing()
			want.SetAPIVersion(s.APIVersion)
			want.SetResourceVersion("9")
			e := &Encoder{Served: s, Format: Format{Media: CBOR}}
			if err := e.Convert([]*Record{rec}); err != nil {
				t.Fatal(err)
			}
			for range 20 {
				got, err := e.AppendObject(nil, rec)
				if err != nil {
					t.Fatal(err)
				}
				compareCBOR(t, s.APIVersion, got, want.Object)
			}
			// The stored bytes must never be served as JSON if they are CBOR.
			if err := e.NoteWritten(rec, thing()); err != nil {
				t.Fatal(err)
			}
			text, err := e.AsJSON().AppendObject(nil, rec)
			if err != nil || !json.Valid(text) {
				t.Errorf("JSON of what is stored in CBOR (%v): got %q, %v", storeCBOR, text, err)
			}
		}
	}
	if _, err := (&Encoder{Served: s, Format: Format{Media: CBOR}}).AppendAny(nil, "v1", "Status", make(chan int)); err == nil {
		t.Error("a channel was encoded, want an error")
	}
}

// TestCBORUnstored encodes objects that are in no store.
func TestCBORUnstored(t *testing.T) {
	e := &Encoder{Served: pods(t), Format: Format{Media: CBOR}}
	pod := testPod(t)
	rec, err := e.Unstored(pod)
	if err != nil {
		t.Fatal(err)
	}
	got, err := e.AppendObject(nil, rec)
	if err != nil {
		t.Fatal(err)
	}
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	compareCBOR(t, "unstored", got, pod)
}

// TestCBORLists compares lists with those that the types of the API encode, made anew and
// from chunks.
func TestCBORLists(t *testing.T) {
	s := pods(t)
	const items = LongList + 100
	left := int64(3)
	page := &Page{Revision: 1000, Continue: "token", Remaining: &left}
	want := &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "1000", Continue: "token", RemainingItemCount: &left}}
	partial := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}, ListMeta: want.ListMeta}
	for i := range items {
		page.Records = append(page.Records, podRecord(t, s.Definition, fmt.Sprintf("p%04d", i), int64(i+1)))
		pod := testPod(t)
		pod.TypeMeta, pod.Name, pod.ResourceVersion = metav1.TypeMeta{}, fmt.Sprintf("p%04d", i), RevisionString(int64(i+1))
		want.Items = append(want.Items, *pod)
		partial.Items = append(partial.Items, metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}, ObjectMeta: pod.ObjectMeta})
	}
	chunks := &ChunkCache{}
	made := map[Shape][2][]byte{} // anew, and from chunks
	for shape := range map[Shape]any{ShapeObject: want, ShapeMetadata: partial} {
		e := &Encoder{Served: s, Format: Format{Media: CBOR, Shape: shape}, Chunks: chunks}
		// With the race detector a list takes so long that none comes again soon enough.
		lists := make([][]byte, 3)
		if testsize.Race() {
			lists = lists[:1]
		}
		for i := range lists {
			var err error
			if lists[i], err = e.AppendList(nil, page); err != nil {
				t.Fatal(err)
			}
		}
		made[shape] = [2][]byte{lists[0], lists[len(lists)-1]}
	}
	for shape, list := range map[Shape]any{ShapeObject: want, ShapeMetadata: partial} {
		for _, got := range made[shape] {
			compareCBOR(t, fmt.Sprintf("list of shape %d", shape), got, list)
		}
	}
	if chunks.Len() == 0 && !testsize.Race() {
		t.Error("got no chunks, want items of a list that came again to be kept")
	}
	want.Items, partial.Items = []corev1.Pod{}, nil
	page.Records = nil
	for shape, list := range map[Shape]any{ShapeObject: want, ShapeMetadata: partial} {
		got, err := (&Encoder{Served: s, Format: Format{Media: CBOR, Shape: shape}}).AppendList(nil, page)
		if err != nil {
			t.Fatal(err)
		}
		compareCBOR(t, fmt.Sprintf("empty list of shape %d", shape), got, list)
	}
	hub, _ := things(t, true)
	got, err := (&Encoder{Served: hub, Format: Format{Media: CBOR}}).AppendList(nil, page)
	if err != nil {
		t.Fatal(err)
	}
	compareCBOR(t, "list of maps", got, map[string]any{"apiVersion": "example.com/v1", "kind": "ThingList", "items": []any{},
		"metadata": map[string]any{"continue": "token", "remainingItemCount": int64(3), "resourceVersion": "1000"}})
}

// TestCBOREvents decodes the events of a watch.
func TestCBOREvents(t *testing.T) {
	s := pods(t)
	w := &EventEncoder{Encoder: &Encoder{Served: s, Format: Format{Media: CBOR, Stream: true}}}
	if got := w.Encoder.Format.ContentType(); got != "application/cbor-seq" {
		t.Errorf("Content-Type: got %q, want application/cbor-seq", got)
	}
	pod := testPod(t)
	pod.TypeMeta, pod.Name, pod.ResourceVersion = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, "a", "77"
	rec, orders := podRecord(t, s.Definition, "a", 77), map[bool]bool{}
	for range 40 {
		got, err := w.AppendEvent(nil, Modified, rec)
		if err != nil {
			t.Fatal(err)
		}
		compareCBOR(t, "event", got, map[string]any{"type": "MODIFIED", "object": pod})
		orders[bytes.HasPrefix(got, []byte(cborPrefix+"\xa2\x44type"))] = true
	}
	if len(orders) < 2 {
		t.Error("type and object came in the same order 40 times, want it to vary")
	}
	got, err := w.AppendBookmark(nil, 12, true)
	if err != nil {
		t.Fatal(err)
	}
	event := decodedCBOR(t, got).(map[string]any)
	if meta, _, _ := unstructured.NestedMap(event, "object", "metadata"); event["type"] != "BOOKMARK" || meta["resourceVersion"] != "12" ||
		!reflect.DeepEqual(meta["annotations"], map[string]any{initialEventsEnd: "true"}) {
		t.Errorf("bookmark: got %v", event)
	}
	status := &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Code: 410, Message: "gone"}
	if got, err = w.AppendError(nil, status); err != nil {
		t.Fatal(err)
	}
	compareCBOR(t, "error", got, map[string]any{"type": "ERROR", "object": status})
}

// FuzzStoredCBOR reads stored bytes that claim to be CBOR. What can be read can be stored
// again, and is the same then.
func FuzzStoredCBOR(f *testing.F) {
	hub, _ := things(f, true)
	stored, err := EncodeStored(hub.Definition, thing())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(stored[len(cborPrefix):])
	for _, body := range []string{"\xa0", "\xbf\xff", "\xa1\x41a\x9f\xff", "\xbb\xff\xff\xff\xff\xff\xff\xff\xff", "\xa1\x61\xff\x01", "\xa1\x41a\xfb\x7f\xf0\x00\x00\x00\x00\x00\x00", "\xa1\x41a\xc1\x01", "\xa1\x41a\xd6\x41\xff",
		"\xa4\x44kind\x45Thing\x4aapiVersion\x4eexample.com/v1\x48metadata\xa0\x41a\x9f\xff"} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		skipCBOR(body, 0, 1)
		appendRotated(nil, body)
		obj, err := DecodeStored(hub.Definition, append([]byte(cborPrefix), body...))
		if err != nil {
			return
		}
		again, err := EncodeStored(hub.Definition, obj)
		if errors.Is(err, ErrNotStorable) {
			return // of no kind: others may have stored it so
		}
		if err != nil {
			t.Fatalf("%v: %v", obj, err)
		}
		got, err := DecodeStored(hub.Definition, again)
		if err != nil {
			t.Fatalf("stored again as % x: %v", again, err)
		}
		if third, err := EncodeStored(hub.Definition, got); err != nil || !bytes.Equal(again, third) {
			t.Fatalf("got % x, %v, want % x", third, err, again)
		}
	})
}

// BenchmarkCBORList writes a list of pods whose encodings are kept, without chunks.
func BenchmarkCBORList(b *testing.B) {
	s := pods(b)
	page := &Page{Revision: 1000}
	for i := range 1000 {
		page.Records = append(page.Records, podRecord(b, s.Definition, fmt.Sprintf("p%04d", i), int64(i+1)))
	}
	for name, media := range map[string]MediaType{"cbor": CBOR, "protobuf": Protobuf, "json": JSON} {
		b.Run(name, func(b *testing.B) {
			e := &Encoder{Served: s, Format: Format{Media: media}}
			size := 0
			b.ReportAllocs()
			for b.Loop() {
				l, err := e.PrepareList(page, false)
				if err != nil {
					b.Fatal(err)
				}
				var n counter
				w := NewWriter(&n)
				if err := l.WriteTo(w); err != nil {
					b.Fatal(err)
				}
				w.Flush()
				w.Free()
				l.Release()
				size = int(n)
			}
			b.SetBytes(int64(size))
		})
	}
}

// counter counts what is written.
type counter int

var _ io.Writer = new(counter)

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
