package rest

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
)

// TestRuns changes objects and lists them again and again, in every form: with runs
// the answers must be what they are without.
func TestRuns(t *testing.T) {
	const objects, size, steps = 2 * manyRecords, 1000, 25
	with, _ := serve(t, nil)
	object := func(name string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"data":{"a":%q}}`, name, strings.Repeat(string(rune('a'+rand.IntN(26))), size+rand.IntN(size)))
	}
	for i := range objects {
		name := fmt.Sprintf("c%04d", i)
		if a := do(t, with, "POST", fmt.Sprintf("/api/v1/namespaces/ns%d/configmaps", i%2), object(name)); a.code != http.StatusCreated {
			t.Fatal(a.body)
		}
	}
	const metadata = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	accepts := []string{typeJSON, typeProto, typeJSON + metadata, typeProto + metadata, typeJSON + metadata + "beta1"}
	paths := []string{"/api/v1/configmaps", "/api/v1/namespaces/ns0/configmaps", "/api/v1/configmaps?limit=700", "/api/v1/configmaps?labelSelector=a!%3Db"}
	used := 0
	for range steps {
		for range 3 {
			name := fmt.Sprintf("c%04d", rand.IntN(objects+10))
			path := "/api/v1/namespaces/ns" + fmt.Sprint(rand.IntN(2)) + "/configmaps"
			switch rand.IntN(3) {
			case 0:
				do(t, with, "POST", path, object(name))
			case 1:
				do(t, with, "PUT", path+"/"+name, object(name))
			default:
				do(t, with, "DELETE", path+"/"+name, "")
			}
		}
		accept, path := accepts[rand.IntN(len(accepts))], paths[rand.IntN(len(paths))]
		without := &Handler{Catalog: with.Catalog, Store: with.Store}
		want := do(t, without, "GET", path, "", "Accept", accept).body
		for range 3 {
			encoding := []string{"identity", "gzip"}[rand.IntN(2)]
			a := do(t, with, "GET", path, "", "Accept", accept, "Accept-Encoding", encoding)
			got := a.body
			if a.header.Get("Content-Encoding") == "gzip" {
				got = unzipped(t, got)
			}
			if got != want {
				t.Fatalf("%s %s, %s: %d bytes, not the %d that there should be", path, accept, encoding, len(got), len(want))
			}
		}
		for _, r := range with.runs.kept {
			if r.hasText() {
				used++
			}
		}
	}
	if used == 0 {
		t.Error("no runs were kept")
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

func someRecords(n, size int) []*store.Record {
	records := make([]*store.Record, n)
	for i := range records {
		records[i] = &store.Record{Key: fmt.Sprintf("/registry/things/%d", rand.Uint64()), Stored: make([]byte, size)}
	}
	return records
}

// TestRunBounds: runs take what they may, those that are used stay, and the others go.
func TestRunBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rs runs
		form := runForm{id: 1}
		// list lists and returns how many records were in runs.
		list := func(records []*store.Record) (inRuns int) {
			spans := rs.cut(records, form)
			for _, sp := range spans {
				some := records[sp.from:sp.to]
				if sp.run != nil {
					inRuns += len(some)
				} else if sp.keep {
					if d := rs.begin(some, form); d != nil {
						for _, rec := range some {
							d.add(rec.Stored)
						}
						d.end(true)
					}
				}
			}
			rs.release(spans)
			rs.mu.Lock()
			defer rs.mu.Unlock()
			if rs.held+len(rs.free)*blockSize > maxRunBytes || len(rs.kept) > maxRuns {
				t.Fatalf("%d bytes in %d runs, and %d blocks", rs.held, len(rs.kept), len(rs.free))
			}
			return inRuns
		}
		var lists [][]*store.Record
		for range 5 {
			lists = append(lists, someRecords(1000, maxRunBytes/2600))
		}
		for _, records := range lists[:2] {
			for i, want := range []int{0, len(records), len(records)} {
				if got := list(records); got != want {
					t.Errorf("list %d: %d records in runs, not %d", i, got, want)
				}
			}
		}
		// A change makes one run anew, or two if it is where one ends.
		changed := append(append(someRecords(0, 0), lists[0][:500]...), lists[0][501:]...)
		if got := list(changed); got < len(changed)-3*maxRun/len(changed[0].Stored) || got == len(changed) {
			t.Errorf("%d of %d records in runs after a change", got, len(changed))
		}
		// Those in use stay, the others make room.
		for range 3 {
			list(lists[2])
		}
		if got := list(lists[1]); got < 900 {
			t.Errorf("%d records in runs of a list that is in use", got)
		}
		time.Sleep(2 * busyRun)
		for range 4 {
			list(lists[3])
		}
		if got := list(lists[3]); got != len(lists[3]) {
			t.Errorf("%d records in runs of the list that is in use now", got)
		}
		// What is too large leaves the others alone.
		for range 3 {
			if got := list(someRecords(4000, maxRunBytes/3000)); got != 0 {
				t.Errorf("%d records in runs of a list that is too large", got)
			}
		}
		time.Sleep(3 * idleRun)
		synctest.Wait()
		rs.mu.Lock()
		defer rs.mu.Unlock()
		if len(rs.kept) > 0 || rs.held != 0 || rs.free != nil || rs.timer != nil {
			t.Errorf("%d runs are kept that nobody uses, of %d bytes", len(rs.kept), rs.held)
		}
	})
}

// TestRunsInUse: what a list is written from stays what it is, whatever is dropped
// and made meanwhile.
func TestRunsInUse(t *testing.T) {
	var rs runs
	all := someRecords(3000, maxRunBytes/4000)
	for _, rec := range all {
		for i := range rec.Stored {
			rec.Stored[i] = byte(rand.Uint32())
		}
	}
	text := func(records []*store.Record) (b []byte) {
		for _, rec := range records {
			b = append(b, rec.Stored...)
		}
		return b
	}
	var used, made atomic.Int64
	var lists sync.WaitGroup
	for range 8 {
		lists.Go(func() {
			for range 10 {
				from := rand.IntN(len(all) / 2)
				records, form := all[from:from+len(all)/2], runForm{id: wire.EncodingID(rand.IntN(3))}
				spans := rs.cut(records, form)
				for _, sp := range spans {
					some := records[sp.from:sp.to]
					if sp.run != nil {
						used.Add(1)
						if !bytes.Equal(bytes.Join(sp.run.blocks, nil), text(some)) {
							t.Error("a run is not what it was made of")
						}
					} else if d := rs.begin(some, form); d != nil {
						made.Add(1)
						for _, rec := range some {
							d.add(rec.Stored)
						}
						d.end(rand.IntN(4) > 0)
					}
					if rand.IntN(20) == 0 {
						rs.mu.Lock()
						rs.dropUnused(time.Now().Add(-time.Duration(rand.IntN(10)) * time.Millisecond))
						rs.mu.Unlock()
					}
				}
				rs.release(spans)
			}
		})
	}
	lists.Wait()
	if used.Load() == 0 || made.Load() == 0 {
		t.Errorf("%d runs were used and %d made", used.Load(), made.Load())
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.dropUnused(time.Now())
	if blocks := len(rs.free) * blockSize; rs.held != 0 || blocks == 0 || blocks > maxRunBytes {
		t.Errorf("%d bytes are held by nobody, %d are free", rs.held, blocks)
	}
}

// dropper is a client that takes so long that all runs are dropped meanwhile.
type dropper struct {
	*httptest.ResponseRecorder
	rs *runs
}

func (d dropper) Write(p []byte) (int, error) {
	d.rs.mu.Lock()
	d.rs.dropUnused(time.Now().Add(time.Hour))
	d.rs.mu.Unlock()
	return d.ResponseRecorder.Write(p)
}

// TestRunsAreUsedByTheirMaker: a run that was compressed for a list is not dropped
// before that list is written, and goes then.
func TestRunsAreUsedByTheirMaker(t *testing.T) {
	h := serveConfigMaps(t, 4*manyRecords, 1000, 0)
	for _, accept := range []string{typeJSON, typeProto} {
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
		w := dropper{httptest.NewRecorder(), &h.runs}
		h.Route(w, r.WithContext(request.With(r.Context(), &request.Request{Info: info, Received: time.Now()})))
		if encoding := w.Header().Get("Content-Encoding"); encoding != "gzip" {
			t.Fatalf("%s: content encoding %q, want gzip", accept, encoding)
		}
		if got := unzipped(t, w.Body.String()); got != plain.Body.String() {
			t.Errorf("%s: got %d bytes, want the %d that a list has that is not compressed", accept, len(got), plain.Body.Len())
		}
	}
	h.runs.mu.Lock()
	defer h.runs.mu.Unlock()
	h.runs.dropUnused(time.Now().Add(time.Hour))
	if h.runs.held != 0 {
		t.Errorf("%d bytes are held by nobody, want 0", h.runs.held)
	}
}

func TestZipper(t *testing.T) {
	for range 100 {
		var whole, body strings.Builder
		z := newZipper(&body)
		for range rand.IntN(5) {
			piece := []byte(strings.Repeat(fmt.Sprint(rand.Uint64()), rand.IntN(1000)))
			piece = piece[:rand.IntN(len(piece)+1)]
			whole.Write(piece)
			if n, err := z.Write(piece); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		if unzipped(t, body.String()) != whole.String() {
			t.Fatal("it is not what was written")
		}
	}
}

// BenchmarkList is a list of 2,000 objects without a network: the first time, and
// when it comes again.
func BenchmarkList(b *testing.B) {
	h := serveConfigMaps(b, 2000, 4000, 0)
	for _, accept := range []string{typeJSON, typeProto, typeProto + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"} {
		for _, again := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/again=%v", strings.ReplaceAll(accept, "/", "."), again), func(b *testing.B) {
				for b.Loop() {
					if !again {
						h.runs.dropUnused(time.Now().Add(time.Hour))
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
