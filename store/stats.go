package store

import (
	"sync/atomic"

	"github.com/apikeel/kelson/resource"
)

// counts are what a cache has done. They are guarded by the mutex of the resource,
// but for those that are atomic.
type counts struct {
	received, loads        int64
	initial, reads, failed atomic.Int64
}

// consistent counts a read that was to see everything.
func (c *counts) consistent(ok bool) {
	if ok {
		c.reads.Add(1)
	} else {
		c.failed.Add(1)
	}
}

// CacheStats is what the cache of a resource has done since it was first used.
type CacheStats struct {
	// Received counts events from the backend, which watchers get.
	Received int64
	// Loads is how often the cache was filled.
	Loads int64
	// Initial counts objects that watchers have got because they were there.
	Initial int64
	// Consistent counts lists that were to see everything acknowledged before, and
	// Failed those among them that did not.
	Consistent, Failed int64
	// Capacity is how many events are kept at most.
	Capacity int
	// Revision is how far the cache has come.
	Revision int64
}

// Caches calls yield for each resource of this store that has been loaded.
func (s *Store) Caches(yield func(def *resource.Definition, c CacheStats)) {
	revision := s.position.Load()
	for _, r := range s.all() {
		r.mu.Lock()
		c := CacheStats{
			Received: r.counts.received, Loads: r.counts.loads, Initial: r.counts.initial.Load(),
			Consistent: r.counts.reads.Load(), Failed: r.counts.failed.Load(), Capacity: logEntries,
			Revision: revision,
		}
		r.mu.Unlock()
		if c.Loads > 0 {
			yield(r.def, c)
		}
	}
}

// sampled is how many objects tell how large the others are.
const sampled = 8

// Stats returns how many objects are in the cache, and about how many bytes each
// of them has. Before the cache is loaded there are none.
func (r *Resource) Stats() (count, averageBytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != isLoaded || r.tree == nil || r.tree.Len() == 0 {
		return 0, 0
	}
	var seen, bytes int64
	r.tree.All(func(rec *Record) bool {
		bytes += int64(rec.StoredSize())
		seen++
		return seen < sampled
	})
	return int64(r.tree.Len()), bytes / seen
}
