package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/resource"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// podRecord returns a pod at a revision as a store has it.
func podRecord(t testing.TB, def *resource.Definition, name string, revision int64) *Record {
	t.Helper()
	pod := testPod(t)
	pod.TypeMeta, pod.Name = metav1.TypeMeta{}, name
	stored, err := EncodeStored(def, pod)
	if err != nil {
		t.Fatal(err)
	}
	return NewRecord(Record{Key: "/registry/pods/" + name, Name: name, Revision: revision}, stored, nil, nil, nil, nil)
}

// TestAppendObject encodes a record in every format, twice: made anew, and from what is
// kept; and the same object that is in no store.
func TestAppendObject(t *testing.T) {
	s := pods(t)
	want := testPod(t)
	want.TypeMeta, want.Name, want.ResourceVersion = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, "a", "77"
	partial := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}, ObjectMeta: want.ObjectMeta}
	bare := &metav1.PartialObjectMetadata{ObjectMeta: want.ObjectMeta}
	wantJSON, partialJSON := marshal(t, want), marshal(t, partial)
	created := want.CreationTimestamp.UTC().Format(time.RFC3339)
	for _, c := range []struct {
		format  Format
		include Include
		want    string
	}{
		{Format{}, 0, string(wantJSON)},
		{Format{Media: Protobuf}, 0, string(AppendEnvelope(nil, "v1", "Pod", must(want.Marshal())))},
		{Format{Shape: ShapeMetadata}, 0, string(partialJSON)},
		{Format{Shape: ShapeMetadata, Beta: true}, 0, strings.Replace(string(partialJSON), "meta.k8s.io/v1", "meta.k8s.io/v1beta1", 1)},
		{Format{Media: Protobuf, Shape: ShapeMetadata}, 0, string(AppendEnvelope(nil, "meta.k8s.io/v1", "PartialObjectMetadata", must(bare.Marshal())))},
		{Format{Shape: ShapeTable}, IncludeNone, table(fmt.Sprintf(`{"cells":["a",%q],"object":null}`, created))},
		{Format{Shape: ShapeTable}, IncludeMetadata, table(fmt.Sprintf(`{"cells":["a",%q],"object":%s}`, created, partialJSON))},
		{Format{Shape: ShapeTable}, IncludeObject, table(fmt.Sprintf(`{"cells":["a",%q],"object":%s}`, created, wantJSON))},
	} {
		e := &Encoder{Served: s, Format: c.format, Include: c.include, Now: time.Unix(0, 0)}
		rec := podRecord(t, s.Definition, "a", 77)
		unstored, err := e.Unstored(want)
		if err != nil {
			t.Fatal(err)
		}
		for _, of := range []struct {
			which string
			rec   *Record
		}{{"first time", rec}, {"second time", rec}, {"not stored", unstored}} {
			got, err := e.AppendObject([]byte("x"), of.rec)
			if err != nil || string(got) != "x"+c.want {
				t.Errorf("%+v, %s:\n got %q, %v\nwant x%q", c.format, of.which, got, err, c.want)
			}
		}
	}
}

// table is a table of one row, as the kind of pods has it that says nothing of columns.
func table(row string) string {
	var columns bytes.Buffer
	_ = json.NewEncoder(&columns).Encode(columnDefinitions(nil))
	return `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"77"},"columnDefinitions":` + strings.TrimSpace(columns.String()) + `,"rows":[` + row + `]}`
}

// TestListIsWhatItsTypeEncodes compares lists with those that the types of the API make,
// with chunks and without.
func TestListIsWhatItsTypeEncodes(t *testing.T) {
	s := pods(t)
	const items = 2 * LongList
	page := &Page{Revision: 1000, Continue: "token"}
	want := &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "1000", Continue: "token"}}
	for i := range items {
		rec := podRecord(t, s.Definition, fmt.Sprintf("p%04d", i), int64(i+1))
		pod := testPod(t)
		pod.TypeMeta, pod.Name, pod.ResourceVersion = metav1.TypeMeta{}, rec.Name, RevisionString(rec.Revision)
		page.Records, want.Items = append(page.Records, rec), append(want.Items, *pod)
	}
	wantProto := AppendEnvelope(nil, "v1", "PodList", must(want.Marshal()))
	wantJSON := marshal(t, want)
	var chunks ChunkCache
	for _, cache := range []*ChunkCache{nil, &chunks} {
		for range 3 {
			e := &Encoder{Served: s, Chunks: cache}
			if got, err := e.AppendList(nil, page); err != nil || !bytes.Equal(got, wantJSON) {
				t.Errorf("JSON: got %d bytes, %v, want %d", len(got), err, len(wantJSON))
			}
			e.Format.Media = Protobuf
			if got, err := e.AppendList(nil, page); err != nil || !bytes.Equal(got, wantProto) {
				t.Errorf("protobuf: got %d bytes, %v, want %d", len(got), err, len(wantProto))
			}
		}
	}
	if chunks.Len() == 0 {
		t.Error("got no chunks, want some after three lists")
	}
}

// TestOnlyTheFirstTableOfAWatchHasColumns: the others have null instead.
func TestOnlyTheFirstTableOfAWatchHasColumns(t *testing.T) {
	s := pods(t)
	w := EventEncoder{Encoder: &Encoder{Served: s, Format: Format{Shape: ShapeTable}}}
	for i, want := range []string{`"columnDefinitions":[{`, `"columnDefinitions":null`, `"columnDefinitions":null`} {
		got, err := w.AppendEvent(nil, Modified, podRecord(t, s.Definition, "a", int64(i+1)))
		if err != nil || !bytes.Contains(got, []byte(want)) {
			t.Errorf("event %d: got %s, %v, want one with %s", i, got, err, want)
		}
	}
}

// TestAppendEventKeepsItsInput: what cannot be encoded leaves no half of an event.
func TestAppendEventKeepsItsInput(t *testing.T) {
	s := pods(t)
	broken := NewRecord(Record{Key: "/registry/pods/a"}, []byte("no pod"), nil, nil, nil, nil)
	for _, format := range []Format{{}, {Media: Protobuf}, {Shape: ShapeTable}, {Shape: ShapeMetadata}} {
		w := EventEncoder{Encoder: &Encoder{Served: s, Format: format}}
		if got, err := w.AppendEvent([]byte("before"), Added, broken); err == nil || string(got) != "before" {
			t.Errorf("%+v: got %q, %v, want what was there and an error", format, got, err)
		}
	}
}

// TestBookmark: a bookmark has a resourceVersion, and at the end of the initial events an
// annotation.
func TestBookmark(t *testing.T) {
	c := mustCatalog(t, resource.Group{Name: "example.com", Resources: []resource.Definition{widgetDefinition("v1")}})
	s, _ := c.Lookup("example.com", "v1", "widgets")
	s.Definition.Bookmark = func(obj resource.Object) {
		u := obj.(*unstructured.Unstructured)
		u.SetAPIVersion("example.com/v1")
		u.SetKind("Widget")
	}
	w := EventEncoder{Encoder: &Encoder{Served: s}}
	for end, want := range map[bool]string{
		false: `{"type":"BOOKMARK","object":{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"resourceVersion":"7"}}}` + "\n",
		true:  `{"type":"BOOKMARK","object":{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"annotations":{"k8s.io/initial-events-end":"true"},"resourceVersion":"7"}}}` + "\n",
	} {
		if got, err := w.AppendBookmark(nil, 7, end); err != nil || string(got) != want {
			t.Errorf("end of the initial events %v: got %s, %v, want %s", end, got, err, want)
		}
	}
}

// TestRender: YAML and indented JSON are made of the whole body, other JSON ends in a
// newline.
func TestRender(t *testing.T) {
	for _, c := range []struct {
		format Format
		want   string
		whole  bool
	}{
		{Format{}, "{\"a\":[1]}\n", false},
		{Format{Pretty: true}, "{\n  \"a\": [\n    1\n  ]\n}", true},
		{Format{Media: YAML}, "a:\n- 1\n", true},
		{Format{Media: Protobuf}, `{"a":[1]}`, false},
	} {
		got, err := c.format.Render([]byte(`{"a":[1]}`))
		if err != nil || string(got) != c.want || c.format.IsRendered() != c.whole {
			t.Errorf("%+v: got %q, %v, whole %v, want %q, whole %v", c.format, got, err, c.format.IsRendered(), c.want, c.whole)
		}
	}
}

// BenchmarkAppendEvent is an event whose encoding is kept: what each watcher costs after
// the first.
func BenchmarkAppendEvent(b *testing.B) {
	s := pods(b)
	for _, format := range []Format{{}, {Media: Protobuf}, {Shape: ShapeMetadata}} {
		b.Run(fmt.Sprintf("%v/shape=%d", format.Media, format.Shape), func(b *testing.B) {
			w, rec := EventEncoder{Encoder: &Encoder{Served: s, Format: format}}, podRecord(b, s.Definition, "a", 77)
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if buf, err = w.AppendEvent(buf[:0], Modified, rec); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(int64(len(buf)))
		})
	}
}

// BenchmarkAppendObject is a get of a record whose encoding is kept.
func BenchmarkAppendObject(b *testing.B) {
	s := pods(b)
	e, rec := &Encoder{Served: s}, podRecord(b, s.Definition, "a", 77)
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if buf, err = e.AppendObject(buf[:0], rec); err != nil {
			b.Fatal(err)
		}
	}
}

// TestMetadataOfProto: the metadata of an object are those in the JSON of all of it, though
// that is not made.
func TestMetadataOfProto(t *testing.T) {
	def := podDefinition()
	served := &resource.Served{Definition: &def, Version: def.HubVersion()}
	pod := testPod(t)
	pod.Annotations = map[string]string{"odd": "<&>\u2028\xff\x00\"", "large": strings.Repeat("x", 16<<10)}
	pod.Labels = map[string]string{"b": "1", "a": ""}
	stored, err := EncodeStored(&def, pod)
	if err != nil {
		t.Fatal(err)
	}
	record := func() *Record {
		return NewRecord(Record{Key: "k", Name: pod.Name, Revision: 123}, stored, nil, nil, &EncodingBudget{Limit: 1 << 20}, nil)
	}
	e := &Encoder{Served: served}
	body, err := e.recordJSON(record())
	if err != nil {
		t.Fatal(err)
	}
	want, ok := MetadataJSON(body)
	if !ok {
		t.Fatal("there are no metadata in the JSON")
	}
	rec := record()
	got, err := e.recordMetadata(rec)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %s and %v, want %s", got, err, want)
	}
	if rec.hasEncoding(e.id(encodingJSON)) {
		t.Error("the JSON of the whole object was made")
	}
}

// writtenRecord is the record of a pod that was just written.
func writtenRecord(tb testing.TB, s *resource.Served, revision int64) *Record {
	tb.Helper()
	pod := testPod(tb)
	stored, err := EncodeStored(s.Definition, pod)
	if err != nil {
		tb.Fatal(err)
	}
	rec := NewRecord(Record{Key: "/pods/a", Name: pod.Name}, stored, LabelPairs(pod.Labels), []string{"x"}, nil, nil)
	return rec.Committed(revision, stored)
}

// TestJSONOfWrittenRecord: the JSON that is made of the stored protobuf is that of the
// object, on its own and in lists; only what was asked for before is kept.
func TestJSONOfWrittenRecord(t *testing.T) {
	s := pods(t)
	e, rec := &Encoder{Served: s}, writtenRecord(t, s, 77)
	stored, err := rec.Stored()
	if err != nil {
		t.Fatal(err)
	}
	obj, err := DecodeStored(s.Definition, stored)
	if err != nil {
		t.Fatal(err)
	}
	obj.SetResourceVersion("77")
	body, err := JSONBody(s.Definition, s.Version, obj)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := e.appendJSONOfProto(nil, rec, stored); !ok {
		t.Fatal("the protobuf of a pod that was written is not used")
	}
	for i := range 3 {
		got, err := e.appendJSON([]byte("["), rec, true, true)
		if err != nil || string(got) != "["+string(body) {
			t.Errorf("item of list %d: got %s, %v, want [%s", i, got, err, body)
		}
		if kept, want := rec.hasEncoding(e.id(encodingJSON)), i > 0; kept != want {
			t.Errorf("after list %d: kept is %v, want %v", i, kept, want)
		}
	}
	rec = writtenRecord(t, s, 77)
	for i := range 3 {
		alone, err := e.AppendObject(nil, rec)
		if want := string(AppendWithKind(nil, s, body)); err != nil || string(alone) != want {
			t.Errorf("on its own, answer %d: got %s, %v, want %s", i, alone, err, want)
		}
		if kept, want := rec.hasEncoding(e.id(encodingJSON)), i > 0; kept != want {
			t.Errorf("after answer %d: kept is %v, want %v", i, kept, want)
		}
	}
}

// TestAnswersToWritersKeepNothing checks that an answer to a writer neither keeps an encoding nor
// counts as a reader that has asked before.
func TestAnswersToWritersKeepNothing(t *testing.T) {
	s := pods(t)
	rec := writtenRecord(t, s, 77)
	writer, reader := &Encoder{Served: s, ForWriter: true}, &Encoder{Served: s}
	for i, e := range []*Encoder{writer, writer, reader, reader} {
		if _, err := e.AppendObject(nil, rec); err != nil {
			t.Fatal(err)
		}
		if kept, want := rec.hasEncoding(e.id(encodingJSON)), i == 3; kept != want {
			t.Errorf("after answer %d: kept is %v, want %v", i, kept, want)
		}
	}
}

// TestPassingList: what a list encodes is kept for others when it was asked for before, unless
// the list is so long that nothing else would have room.
func TestPassingList(t *testing.T) {
	s := pods(t)
	e, rec := &Encoder{Served: s}, writtenRecord(t, s, 77)
	list := func(items int) { writeList(t, e, slices.Repeat([]*Record{rec}, items)) }
	for range 3 {
		list(passingList/rec.StoredSize() + 1)
	}
	if rec.hasEncoding(e.id(encodingJSON)) {
		t.Error("a long list keeps the encodings of its items")
	}
	list(1)
	if rec.hasEncoding(e.id(encodingJSON)) {
		t.Error("an encoding is kept that was not asked for before, but by long lists")
	}
	if list(1); !rec.hasEncoding(e.id(encodingJSON)) {
		t.Error("an encoding is not kept that was asked for before")
	}
}

// writeList writes a list of records, and throws it away.
func writeList(tb testing.TB, e *Encoder, records []*Record) {
	tb.Helper()
	writeListTo(tb, e, records, io.Discard)
}

// writeCompressed does the same with a list that is compressed.
func writeCompressed(tb testing.TB, e *Encoder, records []*Record) {
	tb.Helper()
	z := NewGzipWriter(io.Discard)
	writeListTo(tb, e, records, z)
	if err := z.Close(); err != nil {
		tb.Fatal(err)
	}
}

func writeListTo(tb testing.TB, e *Encoder, records []*Record, to io.Writer) {
	tb.Helper()
	_, compressed := to.(*GzipWriter)
	l, err := e.PrepareList(&Page{Records: records, Revision: 77}, compressed)
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Release()
	w := NewWriter(to)
	defer w.Free()
	if err := l.WriteTo(w); err != nil {
		tb.Fatal(err)
	}
}

// TestChunksAreNotKeptTwice: what is in a chunk is not kept with its records as well, unless
// the chunk changes again and again.
func TestChunksAreNotKeptTwice(t *testing.T) {
	s := pods(t)
	e := &Encoder{Served: s, Chunks: &ChunkCache{}}
	metadata := *e
	metadata.Format.Shape = ShapeMetadata
	records := make([]*Record, LongList)
	for i := range records {
		records[i] = writtenRecord(t, s, 77)
	}
	kept := func() (n int) {
		for _, rec := range records {
			if rec.hasEncoding(e.id(encodingJSON)) || rec.hasEncoding(e.id(encodingMetadata)) {
				n++
			}
		}
		return n
	}
	for name, list := range map[string]func(){
		"JSON":       func() { writeList(t, e, records) },
		"metadata":   func() { writeList(t, &metadata, records) },
		"compressed": func() { writeCompressed(t, e, records) },
	} {
		for range 3 {
			list()
			if e.Chunks.Len() == 0 {
				t.Fatalf("%s: the list is in no chunks", name)
			}
			e.Chunks.Clear()
		}
		if n := kept(); n != 0 {
			t.Errorf("%s: %d records of a list that does not change are encoded in chunks and with them", name, n)
		}
	}
	writeList(t, e, records)
	for range 3 {
		records[1] = writtenRecord(t, s, 78)
		writeList(t, e, records)
	}
	if n := kept(); n == 0 {
		t.Error("all records of a chunk are encoded again whenever one of them has changed")
	}
}

// TestWhatFindsNoRoomIsKept: a list whose chunks find no room again and again is not encoded each
// time.
func TestWhatFindsNoRoomIsKept(t *testing.T) {
	s := pods(t)
	e := &Encoder{Served: s, Chunks: &ChunkCache{held: maxChunkBytes}}
	records := make([]*Record, LongList)
	for i := range records {
		records[i] = writtenRecord(t, s, 77)
	}
	for range 4 {
		writeList(t, e, records)
	}
	for i, rec := range records {
		if !rec.hasEncoding(e.id(encodingJSON)) {
			t.Fatalf("record %d of a list that was written four times is encoded again by the next one", i)
		}
	}
}

// BenchmarkFirstJSON is the JSON of a record that nobody has asked for yet, in a list: of
// one that was written, whose protobuf is used, and of one that was read, which is decoded.
func BenchmarkFirstJSON(b *testing.B) {
	s := pods(b)
	defaulted := *s.Version
	defaulted.Default = func(resource.Object) {}
	definition := *s.Definition
	definition.Versions = []resource.Version{defaulted}
	read := &resource.Served{Definition: &definition, Version: &definition.Versions[0], Type: s.Type}
	for name, served := range map[string]*resource.Served{"written": s, "read": read} {
		b.Run(name, func(b *testing.B) {
			e, rec := &Encoder{Served: served}, writtenRecord(b, s, 77)
			rec.written = name == "written"
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				rec.encodings = &encodings{}
				var err error
				if buf, err = e.appendJSON(buf[:0], rec, true, true); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(int64(len(buf)))
		})
	}
}
