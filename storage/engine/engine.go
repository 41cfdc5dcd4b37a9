// Package engine is the embedded store: a storage.Backend in a folder on disk, built on
// Pebble. Start at Open and Engine. The package knows keys and bytes only: nothing of
// objects, encodings or HTTP. Package memory is the store without a disk.
//
// # How a write travels
//
// A caller copies its value into a record and queues it. If nobody commits, it
// does so itself: it takes everything that waits, checks each guard against the
// newest version of its key, gives each write that passes the next revision, and
// commits all of them as one batch with one sync (commit.go). Only then does it
// move the committed revision, publish the events to the watchers, and tell the
// other callers; the first that waits meanwhile commits next.
//
// # What is stored
//
// Every version of a key is a record of its own, written once (record.go,
// FORMAT.md), newest first; beside it a small event under its revision. A read
// is always a read at a revision: the committed one, or an older one that the
// caller names. What a batch has written but not synced has a higher revision
// and is therefore invisible. Compaction removes the versions that were
// replaced, and the events, before a revision (history.go).
//
// # Invariants
//
//   - committed only grows, and every revision up to it is on disk.
//   - For every revision above the compaction revision there is an event, and
//     the versions that it made and replaced are there. An imported store
//     begins without events at its base revision.
//   - The newest version of a key that is not a tombstone is never removed.
//   - A version with an expiry has exactly one entry in the expiry space as
//     long as it is the newest.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// blockSize is how many bytes are read from disk at a time. Objects have a few kilobytes:
// with Pebble's 4 KB, whoever reads all of them would read each by itself.
const blockSize = 32 << 10

// Defaults of Options.
const (
	DefaultHistoryAge   = 5 * time.Minute
	DefaultHistoryCount = 1_000_000
	DefaultRetainBytes  = 1 << 30
	DefaultSizeLimit    = 8 << 30
	DefaultMinFree      = 64 << 20
)

// Options configures a store. The zero value of every field but Dir is usable.
type Options struct {
	// Dir is the folder; it is made if it does not exist.
	Dir string
	// HistoryAge is how long the events of the past and the versions that they
	// replaced are kept, so that watches can resume; 0 is DefaultHistoryAge.
	HistoryAge time.Duration
	// HistoryCount is how many revisions of history are kept at most; 0 is
	// DefaultHistoryCount.
	HistoryCount int64
	// RetainAge is how long changes and the versions that they replaced are kept for
	// storage.Historian, beyond what HistoryAge and HistoryCount keep for watches. Lists
	// and watches see nothing of them. 0 keeps nothing.
	RetainAge time.Duration
	// RetainBytes is how many bytes of such versions are kept at most; what is oldest goes
	// first, and everything goes when creates are refused for lack of space. 0 is
	// DefaultRetainBytes.
	RetainBytes int64
	// SizeLimit is the size of the store in bytes past which creates are
	// refused; 0 is DefaultSizeLimit, a negative one no limit.
	SizeLimit int64
	// MinFree is the free space on disk below which creates and updates are
	// refused; 0 is DefaultMinFree, a negative one no limit.
	MinFree int64
	// Logger gets failures of the disk and of background work; nil discards them.
	Logger *slog.Logger

	fs       vfs.FS           // replaces the disk in tests
	now      func() time.Time // replaces time.Now in tests
	memtable uint64           // size of Pebble's memtable in bytes; 0 is 8 MiB
}

func (o *Options) defaults() {
	if o.HistoryAge == 0 {
		o.HistoryAge = DefaultHistoryAge
	}
	if o.HistoryCount == 0 {
		o.HistoryCount = DefaultHistoryCount
	}
	if o.RetainBytes == 0 {
		o.RetainBytes = DefaultRetainBytes
	}
	if o.SizeLimit == 0 {
		o.SizeLimit = DefaultSizeLimit
	}
	if o.MinFree == 0 {
		o.MinFree = DefaultMinFree
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.now == nil {
		o.now = time.Now
	}
	if o.memtable == 0 {
		o.memtable = 8 << 20
	}
}

func (o *Options) validate() error {
	if o.Dir == "" {
		return errors.New("storage: the embedded store needs a folder")
	}
	if o.HistoryAge < 0 {
		return fmt.Errorf("storage: the age of history cannot be negative: %v", o.HistoryAge)
	}
	if o.HistoryCount < 0 {
		return fmt.Errorf("storage: the length of history cannot be negative: %d", o.HistoryCount)
	}
	if o.RetainAge < 0 || o.RetainBytes < 0 {
		return fmt.Errorf("storage: what is kept for history cannot be negative: %v, %d bytes", o.RetainAge, o.RetainBytes)
	}
	return nil
}

// Engine is the embedded store. Of the goroutines that write, one at a time commits for
// all that wait (queue); reads use Pebble iterators directly; a goroutine of its own does
// the housekeeping (keep).
type Engine struct {
	opts Options
	db   *pebble.DB
	fs   *freezer
	lock io.Closer
	// marker keeps the file MARK, by which a start notices what is missing.
	marker *marker
	// damaged holds the names of files that were found damaged and have been logged.
	damaged sync.Map

	queue  queue  // writes that wait to be committed
	feed   feed   // committed revision and recent events, for watchers
	pushes pushes // watchers that are called with every commit
	space  space  // disk usage, for the decision whether a write is admitted

	// compacted is the oldest revision that can be read. Compact raises it before it
	// removes anything. A reader loads it after it has created its Pebble iterator: if
	// its revision is not below compacted then, the iterator misses nothing.
	compacted atomic.Int64
	// floor is the oldest revision whose versions and events are all there: at most
	// compacted, and less only with Options.RetainAge. It is raised before anything is
	// removed, and readers of history load it as other readers load compacted.
	floor atomic.Int64
	base  int64 // the revision at which the store began; set by load
	// retained is how many bytes the changes between floor and counted take. counted is
	// used by the housekeeping goroutine only.
	retained  atomic.Int64
	counted   int64
	leftover  bool          // there is history below floor to be removed; as counted
	compactMu sync.Mutex    // one compaction at a time
	garbage   atomic.Int64  // bytes deleted since the tables were last rewritten (reclaimSpace)
	wake      chan struct{} // capacity 1; makes the housekeeping goroutine run now
	// rests is until when the housekeeping goroutine sleeps unless it is woken, in milliseconds;
	// math.MaxInt64 while it runs: then nobody knows which keys it has seen.
	rests atomic.Int64

	ctx   context.Context // canceled by Close
	stop  context.CancelFunc
	tasks sync.WaitGroup // the goroutine of keep
	calls callGate       // readers and writers inside the database; Close waits for them
}

var _ storage.Backend = (*Engine)(nil)

// Open opens the store in opts.Dir, and makes it if it is not there.
func Open(opts Options) (*Engine, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	opts.defaults()
	e := &Engine{opts: opts, wake: make(chan struct{}, 1)}
	if err := e.openDatabase(func(err error) {
		opts.Logger.Error("storage is read-only: its disk failed", "dir", opts.Dir, "error", err)
	}); err != nil {
		return nil, err
	}
	e.fs.armed.Store(true)
	e.ctx, e.stop = context.WithCancel(context.Background())
	e.tasks.Go(e.keep)
	return e, nil
}

// openDatabase locks the data folder, checks that its files are what was written, and
// opens the database.
func (e *Engine) openDatabase(onFreeze func(error)) (err error) {
	disk := e.opts.fs
	if disk == nil {
		disk = vfs.Default
	}
	if e.lock, err = openFolder(disk, e.opts.Dir); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			if e.fs != nil {
				_, err = e.nameFile(err)
			}
			err = fmt.Errorf("storage: cannot open %s: %w", e.opts.Dir, err)
			if errors.Is(err, ErrDamaged) {
				err = fmt.Errorf("%w; restore a snapshot, or let 'kelson doctor --salvage FOLDER' write what can be read into another folder", err)
			}
			err = errors.Join(err, e.unlock())
		}
	}()
	was, err := readMark(disk, e.opts.Dir)
	if errors.Is(err, errCorrupt) {
		// The mark only says what else must be there, so the data may be whole.
		e.opts.Logger.Error("storage: a file of the data folder is damaged; the store is checked without it", "file", filepath.Join(e.opts.Dir, markFile), "error", err)
		was, err = nil, nil
	}
	if err != nil {
		return err
	}
	if err := checkFiles(disk, e.opts.Dir, was, pebbleOptions(e.opts, disk)); err != nil {
		return err
	}
	if e.marker, err = newMarker(disk, e.opts.Dir, was); err != nil {
		return err
	}
	e.fs = newFreezer(disk, onFreeze)
	e.fs.marker = e.marker
	if e.db, err = pebble.Open(filepath.Join(e.opts.Dir, databaseDir), pebbleOptions(e.opts, e.fs)); err == nil {
		if err = e.loadChecked(was); err != nil {
			err = errors.Join(err, e.db.Close())
		}
	}
	if err != nil {
		return errors.Join(err, e.marker.close(false))
	}
	return nil
}

// loadChecked loads the store, and compares it with its mark.
func (e *Engine) loadChecked(was *mark) error {
	if err := e.load(); err != nil {
		return err
	}
	revision := e.feed.revision()
	if was != nil && revision < was.revision {
		return damaged(filepath.Join(e.opts.Dir, databaseDir), "ends with revision %d, and %d was acknowledged (%s)", revision, was.revision, markFile)
	}
	if was == nil || !was.clean || revision != was.revision {
		if err := e.checkEvents(context.Background(), checkedEvents, checkedVersions); err != nil {
			return err
		}
	}
	e.marker.commit(revision)
	return nil
}

// pebbleOptions tunes the database for a control plane: tens of megabytes of
// memory, a short log to replay, small objects.
func pebbleOptions(opts Options, fs vfs.FS) *pebble.Options {
	o := &pebble.Options{
		FS:                          fs,
		Comparer:                    comparer(),
		FormatMajorVersion:          pebble.FormatValueSeparation,
		CacheSize:                   16 << 20,
		MemTableSize:                opts.memtable,
		MemTableStopWritesThreshold: 3,
		L0CompactionThreshold:       8,
		L0StopWritesThreshold:       1000,
		MaxOpenFiles:                512,
		Logger:                      databaseLog{opts.Logger},
		EventListener:               &pebble.EventListener{},
	}
	o.EventListener.BackgroundError = func(err error) {
		opts.Logger.Warn("storage: background work failed", "error", err)
	}
	// Values are written to files of their own once, and compactions move only
	// the keys.
	o.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		return pebble.ValueSeparationPolicy{
			Enabled:               true,
			MinimumSize:           256,
			MaxBlobReferenceDepth: 32,
			RewriteMinimumAge:     time.Minute,
			TargetGarbageRatio:    0.3,
		}
	}
	// Pebble should not move the values of older versions of a key to blocks of their
	// own.
	o.Experimental.SpanPolicyFunc = func([]byte) (pebble.SpanPolicy, []byte, error) {
		return pebble.SpanPolicy{DisableValueSeparationBySuffix: true}, nil, nil
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		o.Levels[i].BlockSize = blockSize
		// The upper levels are rewritten soon, so they are not compressed.
		if i < len(o.Levels)-1 {
			o.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
		}
	}
	return o
}

// databaseLog is Pebble's logger: it drops info messages and logs errors. Fatalf
// returns instead of ending the process, since the freezer has stopped all writes by
// then.
type databaseLog struct{ *slog.Logger }

func (l databaseLog) Infof(string, ...any) {}
func (l databaseLog) Errorf(format string, args ...any) {
	l.Warn("storage: database", "message", fmt.Sprintf(format, args...))
}
func (l databaseLog) Fatalf(format string, args ...any) {
	l.Error("storage: database", "message", fmt.Sprintf(format, args...))
}

// load reads the base, compaction and newest revisions from the database. What a crash has
// left of a compaction is for removeLeftover.
func (e *Engine) load() error {
	base, err := e.meta(metaBase)
	if errors.Is(err, pebble.ErrNotFound) {
		base = 1
		err = e.db.Set(metaKey(metaBase), metaValue(base), pebble.Sync)
	}
	if err != nil {
		return err
	}
	compacted, err := e.meta(metaCompact)
	if err != nil && !errors.Is(err, pebble.ErrNotFound) {
		return err
	}
	first, last, err := e.eventRange()
	if err != nil {
		return err
	}
	e.base = base
	e.compacted.Store(compacted)
	e.feed.init(max(base, last))
	e.measureDisk()
	if err := e.loadFloor(first); err != nil {
		return err
	}
	e.leftover = first != 0 && first < e.floor.Load()
	return nil
}

func (e *Engine) meta(name string) (int64, error) {
	b, c, err := e.db.Get(metaKey(name))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return parseMeta(b)
}

// eventRange returns the first and the last revision that have an event, or
// zeros.
func (e *Engine) eventRange() (first, last int64, err error) {
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceEvent}, UpperBound: []byte{spaceEvent + 1}})
	if err != nil {
		return 0, 0, err
	}
	defer it.Close()
	if it.First() {
		if first, err = parseEventKey(it.Key()); err != nil {
			return 0, 0, err
		}
		it.Last()
		if last, err = parseEventKey(it.Key()); err != nil {
			return 0, 0, err
		}
	}
	return first, last, it.Error()
}

// Revision implements storage.Backend.
func (e *Engine) Revision(ctx context.Context) (int64, error) {
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.calls.leave()
	return e.feed.revision(), nil
}

// Progress implements storage.Backend.
func (e *Engine) Progress(ctx context.Context) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.calls.leave()
	e.feed.requestProgress()
	return nil
}

// Shared implements storage.Backend: the folder is locked.
func (e *Engine) Shared() bool { return false }

// Status implements storage.Backend.
func (e *Engine) Status(ctx context.Context) (storage.Status, error) {
	if err := e.enter(ctx); err != nil {
		return storage.Status{}, err
	}
	defer e.calls.leave()
	s := storage.Status{
		Engine:          "engine",
		Revision:        e.feed.revision(),
		CompactRevision: e.compacted.Load(),
		SizeBytes:       e.space.size(),
		SizeLimitBytes:  max(0, e.opts.SizeLimit),
	}
	if err := e.fs.Err(); err != nil {
		s.ReadOnly = e.readOnly(err)
	}
	return s, nil
}

// readOnly returns ErrReadOnly with the disk error that is the cause, for writes after
// the disk failed.
func (e *Engine) readOnly(cause error) error {
	return fmt.Errorf("%w: a write to the data folder %s failed (%w); repair the disk or free space on it, then restart",
		storage.ErrReadOnly, e.opts.Dir, cause)
}

// Close implements storage.Backend. It waits for the commit under way and for
// reads under way.
func (e *Engine) Close() error {
	if !e.calls.close() {
		return nil
	}
	e.stop()
	e.feed.close()
	e.tasks.Wait()
	e.calls.wait()
	e.fs.release()
	return errors.Join(e.closeDatabase(), e.unlock())
}

func (e *Engine) unlock() error {
	if e.lock == nil {
		return nil
	}
	return e.lock.Close()
}

func (e *Engine) closeDatabase() (err error) {
	if e.fs.Err() == nil {
		if err = e.db.Close(); err == nil {
			err = e.fs.Err()
		}
		return errors.Join(err, e.marker.close(err == nil))
	}
	// After a disk failure Pebble's Close may fail too. The folder is consistent, and
	// the failure has been logged already.
	_ = e.db.Close()
	_ = e.marker.close(false)
	return nil
}

// enter begins a call that uses the database; leave ends it.
func (e *Engine) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !e.calls.enter() {
		return storage.ErrClosed
	}
	return nil
}

// callGate counts the calls inside the database. After close no call is let in, and
// wait returns when the last one has left.
type callGate struct {
	mu     sync.RWMutex
	closed bool
	inside sync.WaitGroup
}

func (g *callGate) enter() bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.closed {
		return false
	}
	g.inside.Add(1)
	return true
}

func (g *callGate) leave() { g.inside.Done() }

// close reports whether this call was the one that closed the gate.
func (g *callGate) close() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.closed
	g.closed = true
	return !was
}

func (g *callGate) wait() { g.inside.Wait() }
