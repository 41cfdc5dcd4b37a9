package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// kinds of changes of a disk that can fail.
var faultKinds = map[string][]errorfs.OpKind{
	"write":  {errorfs.OpFileWrite, errorfs.OpFileWriteAt},
	"sync":   {errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo},
	"create": {errorfs.OpCreate, errorfs.OpReuseForWrite, errorfs.OpRename, errorfs.OpLink},
}

// faulty injects an error into the nth change of some kind after it is armed,
// and into all after that, as a broken or full disk would.
type faulty struct {
	kinds []errorfs.OpKind
	err   error
	file  string // a part of the name of the files affected; "" for all
	left  atomic.Int64
	armed atomic.Bool
	hit   atomic.Bool
}

func (f *faulty) String() string { return "faulty" }

func (f *faulty) MaybeError(op errorfs.Op) error {
	if !f.armed.Load() || !strings.Contains(filepath.Base(op.Path), f.file) || !slices.Contains(f.kinds, op.Kind) || f.left.Add(-1) >= 0 {
		return nil
	}
	f.hit.Store(true)
	return f.err
}

// TestFaults breaks the disk at many different moments under concurrent
// writers. Writes must then be refused clearly, reads go on, and a restart on
// a healthy disk must show everything that was acknowledged.
func TestFaults(t *testing.T) {
	moments := []int64{5, 0, 1, 2, 3, 8, 13, 21, 34, 55, 89, 144}
	moments = moments[:testsize.Pick(1, 2, len(moments))]
	for kind, ops := range faultKinds {
		for _, file := range []string{"", ".log", ".sst", ".blob", "MANIFEST"} {
			for _, cause := range []error{syscall.EIO, syscall.ENOSPC} {
				for _, n := range moments {
					t.Run(fmt.Sprintf("%s/%s/%v/%d", kind, file, cause, n), func(t *testing.T) {
						f := &faulty{kinds: ops, err: cause, file: file}
						f.left.Store(n)
						testFault(t, f)
					})
				}
			}
		}
	}
}

func testFault(t *testing.T, f *faulty) {
	t.Helper()
	disk := vfs.NewMem()
	e, err := Open(Options{Dir: "data", fs: errorfs.Wrap(disk, f), memtable: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	first, err := e.Create(t.Context(), "/first", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	f.armed.Store(true)

	// Enough for several flushes, so that tables and manifests are written.
	acked := newAcked()
	value := randomBytes(24 << 10)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var refused atomic.Pointer[error]
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 40 {
				kv, err := e.Create(ctx, fmt.Sprintf("/%d/%d", i, n), value, 0)
				if err != nil {
					refused.Store(&err)
					return
				}
				acked.put(kv)
				if kv, err = e.Update(ctx, kv.Key, []byte("small"), kv.ModRevision, 0); err != nil {
					refused.Store(&err)
					return
				}
				acked.put(kv)
			}
		})
	}
	wg.Wait()

	if err := refused.Load(); err != nil {
		if !errors.Is(*err, storage.ErrReadOnly) || !errors.Is(*err, f.err) {
			t.Errorf("after %d: write is refused with %v", f.left.Load(), *err)
		}
		if st, err := e.Status(ctx); err != nil || !errors.Is(st.ReadOnly, storage.ErrReadOnly) {
			t.Errorf("status: %v, %v", st.ReadOnly, err)
		}
		if err := e.Compact(ctx, first.ModRevision); !errors.Is(err, storage.ErrReadOnly) {
			t.Errorf("compact on a failed disk: %v", err)
		}
	} else if f.hit.Load() && e.fs.Err() == nil {
		t.Errorf("an error of the disk went unnoticed")
	}
	// Reads go on, and show what was acknowledged and nothing else.
	acked.check(t, e, "before restart")
	if kv, err := e.Get(ctx, "/first"); err != nil || kv.ModRevision != first.ModRevision {
		t.Errorf("get on a failed disk: %v, %v", kv, err)
	}
	e.Close()

	f.armed.Store(false)
	e, err = Open(Options{Dir: "data", fs: disk})
	if err != nil {
		t.Fatalf("restart: %v", err)
	}
	defer e.Close()
	acked.checkAtLeast(t, e)
	rev, _ := e.Revision(ctx)
	checkHistory(t, e, 1, rev)
	if _, err := e.Create(ctx, "/after", nil, 0); err != nil {
		t.Errorf("write after restart: %v", err)
	}
}

// acked is what a store has acknowledged.
type acked struct {
	mu   sync.Mutex
	keys map[string]storage.KeyValue
}

func newAcked() *acked { return &acked{keys: map[string]storage.KeyValue{}} }

func (a *acked) put(kv storage.KeyValue) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keys[kv.Key] = kv
}

// check wants exactly what was acknowledged.
func (a *acked) check(t *testing.T, e *Engine, when string) {
	t.Helper()
	for key, want := range a.keys {
		if kv, err := e.Get(context.Background(), key); err != nil || kv.ModRevision != want.ModRevision || string(kv.Value) != string(want.Value) {
			t.Errorf("%s: %s is at %d (%v), %d was acknowledged", when, key, kv.ModRevision, err, want.ModRevision)
		}
	}
}

// checkAtLeast wants what was acknowledged, or something newer.
func (a *acked) checkAtLeast(t *testing.T, e *Engine) {
	t.Helper()
	for key, want := range a.keys {
		if kv, err := e.Get(context.Background(), key); err != nil || kv.ModRevision < want.ModRevision {
			t.Errorf("after restart: %s is at %d (%v), %d was acknowledged", key, kv.ModRevision, err, want.ModRevision)
		}
	}
}

// TestPowerCut takes the power away at random moments: what was not synced is
// lost, wholly or in part.
func TestPowerCut(t *testing.T) {
	rng := randomtest.New(t)
	for round := range rounds(10, 200) {
		disk := vfs.NewCrashableMem()
		e, err := Open(Options{Dir: "data", fs: disk, memtable: 256 << 10})
		if err != nil {
			t.Fatal(err)
		}
		acked := newAcked()
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					kv, err := e.Create(context.Background(), fmt.Sprintf("/%d/%d", i, n), randomBytes(2000), 0)
					if err != nil {
						t.Error(err)
						return
					}
					acked.put(kv)
				}
			})
		}
		want := rng.IntN(1000)
		polltest.Until(t, "the write is committed", func() bool { rev, _ := e.Revision(context.Background()); return rev > int64(want) })
		// What is acknowledged up to here must be in the clone.
		acked.mu.Lock()
		before := newAcked()
		for _, kv := range acked.keys {
			before.put(kv)
		}
		acked.mu.Unlock()
		clone := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
		close(stop)
		wg.Wait()
		e.Close()

		e, err = Open(Options{Dir: "data", fs: clone})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		before.checkAtLeast(t, e)
		rev, _ := e.Revision(context.Background())
		checkHistory(t, e, 1, rev)
		e.Close()
		if t.Failed() {
			t.Fatalf("it failed in round %d", round)
		}
	}
}
