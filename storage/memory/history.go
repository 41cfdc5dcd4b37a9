package memory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/apikeel/kelson/storage"
)

// marksPerAge is how often within HistoryAge it is noted which revision was
// reached, so that history is at most that part of it too long.
const marksPerAge = 10

// Compact implements storage.Backend.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if revision <= s.compacted {
		return fmt.Errorf("%w: history before %d is gone already", storage.ErrCompacted, s.compacted)
	}
	if revision > s.revision {
		return fmt.Errorf("%w: cannot compact to %d, the newest is %d", storage.ErrFutureRevision, revision, s.revision)
	}
	s.compact(revision)
	return nil
}

// compact drops the events before a revision, and what they replaced. The lock is
// held.
func (s *Store) compact(revision int64) {
	s.compacted = revision
	first := s.revision - int64(len(s.log)) + 1
	drop := int(revision - first)
	if drop <= 0 {
		return
	}
	for _, v := range s.log[:drop] {
		// Whoever reads at the revision or later finds v or a newer one.
		if v.older != nil {
			s.bytes -= v.older.size()
			v.older = nil
		}
		if cur, ok := s.newest.Get(v.key); v.deleted && ok && cur == v {
			s.bytes -= v.size()
			s.newest.Delete(v.key)
		}
	}
	// The rest moves to a slice of its size: the dropped part would stay in memory.
	s.log = slices.Clone(s.log[drop:])
}

// scheduleTrim sees to it that history does not grow older than it should. The lock
// is held.
func (s *Store) scheduleTrim() {
	if s.trimmer == nil && !s.closed {
		s.trimmer = time.AfterFunc(max(s.opts.HistoryAge/marksPerAge, time.Millisecond), s.trim)
	}
}

// trim notes where the store is, compacts to where it was HistoryAge ago, and comes
// again as long as there is something to trim.
func (s *Store) trim() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trimmer = nil
	if s.closed {
		return
	}
	now := time.Now()
	s.marks = append(s.marks, mark{at: now, revision: s.revision})
	for len(s.marks) > 0 && now.Sub(s.marks[0].at) >= s.opts.HistoryAge {
		if r := s.marks[0].revision; r > s.compacted {
			s.compact(r)
		}
		s.marks = s.marks[1:]
	}
	if s.compacted < s.revision {
		s.scheduleTrim()
	} else {
		s.marks = nil
	}
}

// expiries are the newest versions of the keys that expire, as a heap. Each version
// knows its place, so that it goes when it is replaced: a key that is written again
// and again must not leave a value behind each time.
type expiries []*version

func (e expiries) Len() int           { return len(e) }
func (e expiries) Less(i, j int) bool { return e[i].expires < e[j].expires }

// Swap implements heap.Interface.
func (e expiries) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].due, e[j].due = int32(i), int32(j)
}

// Push implements heap.Interface.
func (e *expiries) Push(x any) {
	v := x.(*version)
	v.due = int32(len(*e))
	*e = append(*e, v)
}

// Pop implements heap.Interface.
func (e *expiries) Pop() any {
	old := *e
	v := old[len(old)-1]
	old[len(old)-1] = nil
	*e = old[:len(old)-1]
	return v
}

// scheduleExpiry sets the timer to when the next key expires. The lock is held.
func (s *Store) scheduleExpiry() {
	if len(s.expiring) == 0 || s.closed {
		return
	}
	wait := time.Until(time.Unix(0, s.expiring[0].expires))
	if s.expirer == nil {
		s.expirer = time.AfterFunc(wait, s.expire)
	} else {
		s.expirer.Reset(wait)
	}
}

// expire deletes the keys whose time has come.
func (s *Store) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	for now := time.Now().UnixNano(); len(s.expiring) > 0 && s.expiring[0].expires <= now; {
		s.remove(s.expiring[0].key) // which takes it from the heap
	}
	s.scheduleExpiry()
}
