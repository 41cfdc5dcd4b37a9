package rest

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/wire"
)

// TestListsFromChunks changes objects and lists them again and again, in every format: with chunks
// the answers must be what they are without.
func TestListsFromChunks(t *testing.T) {
	const objects, size, steps = 2 * wire.LongList, 1000, 25
	with, _ := serve(t, nil)
	random := randomtest.New(t)
	object := func(name string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"data":{"a":%q}}`, name, strings.Repeat(string(rune('a'+random.IntN(26))), size+random.IntN(size)))
	}
	for i := range objects {
		name := fmt.Sprintf("c%04d", i)
		if a := do(t, with, "POST", fmt.Sprintf("/api/v1/namespaces/ns%d/configmaps", i%2), object(name)); a.code != http.StatusCreated {
			t.Fatal(a.body)
		}
	}
	const metadata = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	accepts := []string{wire.TypeJSON, wire.TypeProtobuf, wire.TypeJSON + metadata, wire.TypeProtobuf + metadata, wire.TypeJSON + metadata + "beta1"}
	paths := []string{"/api/v1/configmaps", "/api/v1/namespaces/ns0/configmaps", "/api/v1/configmaps?limit=700", "/api/v1/configmaps?labelSelector=a!%3Db"}
	used := 0
	for range steps {
		for range 3 {
			name := fmt.Sprintf("c%04d", random.IntN(objects+10))
			path := "/api/v1/namespaces/ns" + fmt.Sprint(random.IntN(2)) + "/configmaps"
			switch random.IntN(3) {
			case 0:
				do(t, with, "POST", path, object(name))
			case 1:
				do(t, with, "PUT", path+"/"+name, object(name))
			default:
				do(t, with, "DELETE", path+"/"+name, "")
			}
		}
		accept, path := accepts[random.IntN(len(accepts))], paths[random.IntN(len(paths))]
		without := &Handler{Catalog: with.Catalog, Store: with.Store}
		want := do(t, without, "GET", path, "", "Accept", accept).body
		for range 3 {
			encoding := []string{"identity", "gzip"}[random.IntN(2)]
			a := do(t, with, "GET", path, "", "Accept", accept, "Accept-Encoding", encoding)
			got := a.body
			if a.header.Get("Content-Encoding") == "gzip" {
				got = unzipped(t, got)
			}
			if got != want {
				t.Fatalf("%s %s, %s: %d bytes, not the %d that there should be", path, accept, encoding, len(got), len(want))
			}
		}
		used += with.chunks.Len()
	}
	if used == 0 {
		t.Error("no chunks were kept")
	}
}

func unzipped(t *testing.T, text string) string {
	t.Helper()
	z, err := gzip.NewReader(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// dropper is a client that takes so long that all chunks are dropped meanwhile.
type dropper struct {
	*httptest.ResponseRecorder
	chunks *wire.ChunkCache
}

func (d dropper) Write(p []byte) (int, error) {
	d.chunks.Clear()
	return d.ResponseRecorder.Write(p)
}

// TestChunksAreUsedByTheirMaker: a chunk that was compressed for a list is not dropped
// before that list is written, and goes then.
func TestChunksAreUsedByTheirMaker(t *testing.T) {
	h := serveConfigMaps(t, 4*wire.LongList, 1000, 0)
	for _, accept := range []string{wire.TypeJSON, wire.TypeProtobuf} {
		plain := httptest.NewRecorder()
		if !list(h, plain, accept, time.Now()) {
			t.Fatal("there is no list")
		}
		r := httptest.NewRequest(http.MethodGet, "/api/v1/configmaps", nil)
		r.Header.Set("Accept", accept)
		r.Header.Set("Accept-Encoding", "gzip")
		info, err := request.Parse(r)
		if err != nil {
			t.Fatal(err)
		}
		w := dropper{httptest.NewRecorder(), &h.chunks}
		h.Route(w, r.WithContext(request.With(r.Context(), &request.Request{Info: info, Received: time.Now()})))
		if encoding := w.Header().Get("Content-Encoding"); encoding != "gzip" {
			t.Fatalf("%s: content encoding %q, want gzip", accept, encoding)
		}
		if got := unzipped(t, w.Body.String()); got != plain.Body.String() {
			t.Errorf("%s: got %d bytes, want the %d that a list has that is not compressed", accept, len(got), plain.Body.Len())
		}
	}
}

// BenchmarkList is a list of 2,000 objects without a network: the first time, and
// when it comes again.
func BenchmarkList(b *testing.B) {
	h := serveConfigMaps(b, 2000, 4000, 0)
	for _, accept := range []string{wire.TypeJSON, wire.TypeProtobuf, wire.TypeProtobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"} {
		for _, again := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/again=%v", strings.ReplaceAll(accept, "/", "."), again), func(b *testing.B) {
				for b.Loop() {
					if !again {
						h.chunks.Clear()
					}
					w := &discard{header: http.Header{}}
					list(h, w, accept, time.Now())
					b.SetBytes(int64(w.bytes))
				}
			})
		}
	}
}

// discard is a writer of answers that nobody reads.
type discard struct {
	header http.Header
	bytes  int
}

func (d *discard) Header() http.Header { return d.header }

func (d *discard) WriteHeader(int) {}

func (d *discard) Write(p []byte) (int, error) {
	d.bytes += len(p)
	return len(p), nil
}
