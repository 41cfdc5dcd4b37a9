package engine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// errFrozen is returned to Pebble's background work after the disk has failed.
var errFrozen = errors.New("storage: disk failed earlier")

// freezer is a file system that stops changing the disk at the first failed
// change, as if the process had been killed there.
//
// The database above it answers a failed write of its log with a panic, and a
// failed write of its manifest with the end of the process: sound, but a
// server that can still read should go on reading. So the first error freezes
// the disk, and the database goes on in the belief that all is well:
//
//   - Changes of logs, manifests and folders are dropped and reported as done.
//   - A table in the making is moved to memory and finished there; so are new
//     tables of a flush. What was in the database's memory stays readable, and
//     no writer hangs in it. They are bounded by the size of the memtables, as
//     nothing more is committed.
//   - New tables of a compaction wait until the engine is closed, and fail.
//   - Nothing is removed.
//
// A commit asks Err after its sync, before anything is acknowledged,
// so nothing that was dropped is ever acknowledged. The disk is left as a crash
// at that moment would leave it, and a restart recovers in the ordinary way.
type freezer struct {
	vfs.FS
	// armed is set once the database is open. Before that, errors go to
	// whoever opens it.
	armed    atomic.Bool
	cause    atomic.Pointer[error]
	released chan struct{}
	release  func()
	// onFreeze is called once, with the error that froze the disk.
	onFreeze func(error)

	// apart is the folder of a checkpoint in the making; nil if there is none. A failure
	// there does not freeze the disk: the checkpoint fails, and the store goes on.
	apart   atomic.Pointer[string]
	apartMu sync.Mutex // held while a checkpoint is made

	// marker is told of what is synced of logs and manifests; nil if there is no mark.
	marker *marker

	memory *vfs.MemFS // file system of the tables created after the freeze
	mu     sync.Mutex
	inMem  map[string]bool
}

func newFreezer(fs vfs.FS, onFreeze func(error)) *freezer {
	f := &freezer{FS: fs, released: make(chan struct{}), onFreeze: onFreeze, memory: vfs.NewMem(), inMem: map[string]bool{}}
	f.release = sync.OnceFunc(func() { close(f.released) })
	return f
}

// Err returns the error that froze the disk, or nil.
func (f *freezer) Err() error {
	if p := f.cause.Load(); p != nil {
		return *p
	}
	return nil
}

// freeze records the first failure.
func (f *freezer) freeze(op, name string, err error) {
	err = fmt.Errorf("%s %s: %w", op, name, err)
	if f.cause.CompareAndSwap(nil, &err) {
		f.onFreeze(err)
	}
}

// setApart begins a checkpoint in a folder, of which there is one at a time; the function
// that it returns ends it.
func (f *freezer) setApart(dir string) (end func()) {
	f.apartMu.Lock()
	f.apart.Store(&dir)
	return func() {
		f.apart.Store(nil)
		f.apartMu.Unlock()
	}
}

// isApart reports whether a file or folder belongs to a checkpoint in the making.
func (f *freezer) isApart(name string) bool {
	dir := f.apart.Load()
	return dir != nil && (name == *dir || strings.HasPrefix(name, *dir+string(os.PathSeparator)))
}

// isTable reports whether a file holds data (tables and blobs). Other files, logs and
// manifests, only refer to them.
func isTable(name string) bool {
	return strings.HasSuffix(name, tableSuffix) || strings.HasSuffix(name, blobSuffix)
}

// change runs a change of the disk. If it or an earlier one failed, it returns
// errFrozen for a table; for everything else the change counts as done.
func (f *freezer) change(op, name string, do func() error) error {
	if f.isApart(name) {
		return do()
	}
	if f.Err() == nil {
		err := do()
		if err == nil || !f.armed.Load() || errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrExist) {
			return err
		}
		f.freeze(op, name, err)
	}
	if isTable(name) {
		return errFrozen
	}
	return nil
}

// file creates or opens a file for writing with make; on a frozen disk it creates a
// table in memory instead.
func (f *freezer) file(op, name string, c vfs.DiskWriteCategory, make func() (vfs.File, error)) (vfs.File, error) {
	if f.isApart(name) {
		return make()
	}
	var file vfs.File
	err := f.change(op, name, func() (err error) {
		file, err = make()
		return err
	})
	switch {
	case err == nil && file != nil:
		return &frozenFile{File: file, fs: f, name: name, tally: f.marker.follow(name)}, nil
	case f.Err() == nil:
		return nil, err
	case isTable(name) && c != "pebble-memtable-flush":
		<-f.released
		return nil, errFrozen
	}
	return f.inMemory(name)
}

// inMemory creates a file in the in-memory file system.
func (f *freezer) inMemory(name string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.memory.MkdirAll(f.PathDir(name), 0o700); err != nil {
		return nil, err
	}
	f.inMem[name] = true
	return f.memory.Create(name, vfs.WriteCategoryUnspecified)
}

// where returns the file system that holds a file: the disk, or memory for a table
// created after the freeze.
func (f *freezer) where(name string) vfs.FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inMem[name] {
		return f.memory
	}
	return f.FS
}

func (f *freezer) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.file("create", name, c, func() (vfs.File, error) { return f.FS.Create(name, c) })
}

func (f *freezer) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.file("open", name, c, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, c, opts...) })
}

func (f *freezer) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.file("reuse", newname, c, func() (vfs.File, error) { return f.FS.ReuseForWrite(oldname, newname, c) })
}

func (f *freezer) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.where(name).Open(name, opts...)
	if err != nil {
		return nil, err
	}
	if err := checkBlob(name, file); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func (f *freezer) Stat(name string) (vfs.FileInfo, error) { return f.where(name).Stat(name) }

func (f *freezer) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	if err != nil || f.isApart(name) {
		return file, err
	}
	return &frozenFile{File: file, fs: f, name: name}, nil
}

func (f *freezer) Link(oldname, newname string) error {
	return f.change("link", newname, func() error { return f.FS.Link(oldname, newname) })
}

func (f *freezer) Rename(oldname, newname string) error {
	return f.change("rename", newname, func() error { return f.FS.Rename(oldname, newname) })
}

func (f *freezer) MkdirAll(dir string, perm os.FileMode) error {
	return f.change("mkdir", dir, func() error { return f.FS.MkdirAll(dir, perm) })
}

// Remove never freezes: a file that cannot be removed does no harm. But a
// frozen disk keeps its files, since some that look obsolete in memory are
// still needed by the state on disk.
func (f *freezer) Remove(name string) error {
	if f.Err() != nil {
		return nil
	}
	return f.FS.Remove(name)
}

func (f *freezer) RemoveAll(name string) error {
	if f.Err() != nil {
		return nil
	}
	return f.FS.RemoveAll(name)
}

func (f *freezer) Unwrap() vfs.FS { return f.FS }

// frozenFile is a file of a freezer, opened for writing.
type frozenFile struct {
	vfs.File
	fs      *freezer
	name    string
	written int64 // bytes on disk, for files that are only appended to
	moved   bool  // File is in memory
	tally   *tally
}

// change runs a change of the file, and once more in memory if it is a table
// and the disk has failed.
func (f *frozenFile) change(op string, do func() error) error {
	if f.moved {
		return do()
	}
	err := f.fs.change(op, f.name, do)
	if err != errFrozen {
		return err
	}
	if err := f.move(); err != nil {
		return err
	}
	return do()
}

// move copies the part of the file that is on disk to memory and continues the file
// there.
func (f *frozenFile) move() error {
	r, err := f.fs.FS.Open(f.name)
	if err != nil {
		return err
	}
	defer r.Close()
	m, err := f.fs.inMemory(f.name)
	if err != nil {
		return err
	}
	if _, err := io.Copy(m, io.LimitReader(r, f.written)); err != nil {
		return err
	}
	f.File.Close()
	f.File, f.moved = m, true
	return nil
}

func (f *frozenFile) Write(p []byte) (int, error) {
	f.tally.write(p) // before, as a file may change p
	if err := f.change("write", func() error { _, err := f.File.Write(p); return err }); err != nil {
		return 0, err
	}
	f.written += int64(len(p))
	return len(p), nil
}

func (f *frozenFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.change("write", func() error { _, err := f.File.WriteAt(p, off); return err }); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (f *frozenFile) Sync() error { return f.sync(func() error { return f.File.Sync() }) }

func (f *frozenFile) SyncData() error { return f.sync(func() error { return f.File.SyncData() }) }

// sync syncs the file. What was only said to be synced, on a frozen disk, is not noted.
func (f *frozenFile) sync(do func() error) error {
	return f.tally.sync(func() error { return f.change("sync", do) }, f.fs)
}

func (f *frozenFile) SyncTo(length int64) (full bool, err error) {
	err = f.change("sync", func() (err error) { full, err = f.File.SyncTo(length); return err })
	return full, err
}

// Preallocate is advice; its failure is not a failed write.
func (f *frozenFile) Preallocate(offset, length int64) error {
	if f.fs.Err() == nil {
		_ = f.File.Preallocate(offset, length)
	}
	return nil
}

// Close always closes: what has been written stays readable.
func (f *frozenFile) Close() error {
	err := f.File.Close()
	if err != nil && f.fs.armed.Load() {
		f.fs.freeze("close", f.name, err)
		return nil
	}
	return err
}

var (
	_ vfs.FS   = (*freezer)(nil)
	_ vfs.File = (*frozenFile)(nil)
)
