package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/wire"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func podDefinition() *resource.Definition {
	return &resource.Definition{
		Resource: "pods", Kind: "Pod", Namespaced: true, StorageKey: "pods", Hub: "v1",
		Versions: []resource.Version{{Name: "v1", New: func() resource.Object { return &corev1.Pod{} }}},
		Fields:   []resource.Field{resource.FieldFunc("spec.nodeName", func(p *corev1.Pod) string { return p.Spec.NodeName })},
	}
}

func openStore(t testing.TB) (*Store, storage.Backend) {
	t.Helper()
	b := memory.New(memory.Options{})
	s, err := Open(context.Background(), b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); b.Close() })
	return s, b
}

func newPod(name string, node string, kv ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: node}}
	for i := 0; i < len(kv); i += 2 {
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[kv[i]] = kv[i+1]
	}
	return p
}

func mustCreate(t testing.TB, r *Resource, p *corev1.Pod) *Record {
	t.Helper()
	rec, err := r.Create(context.Background(), r.Key(p.Namespace, p.Name), p, 0)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func update(t testing.TB, r *Resource, name string, change func(*corev1.Pod)) *Record {
	t.Helper()
	rec, err := r.Update(context.Background(), r.Key("default", name), func(_ *Record, obj resource.Object) (resource.Object, time.Duration, error) {
		change(obj.(*corev1.Pod))
		return obj, 0, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func names(s *Snapshot, prefix string) (names []string) {
	s.Range(prefix, "", func(r *Record) bool { names = append(names, r.Name+"@"+strconv.FormatInt(r.Revision, 10)); return true })
	return names
}

func TestReadYourWrites(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	ctx := t.Context()
	for i := range 50 {
		name := fmt.Sprint("p", i)
		rec := mustCreate(t, r, newPod(name, "n1"))
		got, err := r.Get(ctx, rec.Key, Read{})
		if err != nil || got.Revision != rec.Revision {
			t.Fatalf("get after create: %v, %v", got, err)
		}
		snap, err := r.Snapshot(ctx, Read{})
		if err != nil || snap.Len() != i+1 || snap.Revision < rec.Revision {
			t.Fatalf("list after create %d: %d at %d, %v", i, snap.Len(), snap.Revision, err)
		}
	}
}

func TestSnapshots(t *testing.T) {
	s, b := openStore(t)
	r := s.Resource(podDefinition())
	ctx := t.Context()
	a := mustCreate(t, r, newPod("a", "n1"))
	first, err := r.Snapshot(ctx, Read{})
	if err != nil {
		t.Fatal(err)
	}
	update(t, r, "a", func(p *corev1.Pod) { p.Spec.NodeName = "n2" })
	mustCreate(t, r, newPod("b", "n1"))
	second, err := r.Snapshot(ctx, Read{})
	if err != nil {
		t.Fatal(err)
	}
	if first.Len() != 1 || second.Len() != 2 {
		t.Errorf("snapshots have %v and %v", names(first, r.prefix), names(second, r.prefix))
	}
	// Exactly, from the history of the backend.
	exact, err := r.Snapshot(ctx, Read{Exact: a.Revision})
	if err != nil || exact.Len() != 1 || exact.Revision != a.Revision {
		t.Fatalf("exact: %v, %v", exact, err)
	}
	if rec, ok := exact.Get(a.Key); !ok || rec.Revision != a.Revision || r.Fields(rec).Get("spec.nodeName") != "n1" {
		t.Errorf("exact has %+v", rec)
	}
	if _, err := r.Snapshot(ctx, Read{Exact: second.Revision + 100}); !errors.Is(err, storage.ErrFutureRevision) {
		t.Errorf("future: %v", err)
	}
	// Pinned, it outlives the history.
	r.Pin(first)
	if err := b.Compact(ctx, second.Revision); err != nil {
		t.Fatal(err)
	}
	if s, err := r.Snapshot(ctx, Read{Exact: first.Revision}); err != nil || s.Len() != 1 {
		t.Errorf("pinned: %v", err)
	}
	if _, err := r.Snapshot(ctx, Read{Exact: second.Revision - 1}); !errors.Is(err, storage.ErrCompacted) {
		t.Errorf("compacted: %v", err)
	}
	if s, err := r.Snapshot(ctx, Read{Exact: second.Revision}); err != nil || s.Len() != 2 {
		t.Errorf("current, exactly: %v", err)
	}
}

// collect reads events until there are n.
func collect(t testing.TB, w *Watcher, n int) (got []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for len(got) < n {
		events, more, err := w.Poll(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range events {
			got = append(got, fmt.Sprintf("%s %s@%d", [...]string{"", "ADDED", "MODIFIED", "DELETED"}[ev.Type], ev.Record.Name, ev.Record.Revision))
		}
		if len(got) < n {
			select {
			case <-more:
			case <-ctx.Done():
				t.Fatalf("only %v", got)
			}
		}
	}
	return got
}

// TestCount: the number of records that Range would yield is known without it.
func TestCount(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	for _, namespace := range []string{"a", "b", "b-", "c"} {
		for i := range 200 {
			mustCreate(t, r, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("p%03d", i)}})
		}
	}
	snap, err := r.Snapshot(t.Context(), Read{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		namespace, start string
		want             int
	}{
		{"", "", 800}, {"a", "", 200}, {"b", "", 200}, {"bb", "", 0}, {"c", "", 200}, {"d", "", 0},
		{"", r.Key("b", "p100"), 300}, {"b", r.Key("b", "p100"), 100}, {"b", storage.NextKey(r.Key("b", "p100")), 99},
		{"b", r.Key("a", "p100"), 200}, {"b", r.Key("c", ""), 0}, {"c", r.Key("c", "p199"), 1}, {"c", r.Key("c", "p200"), 0},
	} {
		prefix, n := r.Key(c.namespace, ""), 0
		snap.Range(prefix, c.start, func(rec *Record) bool {
			if !strings.HasPrefix(rec.Key, prefix) || rec.Key < c.start {
				t.Errorf("Range(%q, %q) yields %q", prefix, c.start, rec.Key)
			}
			n++
			return true
		})
		if count := snap.Count(prefix, c.start); count != c.want || n != c.want {
			t.Errorf("Count(%q, %q) is %d, and Range yields %d records, want %d", prefix, c.start, count, n, c.want)
		}
	}
}

func TestWatchSelector(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	sel := labels.SelectorFromSet(labels.Set{"app": "web"})
	match := func(rec *Record) bool { return sel.Matches(rec.Labels()) }
	web := mustCreate(t, r, newPod("web", "n1", "app", "web"))
	snap, err := r.Snapshot(t.Context(), Read{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := r.WatchFrom(t.Context(), snap, r.prefix, true, match)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	mustCreate(t, r, newPod("db", "n1", "app", "db"))
	db := update(t, r, "db", func(p *corev1.Pod) { p.Labels["app"] = "web" })
	gone := update(t, r, "web", func(p *corev1.Pod) { p.Labels["app"] = "old" })
	mod := update(t, r, "db", func(p *corev1.Pod) { p.Spec.NodeName = "n2" })
	del, err := r.Delete(t.Context(), db.Key, func(*Record) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		fmt.Sprintf("ADDED web@%d", web.Revision), fmt.Sprintf("ADDED db@%d", db.Revision), fmt.Sprintf("DELETED web@%d", gone.Revision),
		fmt.Sprintf("MODIFIED db@%d", mod.Revision), fmt.Sprintf("DELETED db@%d", del.Revision),
	}
	if got := collect(t, w, len(want)); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if w.Revision() < del.Revision {
		t.Errorf("watcher is at %d, want %d", w.Revision(), del.Revision)
	}
}

// A watch from before the cache was loaded reads the backend's history, then
// goes on with the log, and nothing is lost or repeated between the two.
func TestWatchHistory(t *testing.T) {
	s, b := openStore(t)
	r := s.Resource(podDefinition())
	r.counted.Store(true) // so that the first write does not load it
	start, _ := b.Revision(t.Context())
	const n = 300
	var want []string
	for i := range n / 2 {
		rec := mustCreate(t, r, newPod(fmt.Sprint("p", i), "n1"))
		want = append(want, fmt.Sprintf("ADDED %s@%d", rec.Name, rec.Revision))
	}
	w, err := r.Watch(t.Context(), start, func(*Record) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if w.history == nil {
		t.Fatal("the log reaches back to before it was loaded")
	}
	for i := n / 2; i < n; i++ {
		rec := mustCreate(t, r, newPod(fmt.Sprint("p", i), "n1"))
		want = append(want, fmt.Sprintf("ADDED %s@%d", rec.Name, rec.Revision))
	}
	if got := collect(t, w, n); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	rev, _ := b.Revision(t.Context())
	if err := b.Compact(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Watch(t.Context(), start, func(*Record) bool { return true }); !errors.Is(err, ErrExpired) {
		t.Errorf("watch of compacted history: %v", err)
	}
}

// Concurrent updates of one object all take effect.
func TestConcurrentUpdates(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	mustCreate(t, r, newPod("counter", "0"))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 25 {
				update(t, r, "counter", func(p *corev1.Pod) {
					n, _ := strconv.Atoi(p.Spec.NodeName)
					p.Spec.NodeName = strconv.Itoa(n + 1)
				})
			}
		})
	}
	wg.Wait()
	rec, err := r.Get(t.Context(), r.Key("default", "counter"), Read{})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Fields(rec).Get("spec.nodeName"); got != "200" {
		t.Errorf("counter is %s, want 200", got)
	}
}

// A change that errs on an old state is asked again with the newest.
func TestChangeOnOldState(t *testing.T) {
	s, b := openStore(t)
	r := s.Resource(podDefinition())
	rec := mustCreate(t, r, newPod("a", "n1"))
	if _, err := r.Get(t.Context(), rec.Key, Read{}); err != nil { // loads the cache
		t.Fatal(err)
	}
	newer, err := wire.EncodeStored(podDefinition(), newPod("a", "n2"))
	if err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	raced := false
	_, err = r.Update(t.Context(), rec.Key, func(_ *Record, obj resource.Object) (resource.Object, time.Duration, error) {
		p := obj.(*corev1.Pod)
		if !raced {
			raced = true
			if _, err := b.Update(t.Context(), rec.Key, newer, rec.Revision, 0); err != nil {
				t.Fatal(err)
			}
		}
		if p.Spec.NodeName == "n1" {
			return nil, 0, refused
		}
		p.Spec.NodeName = "n3"
		return p, 0, nil
	})
	if err != nil {
		t.Fatalf("update: %v", err)
	}
}

func TestFormsAreMadeOnce(t *testing.T) {
	rec := &Record{}
	calls := 0
	for range 3 {
		b, err := rec.Encoding(2, func(*Record) ([]byte, error) { calls++; return []byte("x"), nil })
		if err != nil || string(b) != "x" {
			t.Fatal(b, err)
		}
	}
	if calls != 1 {
		t.Errorf("made %d times", calls)
	}
	if _, err := rec.Encoding(3, func(*Record) ([]byte, error) { return nil, errors.New("no") }); err == nil {
		t.Error("error is lost")
	}
}

// A watcher that is not read loses its place, clearly, and costs the others
// nothing.
func TestSlowWatcher(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	snap, err := r.Snapshot(t.Context(), Read{})
	if err != nil {
		t.Fatal(err)
	}
	slow, err := r.WatchFrom(t.Context(), snap, r.prefix, false, func(*Record) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	rec := wire.NewRecord(Record{Key: r.prefix + "x/y"}, make([]byte, 1<<20), nil, nil, nil, nil)
	for range 2 * logBytes / rec.Size() {
		r.log.append(logEntry{revision: r.log.last + 1, now: rec})
	}
	if r.log.bytes > logBytes || len(r.log.entries) > logEntries {
		t.Errorf("the log has %d bytes in %d entries", r.log.bytes, len(r.log.entries))
	}
	r.mu.Unlock()
	if _, _, err := slow.Poll(t.Context()); !errors.Is(err, ErrExpired) {
		t.Errorf("slow watcher: %v", err)
	}
}

func BenchmarkGet(b *testing.B) {
	s, _ := openStore(b)
	r := s.Resource(podDefinition())
	for i := range 10_000 {
		mustCreate(b, r, newPod(fmt.Sprint("p", i), "n1"))
	}
	key := r.Key("default", "p77")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Get(context.Background(), key, Read{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUpdate(b *testing.B) {
	s, _ := openStore(b)
	r := s.Resource(podDefinition())
	mustCreate(b, r, newPod("p", "n1"))
	if _, err := r.Snapshot(context.Background(), Read{}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		update(b, r, "p", func(p *corev1.Pod) { p.Spec.NodeName = strconv.Itoa(i) })
	}
}

// BenchmarkLoad is filling the cache with objects that have labels and no selectable
// fields, for each object.
func BenchmarkLoad(b *testing.B) {
	s, _ := openStore(b)
	def := podDefinition()
	def.Fields = nil
	r := s.Resource(def)
	const objects = 10_000
	for i := range objects {
		mustCreate(b, r, newPod(fmt.Sprint("p", i), "n1", "app", fmt.Sprint(i%100), "tier", "web"))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%objects != 0 {
			continue
		}
		r.reset()
		if err := r.load(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
