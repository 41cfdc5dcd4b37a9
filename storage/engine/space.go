package engine

import (
	"fmt"
	"sync/atomic"

	"github.com/apikeel/kelson/storage"
)

// spaceEvery is how many bytes are written before the keeper looks at the disk
// again.
const spaceEvery = 4 << 20

// space knows whether there is room for a write. The keeper looks at the disk,
// the committer asks.
type space struct {
	used    atomic.Int64 // by the store, when last looked at
	free    atomic.Int64 // on the disk, when last looked at; -1 if unknown
	written atomic.Int64 // since then
}

// lookAtDisk brings what is known of space up to date.
func (e *Engine) lookAtDisk() {
	e.space.written.Store(0)
	m := e.db.Metrics()
	// After a reopen the database leaves the files of separated values out of
	// its sum until it has touched them.
	used := m.DiskSpaceUsage() + m.BlobFiles.LiveSize - min(m.BlobFiles.LiveSize, m.BlobFiles.Local.LiveSize)
	e.space.used.Store(int64(used))
	e.space.free.Store(-1)
	if !e.opts.memory() {
		if u, err := e.fs.GetDiskUsage(e.opts.Dir); err == nil {
			e.space.free.Store(int64(u.AvailBytes))
		}
	}
}

// wrote counts what a commit has added, and reports whether it is time to look
// again.
func (s *space) wrote(n int) bool {
	sum := s.written.Add(int64(n))
	return sum > spaceEvery && sum-int64(n) <= spaceEvery
}

// size is what the store takes, as far as known.
func (s *space) size() int64 { return s.used.Load() + s.written.Load() }

// admit returns an error if there is no room for a write of this kind. Deletes
// are always let in. Updates pass the size limit, since taking a finalizer
// away, and so every orderly deletion, is an update; they do not pass the end
// of the disk.
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
