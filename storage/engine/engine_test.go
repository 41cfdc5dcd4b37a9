package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(crashEnv) != "" {
		crashChild()
		return
	}
	goleak.VerifyTestMain(m)
}

// long tells the long suite, which takes minutes.
func long() bool { return testsize.Long() }

// rounds returns how often to repeat a test, in the ordinary and in the long
// suite.
func rounds(ordinary, inLong int) int {
	return testsize.Pick(min(ordinary, 3), ordinary, inLong)
}

func open(t testing.TB, opts Options) *Engine {
	t.Helper()
	e, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func create(t testing.TB, e *Engine, key, value string) storage.KeyValue {
	t.Helper()
	kv, err := e.Create(context.Background(), key, []byte(value), 0)
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

func TestFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	e := open(t, Options{Dir: dir})
	create(t, e, "/a", "1")

	if _, err := Open(Options{Dir: dir}); !errors.Is(err, ErrLocked) {
		t.Errorf("second open: %v, want ErrLocked", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("folder has mode %v (%v), want 0700", info.Mode(), err)
	}

	format := filepath.Join(dir, formatFile)
	for _, c := range []struct {
		content string
		want    error
	}{
		{"kelson-engine 2\n", ErrNewerFormat},
		{"kelson-engine 0\n", ErrNotStore},
		{"kelson-engine 01\n", ErrNotStore},
		{"something else\n", ErrNotStore},
		{"", ErrNotStore},
	} {
		if err := os.WriteFile(format, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if e, err := Open(Options{Dir: dir}); !errors.Is(err, c.want) {
			t.Errorf("open with %q: %v, want %v", c.content, err, c.want)
			if err == nil {
				e.Close()
			}
		}
	}
	if err := os.WriteFile(format, []byte("kelson-engine 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e = open(t, Options{Dir: dir})
	if kv, err := e.Get(context.Background(), "/a"); err != nil || string(kv.Value) != "1" {
		t.Errorf("after the failed opens: %q, %v", kv.Value, err)
	}

	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "thesis.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: foreign}); !errors.Is(err, ErrNotStore) {
		t.Errorf("open of a foreign folder: %v, want ErrNotStore", err)
	}
	file := filepath.Join(foreign, "thesis.txt")
	if _, err := Open(Options{Dir: file}); err == nil {
		t.Error("a file was opened as a folder")
	}
}

// A history longer than the limit is cut by the keeper, by itself.
func TestHistoryCount(t *testing.T) {
	ctx := t.Context()
	e := open(t, Options{Dir: t.TempDir(), HistoryCount: 100})
	w, err := e.Watch(ctx, "", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	kv := create(t, e, "/a", "0")
	for range 400 {
		if kv, err = e.Update(ctx, "/a", []byte("x"), kv.ModRevision, 0); err != nil {
			t.Fatal(err)
		}
	}
	polltest.Until(t, "old revisions are compacted", func() bool { return kv.ModRevision-e.compacted.Load() < 120 })
	if kept := kv.ModRevision - e.compacted.Load() + 1; kept < 100 {
		t.Errorf("%d revisions are kept, want 100 or more", kept)
	}
	if _, err := e.Watch(ctx, "", 1); !errors.Is(err, storage.ErrCompacted) {
		t.Errorf("watch of what was cut: %v", err)
	}
	if got := e.storedVersions(t); got > 130 {
		t.Errorf("%d versions are stored", got)
	}
}

// History goes when it is old, and the age of events survives a restart.
func TestHistoryAge(t *testing.T) {
	ctx := t.Context()
	clock := &fakeClock{now: time.Now()}
	opts := Options{Dir: t.TempDir(), HistoryAge: time.Hour, now: clock.Now}
	e := open(t, opts)
	for i := range 10 {
		create(t, e, fmt.Sprint("/old/", i), "x")
	}
	clock.advance(50 * time.Minute)
	young := create(t, e, "/young", "x")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	clock.advance(20 * time.Minute)
	e = open(t, opts)
	polltest.Until(t, "something is compacted", func() bool { return e.compacted.Load() != 0 })
	if got := e.compacted.Load(); got != young.ModRevision {
		t.Errorf("history begins at %d, want %d", got, young.ModRevision)
	}
	if n, _, err := e.Count(ctx, ""); n != 11 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
}

// A crash between the decision to compact and the removal leaves nothing
// behind after the next start.
func TestInterruptedCompaction(t *testing.T) {
	dir := t.TempDir()
	e := open(t, Options{Dir: dir})
	kv := create(t, e, "/a", "0")
	for range 10 {
		var err error
		if kv, err = e.Update(t.Context(), "/a", []byte("x"), kv.ModRevision, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.db.Set(metaKey(metaCompact), metaValue(kv.ModRevision), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = open(t, Options{Dir: dir})
	// The newest version, and the one that the newest event replaced.
	polltest.Until(t, "two versions are stored", func() bool { return e.storedVersions(t) == 2 })
}

// Deleting and compacting gives the space back.
func TestSpaceGivenBack(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 80 MB")
	}
	ctx := t.Context()
	e := open(t, Options{Dir: t.TempDir()})
	fill(t, e, 2_500, 32<<10)
	full := e.db.Metrics().DiskSpaceUsage()
	page, err := e.List(ctx, "", storage.ListOptions{KeysOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	parallel(t, 64, len(page.Items), func(i int) error {
		_, _, err := e.Delete(ctx, page.Items[i].Key, page.Items[i].ModRevision)
		return err
	})
	rev, _ := e.Revision(ctx)
	if err := e.Compact(ctx, rev); err != nil {
		t.Fatal(err)
	}
	if err := e.reclaimSpace(); err != nil {
		t.Fatal(err)
	}
	// Obsolete files are removed in the background.
	polltest.Until(t, "the space is given back", func() bool { return e.db.Metrics().DiskSpaceUsage() < full/2 })
}

// The size that is measured has what is in the log alone.
func TestSizeCountsTheLog(t *testing.T) {
	e := open(t, Options{Dir: t.TempDir()})
	fill(t, e, 100, 10<<10)
	before := e.space.size()
	e.measureDisk()
	if after := e.space.size(); before < 1_000_000 || after < 1_000_000 {
		t.Errorf("a store of 1,000,000 bytes of values: size %d, measured %d", before, after)
	}
}

func TestSizeLimit(t *testing.T) {
	ctx := t.Context()
	e := open(t, Options{Dir: t.TempDir(), SizeLimit: 24 << 20})
	value := make([]byte, 1<<20)
	var kvs []storage.KeyValue
	for i := 0; ; i++ {
		kv, err := e.Create(ctx, fmt.Sprint("/", i), value, 0)
		if errors.Is(err, storage.ErrNoSpace) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if i > 100 {
			t.Fatal("100 MB fit in a store of 24 MB")
		}
		kvs = append(kvs, kv)
	}
	if len(kvs) < 8 {
		t.Errorf("only %d MB fit", len(kvs))
	}
	// The limit holds after a restart too.
	dir := e.opts.Dir
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = open(t, Options{Dir: dir, SizeLimit: 16 << 20})
	if _, err := e.Create(ctx, "/more", value, 0); !errors.Is(err, storage.ErrNoSpace) {
		t.Errorf("create at the limit, after a restart: %v", err)
	}
	if _, err := e.Get(ctx, kvs[0].Key); err != nil {
		t.Errorf("get at the limit: %v", err)
	}
	kv, err := e.Update(ctx, kvs[0].Key, []byte("small"), kvs[0].ModRevision, 0)
	if err != nil {
		t.Errorf("update at the limit: %v", err)
	}
	if _, _, err := e.Delete(ctx, kv.Key, kv.ModRevision); err != nil {
		t.Errorf("delete at the limit: %v", err)
	}
}

func TestMinFree(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	e := open(t, Options{Dir: dir})
	kv := create(t, e, "/a", "1")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = open(t, Options{Dir: dir, MinFree: 1 << 60})
	if _, err := e.Create(ctx, "/b", nil, 0); !errors.Is(err, storage.ErrNoSpace) {
		t.Errorf("create on a full disk: %v", err)
	}
	if _, err := e.Update(ctx, "/a", nil, kv.ModRevision, 0); !errors.Is(err, storage.ErrNoSpace) {
		t.Errorf("update on a full disk: %v", err)
	}
	if _, _, err := e.Delete(ctx, "/a", kv.ModRevision); err != nil {
		t.Errorf("delete on a full disk: %v", err)
	}
}

// Close while writers, readers and watchers are busy: everyone gets an answer.
func TestCloseUnderLoad(t *testing.T) {
	for round := range 20 {
		e := open(t, Options{Dir: t.TempDir()})
		var wg sync.WaitGroup
		started := make(chan struct{}, 64)
		for i := range 16 {
			wg.Go(func() {
				for n := 0; ; n++ {
					_, err := e.Create(context.Background(), fmt.Sprintf("/%d/%d", i, n), []byte("x"), 0)
					if n == 0 {
						started <- struct{}{}
					}
					if err != nil {
						if !errors.Is(err, storage.ErrClosed) {
							t.Errorf("round %d: %v", round, err)
						}
						return
					}
				}
			})
			wg.Go(func() {
				w, err := e.Watch(context.Background(), "", 0)
				for err == nil {
					_, err = w.Next(context.Background())
				}
				if !errors.Is(err, storage.ErrClosed) {
					t.Errorf("round %d: watch: %v", round, err)
				}
			})
		}
		for range 16 {
			<-started
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}

// storedVersions counts the versions on disk, those in history included.
func (e *Engine) storedVersions(t testing.TB) (n int) {
	t.Helper()
	it, err := e.versions()
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		n++
	}
	return n
}

// fill creates n keys with values of a size.
func fill(t testing.TB, e *Engine, n, size int) {
	t.Helper()
	value := randomBytes(size)
	parallel(t, 64, n, func(i int) error {
		_, err := e.Create(context.Background(), fmt.Sprintf("/registry/pods/default/pod-%06d", i), value, 0)
		return err
	})
}

// parallel calls f with 0 to n-1 from several goroutines.
func parallel(t testing.TB, workers, n int, f func(int) error) {
	t.Helper()
	next := make(chan int)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// randomBytes returns bytes that do not compress.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	x := uint64(88172645463325252)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}

// TestNoFolder: a store without a folder is a mistake, not a store in memory.
func TestNoFolder(t *testing.T) {
	if e, err := Open(Options{}); err == nil {
		e.Close()
		t.Error("got a store without a folder, want an error")
	}
}
