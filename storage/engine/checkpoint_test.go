package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// A checkpoint that is made while many write has everything that was acknowledged before,
// and afterwards neither store sees what is written to the other.
func TestCheckpointIsAStoreOfItsOwn(t *testing.T) {
	ctx, root := t.Context(), t.TempDir()
	e := open(t, Options{Dir: filepath.Join(root, "a"), memtable: 256 << 10})
	fill(t, e, 500, 2000)
	var acked sync.Map
	var stop atomic.Bool
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := 0; !stop.Load(); i++ {
				kv, err := e.Create(ctx, fmt.Sprintf("/w/%d/%06d", w, i), []byte(strings.Repeat("x", 3000)), 0)
				if err != nil {
					t.Error(err)
					return
				}
				acked.Store(kv.Key, kv.ModRevision)
			}
		})
	}
	for i := range rounds(4, 30) {
		before := map[string]int64{}
		acked.Range(func(key, revision any) bool { before[key.(string)] = revision.(int64); return true })
		dir := filepath.Join(root, fmt.Sprint("copy", i))
		at, err := e.Checkpoint(ctx, dir)
		if err != nil {
			t.Fatal(err)
		}
		c := open(t, Options{Dir: dir})
		now, err := c.Revision(ctx)
		if err != nil || now < at {
			t.Fatalf("the copy is at revision %d (%v), want at least %d", now, err, at)
		}
		for key, revision := range before {
			if kv, err := c.Get(ctx, key); err != nil || kv.ModRevision != revision {
				t.Fatalf("the copy has %s at %d (%v), want %d", key, kv.ModRevision, err, revision)
			}
		}
		create(t, c, "/only/copy", "1")
		fill := create(t, c, "/w/mine", strings.Repeat("y", 5000))
		if _, _, err := c.Delete(ctx, fill.Key, fill.ModRevision); err != nil {
			t.Fatal(err)
		}
		if err := c.Compact(ctx, now); err != nil {
			t.Fatal(err)
		}
		if err := c.db.Compact(ctx, []byte{spaceVersion}, []byte{spaceExpiry + 1}, false); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Get(ctx, "/only/copy"); !errors.Is(err, storage.ErrNotFound) {
			t.Fatalf("the first store has what was written to the copy: %v, want ErrNotFound", err)
		}
		if _, err := e.Checkpoint(ctx, dir); err == nil {
			t.Fatal("a checkpoint over another is made, want an error")
		}
	}
	stop.Store(true)
	writers.Wait()
	if err := e.db.Compact(ctx, []byte{spaceVersion}, []byte{spaceExpiry + 1}, false); err != nil {
		t.Fatal(err)
	}
	c := open(t, Options{Dir: filepath.Join(root, "copy0"), fs: noLock{vfs.Default}})
	if n, _, err := c.Count(ctx, "/"); err != nil || n < 500 {
		t.Errorf("the first copy has %d keys (%v) after the first store was rewritten, want at least 500", n, err)
	}
}

// noLock opens a folder that this test has open, too, to read from it.
type noLock struct{ vfs.FS }

func (noLock) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// A store that is rolled back is what it was at that moment, with the history before it,
// and goes on from there.
func TestRollBackToRandomMoments(t *testing.T) {
	ctx, root, r := t.Context(), t.TempDir(), randomtest.New(t)
	clock := &fakeClock{now: time.Now()}
	e := open(t, Options{Dir: filepath.Join(root, "a"), now: clock.Now, HistoryAge: time.Minute, RetainAge: time.Hour})
	var p past
	p.writeRandomly(t, e, 300, clock)
	if err := e.Compact(ctx, p.log[250].KV.ModRevision); err != nil {
		t.Fatal(err)
	}
	for i := range rounds(6, 60) {
		dir := filepath.Join(root, fmt.Sprint(i))
		if _, err := e.Checkpoint(ctx, dir); err != nil {
			t.Fatal(err)
		}
		n := r.IntN(len(p.log))
		want := p.log[n]
		revision, at := want.KV.ModRevision, time.Time{}
		if i%2 == 0 {
			revision, at = 0, want.Time
		}
		got, err := RollBack(ctx, dir, revision, at)
		if err != nil || got != want.KV.ModRevision {
			t.Fatalf("rolled back to %d (%v), want %d", got, err, want.KV.ModRevision)
		}
		c := open(t, Options{Dir: dir, now: clock.Now, HistoryAge: time.Minute, RetainAge: time.Hour})
		now, err := c.Revision(ctx)
		if err != nil || now != want.KV.ModRevision {
			t.Fatalf("the store is at revision %d (%v), want %d", now, err, want.KV.ModRevision)
		}
		then := past{states: p.states, log: slices.Clone(p.log[:n+1])}
		then.check(t, c, 1, true)
		checkExpiries(t, c)
		for _, kv := range mustList(t, c) {
			if _, err := c.Update(ctx, kv.Key, []byte("after"), kv.ModRevision, 0); err != nil {
				t.Fatalf("update of %s after a rollback to %d: %v", kv.Key, now, err)
			}
		}
	}
	if _, err := RollBack(ctx, filepath.Join(root, "0"), 1, time.Time{}); !errors.Is(err, ErrLocked) {
		t.Errorf("rollback of a store that is open: %v, want ErrLocked", err)
	}
	p.check(t, e, 1, true)
}

// Beyond what is kept there is an error, and the store stays what it is.
func TestRollBackOutsideHistory(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	e, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		create(t, e, fmt.Sprint("/k/", i), "v")
	}
	if err := e.Compact(ctx, 8); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for revision, want := range map[int64]error{7: storage.ErrCompacted, 12: storage.ErrFutureRevision, 8: nil} {
		if _, err := RollBack(ctx, dir, revision, time.Time{}); !errors.Is(err, want) {
			t.Errorf("rollback to %d: %v, want %v", revision, err, want)
		}
	}
	e = open(t, Options{Dir: dir})
	if got := len(mustList(t, e)); got != 7 { // revision 8 is the seventh key
		t.Errorf("%d keys, want 7", got)
	}
}

// The times at which keys end are those of the versions that have become the newest.
func TestRollBackRestoresExpiries(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	e, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	r := randomtest.New(t)
	for i := range 200 {
		key, ttl := fmt.Sprint("/k/", i%7), time.Duration(r.IntN(3))*time.Hour
		kv, err := e.Get(ctx, key)
		switch {
		case errors.Is(err, storage.ErrNotFound):
			_, err = e.Create(ctx, key, []byte("v"), ttl)
		case err != nil:
		case r.IntN(3) == 0:
			_, _, err = e.Delete(ctx, key, kv.ModRevision)
		default:
			_, err = e.Update(ctx, key, fmt.Append(nil, i), kv.ModRevision, ttl)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for at := int64(180); at > 1; at -= 1 + int64(r.IntN(40)) {
		if _, err := RollBack(ctx, dir, at, time.Time{}); err != nil {
			t.Fatal(err)
		}
		e, err := Open(Options{Dir: dir, RetainAge: forever})
		if err != nil {
			t.Fatal(err)
		}
		checkExpiries(t, e)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// checkExpiries compares the expiry space with the newest versions.
func checkExpiries(t *testing.T, e *Engine) {
	t.Helper()
	got, want := map[string]int64{}, map[string]int64{}
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceExpiry}, UpperBound: []byte{spaceExpiry + 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		expires, key, err := parseExpiryKey(it.Key())
		if err != nil {
			t.Fatal(err)
		}
		got[key] = expires
	}
	for _, kv := range mustList(t, e) {
		if !kv.Expires.IsZero() {
			want[kv.Key] = kv.Expires.UnixMilli()
		}
	}
	if !maps.Equal(got, want) {
		t.Fatalf("expiries:\n got %v\nwant %v", got, want)
	}
}

func mustList(t *testing.T, b storage.Backend) []storage.KeyValue {
	t.Helper()
	page, err := b.List(t.Context(), "/", storage.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return page.Items
}

// faultBelow fails the nth change below a folder, and all after it.
type faultBelow struct {
	folder string
	left   atomic.Int64
	hit    atomic.Bool
}

func (f *faultBelow) String() string { return "faultBelow" }

func (f *faultBelow) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || !strings.Contains(op.Path, f.folder) || f.left.Add(-1) >= 0 {
		return nil
	}
	f.hit.Store(true)
	return syscall.ENOSPC
}

// A checkpoint that fails, at any of its steps, does the store no harm.
func TestFailedCheckpointLeavesTheStore(t *testing.T) {
	ended := false
	for n := int64(0); n < 200 && !ended; n += int64(testsize.Pick(3, 1, 1)) {
		fault := &faultBelow{folder: "copy"}
		fault.left.Store(n)
		e, err := Open(Options{Dir: "a", fs: errorfs.Wrap(vfs.NewMem(), fault), memtable: 256 << 10, MinFree: -1})
		if err != nil {
			t.Fatal(err)
		}
		fill(t, e, 20, 1000)
		if err := e.db.Flush(); err != nil {
			t.Fatal(err)
		}
		_, err = e.Checkpoint(context.Background(), "copy")
		if ended = !fault.hit.Load(); ended && err != nil {
			t.Errorf("a checkpoint without a fault: %v, want none", err)
		}
		if n == 0 && err == nil {
			t.Error("a checkpoint on a full disk goes well, want an error")
		}
		create(t, e, "/after", "1")
		if status, err := e.Status(t.Context()); err != nil || status.ReadOnly != nil {
			t.Fatalf("fault %d: the store is read-only: %v %v", n, status.ReadOnly, err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if !ended {
		t.Error("no checkpoint went well: the test proves too little")
	}
}

func BenchmarkCheckpoint(b *testing.B) {
	const keys = 100_000
	root := b.TempDir()
	dir := filepath.Join(root, "a")
	value, i := randomBytes(1000), 0
	if err := Import(b.Context(), dir, keys+1, func() (storage.KeyValue, error) {
		if i++; i > keys {
			return storage.KeyValue{}, io.EOF
		}
		return storage.KeyValue{Key: fmt.Sprintf("/k/%08d", i), Value: value, CreateRevision: int64(i), ModRevision: int64(i)}, nil
	}); err != nil {
		b.Fatal(err)
	}
	e := open(b, Options{Dir: dir})
	for n := 0; b.Loop(); n++ {
		if _, err := e.Checkpoint(b.Context(), filepath.Join(root, fmt.Sprint(n))); err != nil {
			b.Fatal(err)
		}
	}
}

// A store whose revision is raised has its keys and no history: who knows an older revision
// is told that it has expired.
func TestRebase(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	opts := Options{Dir: dir, RetainAge: time.Hour}
	e, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	kv := create(t, e, "/k/0", "old")
	if kv, err = e.Update(ctx, kv.Key, []byte("new"), kv.ModRevision, 0); err != nil {
		t.Fatal(err)
	}
	gone := create(t, e, "/k/gone", "v")
	if _, _, err := e.Delete(ctx, gone.Key, gone.ModRevision); err != nil {
		t.Fatal(err)
	}
	if err := Rebase(dir, 1000); !errors.Is(err, ErrLocked) {
		t.Errorf("of a store that is open: %v, want ErrLocked", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Rebase(dir, 2); err == nil {
		t.Error("to a revision that is less: no error, want one")
	}
	if err := Rebase(dir, 1000); err != nil {
		t.Fatal(err)
	}
	e = open(t, opts)
	if n := e.storedVersions(t); n != 1 {
		t.Errorf("%d versions are stored, want 1", n)
	}
	items := mustList(t, e)
	if len(items) != 1 || string(items[0].Value) != "new" || items[0].ModRevision != kv.ModRevision {
		t.Errorf("the store has %v, want the newest version of one key", items)
	}
	if kept, err := e.KeptHistory(ctx); err != nil || kept.Oldest != 1000 || kept.Newest != 1000 {
		t.Errorf("history is from %d to %d (%v), want 1000", kept.Oldest, kept.Newest, err)
	}
	if w, err := e.Watch(ctx, "/k/", kv.ModRevision); err == nil {
		_, err = w.Next(ctx)
		w.Close()
		if !errors.Is(err, storage.ErrCompacted) {
			t.Errorf("a watch of an older revision: %v, want ErrCompacted", err)
		}
	}
	if next := create(t, e, "/k/1", "v"); next.ModRevision != 1001 {
		t.Errorf("the next revision is %d, want 1001", next.ModRevision)
	}
}
