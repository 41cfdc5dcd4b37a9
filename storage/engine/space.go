package engine

import (
	"fmt"
	"sync/atomic"

	"github.com/apikeel/kelson/storage"
)

// spaceEvery is how many bytes are written between two looks at the disk.
const spaceEvery = 4 << 20

// space is the disk usage that decides whether a write is admitted. The housekeeping
// goroutine measures it (measureDisk); a commit reads it and adds what it writes.
type space struct {
	used    atomic.Int64 // bytes of the store, as last measured
	free    atomic.Int64 // bytes free on the disk, as last measured; -1 if unknown
	written atomic.Int64 // bytes written since the measurement
}

// measureDisk measures the size of the store and the free space of the disk.
func (e *Engine) measureDisk() {
	e.space.written.Store(0)
	m := e.db.Metrics()
	// After a reopen Pebble leaves the blob files out of DiskSpaceUsage until it has
	// opened them.
	used := m.DiskSpaceUsage() + m.BlobFiles.LiveSize - min(m.BlobFiles.LiveSize, m.BlobFiles.Local.LiveSize)
	// Of the log that is being written it counts the size that it was opened with.
	used += max(m.WAL.Size, m.WAL.PhysicalSize) - m.WAL.PhysicalSize
	e.space.used.Store(int64(used))
	e.space.free.Store(-1)
	if u, err := e.fs.GetDiskUsage(e.opts.Dir); err == nil {
		e.space.free.Store(int64(u.AvailBytes))
	}
}

// wrote adds the bytes of a commit, and reports whether the disk should be measured
// again.
func (s *space) wrote(n int) bool {
	sum := s.written.Add(int64(n))
	return sum > spaceEvery && sum-int64(n) <= spaceEvery
}

// size is the estimated size of the store in bytes.
func (s *space) size() int64 { return s.used.Load() + s.written.Load() }

// admit returns ErrNoSpace if there is no room for a write of this kind. Deletes are
// always admitted. Updates are admitted above the size limit, since removing a
// finalizer, which every graceful deletion needs, is an update; they are refused only
// when the disk is nearly full.
func (e *Engine) admit(op storage.Op) error {
	if op == storage.Deleted {
		return nil
	}
	if limit, free := e.opts.MinFree, e.space.free.Load(); limit > 0 && free >= 0 && free-e.space.written.Load() < limit {
		return fmt.Errorf("%w: the disk of %s has %d MiB left, %d MiB are kept in reserve; free some space",
			storage.ErrNoSpace, e.opts.Dir, free>>20, limit>>20)
	}
	if limit, size := e.opts.SizeLimit, e.space.size(); op == storage.Created && limit > 0 && size > limit {
		return fmt.Errorf("%w: the store has %d MiB, its limit is %d MiB; delete objects or raise the limit",
			storage.ErrNoSpace, size>>20, limit>>20)
	}
	return nil
}
