package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// gateFS is a file system whose syncs of logs wait while the gate is locked.
type gateFS struct {
	vfs.FS
	gate sync.RWMutex
}

func (f *gateFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return &gateFile{file, f, strings.HasSuffix(name, ".log")}, err
}

type gateFile struct {
	vfs.File
	fs    *gateFS
	isLog bool
}

func (f *gateFile) SyncData() error {
	if f.isLog {
		f.fs.gate.RLock()
		defer f.fs.gate.RUnlock()
	}
	return f.File.SyncData()
}

// TestCanceledWriters: whichever of the callers that wait for a commit give up, the others
// are committed, and nobody waits for ever: not if the next to commit gives up either.
func TestCanceledWriters(t *testing.T) {
	for canceled := range 1 << 3 {
		t.Run(fmt.Sprintf("%03b", canceled), func(t *testing.T) {
			fs := &gateFS{FS: vfs.NewMem()}
			e := open(t, Options{Dir: "/data", fs: fs})
			fs.gate.Lock()
			first := make(chan error, 1)
			go func() {
				_, err := e.Create(t.Context(), "/first", nil, 0)
				first <- err
			}()
			waitForQueue(t, e, func(q *queue) bool { return q.busy && len(q.waiting) == 0 })
			var results [3]chan error
			var cancels [3]context.CancelFunc
			for i := range results {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				results[i], cancels[i] = make(chan error, 1), cancel
				go func() {
					_, err := e.Create(ctx, fmt.Sprint("/", i), nil, 0)
					results[i] <- err
				}()
				waitForQueue(t, e, func(q *queue) bool { return len(q.waiting) == i+1 })
			}
			for i := range results {
				if canceled>>i&1 == 1 {
					cancels[i]()
					if err := <-results[i]; !errors.Is(err, context.Canceled) || errors.Is(err, storage.ErrUncertain) {
						t.Errorf("canceled write %d: %v, want %v", i, err, context.Canceled)
					}
				}
			}
			fs.gate.Unlock()
			if err := <-first; err != nil {
				t.Errorf("the write under way: %v", err)
			}
			for i := range results {
				_, err := e.Get(t.Context(), fmt.Sprint("/", i))
				if canceled>>i&1 == 1 {
					if !errors.Is(err, storage.ErrNotFound) {
						t.Errorf("canceled write %d: get %v, want %v", i, err, storage.ErrNotFound)
					}
				} else if err := <-results[i]; err != nil {
					t.Errorf("write %d: %v", i, err)
				}
			}
			create(t, e, "/last", "")
		})
	}
}

// waitForQueue waits until the queue is in a state.
func waitForQueue(t *testing.T, e *Engine, state func(*queue) bool) {
	t.Helper()
	for range 100_000 {
		e.queue.mu.Lock()
		reached := state(&e.queue)
		e.queue.mu.Unlock()
		if reached {
			return
		}
		runtime.Gosched()
	}
	t.Fatal("the queue has not come to the state")
}

// TestLeave: a caller that gives up when it has been told to commit passes that on.
func TestLeave(t *testing.T) {
	q := &queue{}
	var writes [3]*write
	for i := range writes {
		writes[i] = &write{key: fmt.Sprint(i)}
		if mine := q.add(writes[i]); mine != (i == 0) {
			t.Fatalf("write %d: own turn %v", i, mine)
		}
	}
	if group := q.gather(); len(group) != 3 {
		t.Fatalf("group of %d, want 3", len(group))
	}
	q = &queue{}
	q.add(writes[0])
	q.gather()
	q.add(writes[1])
	q.add(writes[2])
	q.pass()
	if !q.leave(writes[1]) {
		t.Fatal("write 1 was taken, want it in the queue")
	}
	select {
	case committed := <-writes[2].turn:
		if committed {
			t.Error("write 2 is said to be committed")
		}
	default:
		t.Error("nobody was told to commit")
	}
	if q.leave(writes[1]) {
		t.Error("a write left twice")
	}
	if q.pass(); !q.busy || len(q.waiting) != 1 {
		t.Errorf("busy %v with %d waiting, want true with 1", q.busy, len(q.waiting))
	}
}

// TestPushIsComplete: a function gets every event once, in order, and before the writer
// hears of its write; also those of before, and none after Push has returned.
func TestPushIsComplete(t *testing.T) {
	e := open(t, Options{Dir: t.TempDir()})
	after, err := e.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		create(t, e, fmt.Sprint("/a/before/", i), "x")
	}
	w, err := e.Watch(t.Context(), "/a/", after)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var seen, position int64
	ended := make(chan error, 1)
	begun := make(chan struct{}, 1)
	go func() {
		next := after + 1
		ended <- w.(storage.Pusher).Push(func(b storage.Batch) {
			mu.Lock()
			defer mu.Unlock()
			for _, ev := range b.Events {
				if !strings.HasPrefix(ev.KV.Key, "/a/") || ev.KV.ModRevision < next {
					t.Errorf("event %d of %s, want one from %d on below /a/", ev.KV.ModRevision, ev.KV.Key, next)
				}
				next = ev.KV.ModRevision + 1
				seen++
			}
			position = b.Revision
			select {
			case begun <- struct{}{}:
			default:
			}
		})
	}()
	<-begun
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 20 {
				kv, err := e.Create(t.Context(), fmt.Sprintf("/%c/%d/%d", 'a'+i%2, i, n), nil, 0)
				mu.Lock()
				if err != nil || position < kv.ModRevision {
					t.Errorf("write %d is acknowledged (%v) when the function has come to %d", kv.ModRevision, err, position)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	w.Close()
	if err := <-ended; !errors.Is(err, storage.ErrClosed) {
		t.Errorf("Push ended with %v, want %v", err, storage.ErrClosed)
	}
	create(t, e, "/a/late", "")
	if want := int64(50 + 4*20); seen != want {
		t.Errorf("%d events, want %d", seen, want)
	}
}

// TestLookups: a commit asks for what is not among the recent events, believes what was seen
// late enough, and reads the rest from disk.
func TestLookups(t *testing.T) {
	dir := t.TempDir()
	e := open(t, Options{Dir: dir})
	kept, gone := create(t, e, "/a/kept", "x"), create(t, e, "/a/gone", "y")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = open(t, Options{Dir: dir}) // without recent events
	w, err := e.Watch(t.Context(), "/a/", 0)
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	old := map[string]bool{} // keys whose answer is of the time before the events in memory
	lookup := func(key string) (storage.KeyValue, int64, bool) {
		asked = append(asked, key)
		seen := int64(1 << 40)
		if old[key] {
			seen = 0
		}
		if key == "/a/kept" {
			return kept, seen, true
		}
		return storage.KeyValue{}, seen, key != "/a/unknown"
	}
	ended := make(chan error, 1)
	go func() { ended <- w.(storage.AskingPusher).PushAsking(func(storage.Batch) {}, lookup) }()
	for e.pushes.asked.Load() == nil {
		runtime.Gosched()
	}
	old["/a/gone"] = true
	if _, err := e.Update(t.Context(), "/a/gone", nil, gone.ModRevision, 0); err != nil {
		t.Errorf("a key that was looked up too early: %v, want it to be found on disk", err)
	}
	updated, err := e.Update(t.Context(), "/a/kept", nil, kept.ModRevision, 0)
	if err != nil || updated.CreateRevision != kept.CreateRevision {
		t.Errorf("got %+v, %v, want an update of what was created at %d", updated, err, kept.CreateRevision)
	}
	if _, err := e.Update(t.Context(), "/a/kept", nil, kept.ModRevision, 0); !errors.Is(err, storage.ErrConflict) {
		t.Errorf("got %v, want a conflict: what was looked up is older than a recent event", err)
	}
	create(t, e, "/a/new", "")
	create(t, e, "/a/unknown", "")
	create(t, e, "/b/elsewhere", "")
	w.Close()
	<-ended
	create(t, e, "/a/late", "")
	if want := []string{"/a/gone", "/a/kept", "/a/new", "/a/unknown"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %v, want %v", asked, want)
	}
}

// TestPushPanics: a function that panics ends its own watch, and no write.
func TestPushPanics(t *testing.T) {
	e := open(t, Options{Dir: t.TempDir()})
	w, err := e.Watch(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.(storage.Pusher).Push(func(storage.Batch) { panic("broken") }) }()
	for n := 0; ; n++ {
		create(t, e, fmt.Sprint("/", n), "")
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "broken") {
				t.Errorf("Push ended with %v, want the panic", err)
			}
			create(t, e, "/last", "")
			return
		default:
		}
		if n == 10_000 {
			t.Fatal("Push has not ended")
		}
	}
}

// BenchmarkLoneWrite is an update by one caller: what it takes beside the sync.
func BenchmarkLoneWrite(b *testing.B) {
	e := open(b, Options{Dir: b.TempDir()})
	kv := create(b, e, "/registry/leases/kube-node-lease/node", strings.Repeat("x", 300))
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if kv, err = e.Update(b.Context(), kv.Key, kv.Value, kv.ModRevision, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// TestLaterExpiriesWakeNobody: a key that expires after the next housekeeping does not cause one,
// which would be one for each Event of a cluster; a key that expires before does.
func TestLaterExpiriesWakeNobody(t *testing.T) {
	e := open(t, Options{Dir: t.TempDir(), HistoryAge: 10 * time.Minute})
	idle := func() bool { return e.rests.Load() != math.MaxInt64 && e.rests.Load() != 0 && len(e.wake) == 0 }
	polltest.Until(t, "housekeeping has nothing to do", idle)
	until := e.rests.Load()
	for i := range 100 {
		if _, err := e.Create(t.Context(), fmt.Sprint("/k/", i), []byte("v"), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if !idle() || e.rests.Load() != until {
		t.Error("keys that expire in an hour cause housekeeping")
	}
	if _, err := e.Create(t.Context(), "/soon", []byte("v"), 30*time.Second); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, "housekeeping knows of a key that expires soon", func() bool { return idle() && e.rests.Load() < until })
}
