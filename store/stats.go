package store

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
	r.tree.Ascend(func(rec *Record) bool {
		bytes += int64(len(rec.Stored))
		seen++
		return seen < sampled
	})
	return int64(r.tree.Len()), bytes / seen
}
