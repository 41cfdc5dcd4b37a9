package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
	"github.com/apikeel/kelson/storage/memory"
)

// openLimited opens a store on disk that keeps few stored bytes in memory.
func openLimited(t testing.TB, limit int64) *Store {
	t.Helper()
	b, err := engine.Open(engine.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), b, Options{ValueBytes: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); b.Close() })
	return s
}

// largePod is a pod of about 10 KB.
func largePod(i, version int) *corev1.Pod {
	p := newPod(fmt.Sprintf("p%03d", i), fmt.Sprint("n", version), "i", fmt.Sprint(i%2))
	p.Annotations = map[string]string{"a": strings.Repeat(fmt.Sprintf("%03d-%d.", i, version), 1700)}
	return p
}

func wantPod(t testing.TB, r *Resource, rec *Record, version int) {
	t.Helper()
	obj, err := r.Decode(rec)
	if err != nil {
		t.Fatalf("%s at %d: %v", rec.Key, rec.Revision, err)
	}
	var i int
	fmt.Sscanf(rec.Name, "p%d", &i)
	if got, want := obj.(*corev1.Pod).Annotations["a"], largePod(i, version).Annotations["a"]; got != want {
		t.Errorf("%s: got %.20q, want %.20q", rec.Key, got, want)
	}
}

// TestValuesOutOfMemory: a store whose objects take ten times the bytes that it may keep
// shows all of them, older states and deleted objects too, and counts what it keeps.
func TestValuesOutOfMemory(t *testing.T) {
	const pods, limit = 200, 200 << 10
	ctx := t.Context()
	s := openLimited(t, limit)
	r := s.Resource(podDefinition())
	within := func(when string) {
		t.Helper()
		if err := s.current(ctx); err != nil {
			t.Fatal(err)
		}
		if held, _, _ := s.ValueBytes(); held < 0 || held > limit+limit/4 {
			t.Errorf("%s: got %d bytes in memory, want at most %d", when, held, limit)
		}
	}
	for i := range pods {
		mustCreate(t, r, largePod(i, 0))
	}
	within("after creates")
	before, err := r.Snapshot(ctx, Read{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := r.Watch(ctx, before.Revision, func(rec *Record) bool { v, _ := rec.Labels().Lookup("i"); return v == "1" })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for i := range pods {
		key := r.Key("default", fmt.Sprintf("p%03d", i))
		if i%4 == 3 {
			if _, err := r.Delete(ctx, key, func(*Record) error { return nil }); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if _, err := r.Update(ctx, key, func(_ *Record, obj resource.Object) (resource.Object, time.Duration, error) {
			return largePod(i, 1), 0, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	within("after updates")
	for range 2 {
		before.Range(r.prefix, "", func(rec *Record) bool { wantPod(t, r, rec, 0); return true })
		now, err := r.Snapshot(ctx, Read{})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		now.Range(r.prefix, "", func(rec *Record) bool { n++; wantPod(t, r, rec, 1); return true })
		if n != pods*3/4 {
			t.Errorf("got %d pods, want %d", n, pods*3/4)
		}
		within("after reads")
	}
	exact, err := r.Snapshot(ctx, Read{Exact: before.Revision})
	if err != nil {
		t.Fatal(err)
	}
	exact.Range(r.prefix, "", func(rec *Record) bool { wantPod(t, r, rec, 0); return true })
	seen := 0
	for seen < pods/2 {
		events, more, err := w.Poll(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range events {
			version := 1
			if ev.Type == Deleted {
				version = 0
			}
			wantPod(t, r, ev.Record, version)
			seen++
		}
		if seen < pods/2 {
			<-more
		}
	}
	if _, _, reads := s.ValueBytes(); reads == 0 {
		t.Error("got no reads of values, want some")
	}
	// What is dropped, by a reset or from the log, counts no more.
	s.trim()
	s.trim()
	r.reset()
	if held, _, _ := s.ValueBytes(); held != 0 {
		t.Errorf("got %d bytes in memory after the caches were dropped, want 0", held)
	}
	if _, err := r.Snapshot(ctx, Read{}); err != nil {
		t.Fatal(err)
	}
	within("loaded again")
}

// TestValuesUnderWriters: readers of any state see the bytes that belong to it while
// others write, and bytes go in and out of memory.
func TestValuesUnderWriters(t *testing.T) {
	const pods, rounds, readers = 20, 15, 3
	s := openLimited(t, 40<<10)
	r := s.Resource(podDefinition())
	for i := range pods {
		mustCreate(t, r, largePod(i, 0))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			for ctx.Err() == nil {
				snap, err := r.Snapshot(t.Context(), Read{})
				if err != nil {
					t.Error(err)
					return
				}
				snap.Range(r.prefix, "", func(rec *Record) bool {
					stored, err := rec.Stored()
					if err != nil {
						t.Errorf("%s at %d: %v", rec.Key, rec.Revision, err)
						return false
					}
					node := r.Fields(rec).Get("spec.nodeName")
					if want := fmt.Sprintf("%s-%s.", rec.Name[1:], node[1:]); !bytes.Contains(stored, []byte(want)) {
						t.Errorf("%s at %d: got other bytes, want %q in them", rec.Key, rec.Revision, want)
					}
					return true
				})
			}
		})
	}
	for round := 1; round <= rounds; round++ {
		for i := range pods {
			if _, err := r.Update(t.Context(), r.Key("default", fmt.Sprintf("p%03d", i)), func(_ *Record, obj resource.Object) (resource.Object, time.Duration, error) {
				return largePod(i, round%10), 0, nil
			}); err != nil {
				t.Error(err)
			}
		}
	}
	cancel()
	wg.Wait()
	if held, limit, _ := s.ValueBytes(); held < 0 || held > 4*limit {
		t.Errorf("got %d bytes in memory, want about %d", held, limit)
	}
}

// heldScan is a backend whose scans wait.
type heldScan struct {
	*engine.Engine
	begun, resume chan struct{}
	once          sync.Once
}

func (b *heldScan) Scan(ctx context.Context, prefix string, opts storage.ListOptions, each func(*storage.KeyValue) error) (storage.Page, error) {
	b.once.Do(func() { close(b.begun) })
	select {
	case <-b.resume:
		return b.Engine.Scan(ctx, prefix, opts, each)
	case <-ctx.Done():
		return storage.Page{}, ctx.Err()
	}
}

// TestSizeOnSharedBackend: the size of objects on another machine is asked for once one was
// large.
func TestSizeOnSharedBackend(t *testing.T) {
	b := memory.New(memory.Options{})
	defer b.Close()
	open := func() *Resource {
		s, err := Open(t.Context(), b, Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		r := s.Resource(podDefinition())
		r.counted.Store(true) // writes do not load it
		return r
	}
	large := newPod("large", "n")
	large.Annotations = map[string]string{"a": strings.Repeat("x", smallObject)}
	r := open()
	mustCreate(t, r, newPod("small", "n"))
	mustCreate(t, r, large)

	r = open()
	for _, c := range []struct {
		read  string
		known bool
	}{{"small", false}, {"large", true}} {
		if _, err := r.newest(t.Context(), r.Key("default", c.read)); err != nil {
			t.Fatal(err)
		}
		if size := r.SizeOf(t.Context(), r.Key("default", "large")); (size >= smallObject) != c.known {
			t.Errorf("after %s was read: size %d, want it known: %t", c.read, size, c.known)
		}
	}
	if r.loaded.Load() {
		t.Error("the cache is loaded to know the size of an object")
	}
}

// TestGetBesideLoad: objects can be read and written one by one while a cache is loaded,
// which takes long, and a store can be closed meanwhile.
func TestGetBesideLoad(t *testing.T) {
	disk, err := engine.Open(engine.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	open := func() (*heldScan, *Store, *Resource) {
		b := &heldScan{Engine: disk, begun: make(chan struct{}), resume: make(chan struct{})}
		s, err := Open(t.Context(), b, Options{ValueBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		r := s.Resource(podDefinition())
		r.counted.Store(true) // writes do not load it
		return b, s, r
	}
	b, s, r := open()
	close(b.resume)
	for i := range 10 {
		mustCreate(t, r, largePod(i, 1))
	}
	s.Close()

	b, s, r = open()
	get := func(name string, version int) {
		t.Helper()
		rec, err := r.Get(t.Context(), r.Key("default", name), Read{})
		if err != nil {
			t.Fatal(err)
		}
		wantPod(t, r, rec, version)
	}
	for range 2 * fewGets { // before writes, which need not load it
		if size := r.SizeOf(t.Context(), r.Key("default", "p003")); size == 0 {
			t.Fatal("the size of an object that is not in the cache is not known")
		}
	}
	for range fewGets {
		get("p003", 1)
	}
	select {
	case <-b.begun:
		t.Error("the cache is loaded for a few objects that are read one by one")
	default:
	}
	get("p003", 1)
	<-b.begun
	if _, err := r.Get(t.Context(), r.Key("default", "none"), Read{}); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("got error %v for an object that is not there, want %v", err, storage.ErrNotFound)
	}
	update(t, r, "p003", func(p *corev1.Pod) { p.Annotations = largePod(3, 2).Annotations })
	get("p003", 2)
	if r.loaded.Load() {
		t.Error("the cache is loaded, though the backend has not been read")
	}
	close(b.resume)
	snapshot, err := r.Snapshot(t.Context(), Read{})
	if err != nil {
		t.Fatal(err)
	}
	if snapshot.Len() != 10 || !r.loaded.Load() || r.loadsLong.Load() {
		t.Errorf("got %d objects, loaded %v, in a long load %v, want 10, true, false", snapshot.Len(), r.loaded.Load(), r.loadsLong.Load())
	}
	get("p003", 2)
	s.Close()

	b, s, r = open()
	for range fewGets + 1 {
		get("p003", 2)
	}
	<-b.begun
	s.Close() // though the load has not ended
}

// TestSnapshotBelow: the objects of a namespace are read without those of others as long as the
// cache is not loaded, unless they are many; what was read of a part is not taken for the whole.
func TestSnapshotBelow(t *testing.T) {
	disk, err := engine.Open(engine.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	open := func() (*Store, *Resource) {
		s, err := Open(t.Context(), disk, Options{ValueBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s, s.Resource(podDefinition())
	}
	s, r := open()
	pod := func(namespace string, i int) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("p%03d", i)}}
	}
	for i := range 3 {
		mustCreate(t, r, pod("few", i))
	}
	for i := range fewBelow + 1 {
		mustCreate(t, r, pod("many", i))
	}
	s.Close()

	_, r = open()
	below := func(namespace string, read Read, want int) *Snapshot {
		t.Helper()
		got, err := r.SnapshotBelow(t.Context(), r.Key(namespace, ""), read)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		got.Range(r.Key(namespace, ""), "", func(*Record) bool { n++; return true })
		if n != want {
			t.Errorf("%d objects in %q, want %d", n, namespace, want)
		}
		return got
	}
	part := below("few", Read{}, 3)
	below("none", Read{Any: true}, 0)
	if r.Pin(part); r.loaded.Load() || r.pinned(part.Revision) != nil {
		t.Errorf("the cache is loaded: %v, or a part of the state is kept for all", r.loaded.Load())
	}
	below("many", Read{Exact: part.Revision}, fewBelow+1)

	_, r = open()
	part = below("few", Read{}, 3)
	if below("many", Read{}, fewBelow+1); !r.loaded.Load() {
		t.Error("many objects are read without the cache")
	}
	mustCreate(t, r, pod("few", 3))
	below("few", Read{}, 4)
	below("few", Read{Exact: part.Revision}, 3)
}

// countedScan is a backend that tells how often it was asked to count.
type countedScan struct {
	*engine.Engine
	n atomic.Int64
}

func (b *countedScan) Scan(ctx context.Context, prefix string, opts storage.ListOptions, each func(*storage.KeyValue) error) (storage.Page, error) {
	if opts.Count {
		b.n.Add(1)
	}
	return b.Engine.Scan(ctx, prefix, opts, each)
}

// TestSnapshotPage: a page of a list is read without the rest as long as the cache is not loaded, of the
// state of the first one, and tells how many objects follow it.
func TestSnapshotPage(t *testing.T) {
	disk, err := engine.Open(engine.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	counting := &countedScan{Engine: disk}
	open := func() (*Store, *Resource) {
		s, err := Open(t.Context(), counting, Options{ValueBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s, s.Resource(podDefinition())
	}
	s, r := open()
	const pods = 10
	for i := range pods {
		mustCreate(t, r, largePod(i, 1))
	}
	s.Close()

	_, r = open()
	page := func(start string, few int, read Read, first, n, following int) *Snapshot {
		t.Helper()
		got, err := r.SnapshotPage(t.Context(), r.prefix, start, few, read)
		if err != nil {
			t.Fatal(err)
		}
		i := first
		got.Range(r.prefix, start, func(rec *Record) bool {
			if i < first+n {
				wantPod(t, r, rec, 1)
			}
			if want := fmt.Sprintf("p%03d", i); rec.Name != want {
				t.Errorf("%s, want %s", rec.Name, want)
			}
			i++
			return i < first+n
		})
		rest, some := got.Following()
		if rest += got.Count(r.prefix, start) - (i - first); i != first+n || rest != following || some && rest == 0 {
			t.Errorf("from %q: %d objects, and %d, %t follow, want %d and %d", start, i-first, rest, some, n, following)
		}
		return got
	}
	next := func(i int) string { return storage.NextKey(r.Key("default", fmt.Sprintf("p%03d", i))) }
	one := page("", 4, Read{}, 0, 4, 6)
	if r.Pin(one); r.loaded.Load() || r.pinned(one.Revision) != nil {
		t.Errorf("the cache is loaded: %v, or a page is kept for all", r.loaded.Load())
	}
	then := Read{Exact: one.Revision}
	gone, err := r.newest(t.Context(), r.Key("default", "p005"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.store.backend.Delete(t.Context(), gone.Key, gone.Revision); err != nil {
		t.Fatal(err)
	}
	page(next(3), 4, then, 4, 4, 2)
	if n := counting.n.Load(); n != 1 {
		t.Errorf("what is behind two pages was counted %d times, want once", n)
	}
	page(next(7), 4, then, 8, 2, 0)
	page(next(9), 4, then, 10, 0, 0)
	page(next(7), 2, then, 8, 2, 0)
	if _, err := r.SnapshotPage(t.Context(), r.prefix, "", 4, Read{Exact: one.Revision + 100}); !errors.Is(err, storage.ErrFutureRevision) {
		t.Errorf("a revision that is to come: %v", err)
	}
	if r.loaded.Load() {
		t.Error("the cache is loaded")
	}
	for range fewGets {
		page(next(3), 4, then, 4, 4, 2)
	}
	if !r.loaded.Load() {
		t.Error("the cache is not loaded after many pages")
	}
	page(next(3), 4, then, 4, 4, 2) // of a state that the cache does not have
	page(next(7), 4, Read{}, 8, 2, 0)
	whole := page("", fewBelow+1, then, 0, pods, 0)
	if again, err := r.Snapshot(t.Context(), then); again != whole {
		t.Errorf("the whole state is not kept: %v", err)
	}
	page(next(3), 4, then, 4, 4, 2)
}

// TestLargePagesAreLoaded: a page that takes much memory is not read without the cache, which is bounded.
func TestLargePagesAreLoaded(t *testing.T) {
	disk, err := engine.Open(engine.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	for loaded := range 2 {
		s, err := Open(t.Context(), disk, Options{ValueBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		r := s.Resource(podDefinition())
		if loaded == 0 {
			for i := range 3 {
				pod := largePod(i, 1)
				pod.Annotations["b"] = strings.Repeat("b", fewBytes/2)
				mustCreate(t, r, pod)
			}
			s.Close()
			continue
		}
		for few := 1; few <= 3; few++ {
			want := few == 3
			got, err := r.SnapshotPage(t.Context(), r.prefix, "", few, Read{})
			if err != nil || got.Len() < few || r.loaded.Load() != want {
				t.Errorf("a page of %d: %d objects, %v; the cache is loaded: %v, want %v", few, got.Len(), err, r.loaded.Load(), want)
			}
		}
		if _, err := r.DirectPage(t.Context(), r.prefix, "", fewBelow+1, 0); !errors.Is(err, errMany) {
			t.Errorf("a long page: %v", err)
		}
	}
}
