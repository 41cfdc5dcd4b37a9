package store

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/storage"
)

// objectBudget bounds the memory that the caches need to find, order and select objects, however
// few of their values are in memory. It grows with the number of objects, so creates are
// refused when it is full.
type objectBudget struct {
	limit    int64 // bytes; 0 is no limit
	held     atomic.Int64
	measured atomic.Int64 // when, in nanoseconds since 1970
}

const (
	// measureInterval is how long a measurement is used.
	measureInterval = 100 * time.Millisecond
	// objectMemory is what an object takes without its value, with a key and labels of usual
	// length.
	objectMemory = 304
)

// mayGrow returns ErrNoSpace if there is no memory for one more object.
func (s *Store) mayGrow() error {
	x := &s.objects
	if x.limit == 0 {
		return nil
	}
	now, measured := time.Now().UnixNano(), x.measured.Load()
	if now-measured >= int64(measureInterval) && x.measured.CompareAndSwap(measured, now) {
		x.held.Store(s.objectBytes())
		s.values.Yield(x.held.Load() - x.limit/2)
	}
	if held := x.held.Load(); held >= x.limit {
		return fmt.Errorf("%w: the objects take %d MiB of memory, and %d are set aside for them; delete objects or raise the memory limit of the server",
			storage.ErrNoSpace, held>>20, x.limit>>20)
	}
	return nil
}

// objectBytes returns about how many bytes of memory the objects take that cannot leave it.
func (s *Store) objectBytes() (bytes int64) {
	for _, r := range s.all() {
		r.mu.Lock()
		if r.tree != nil {
			bytes += int64(r.tree.Len()) * objectMemory
		}
		r.mu.Unlock()
	}
	if s.values == nil { // then they are in memory, too
		if status, err := s.backend.Status(s.ctx); err == nil {
			bytes += status.SizeBytes
		}
	}
	return bytes
}
