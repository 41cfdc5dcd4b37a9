package budget

import (
	"sync"
	"sync/atomic"
)

// Shared bounds bytes that users hold for as long as they like, such as those of their
// connections and watches. Nobody waits for them: who gets none is refused.
//
// The more users want, the less each of them gets: a user may hold at most userFactor times
// what is left for all. One user who takes all that there is has four fifths of it, a second
// one four fifths of the rest; what is left is never nothing. A fifth of the limit is kept
// for the lane of administrators, and a tenth for what users cannot do without, such as a
// connection: Take gives it, TakeMore does not.
//
// The zero value gives everything. A Shared must not be copied.
type Shared struct {
	limit int64

	mu     sync.Mutex // for changes
	held   atomic.Int64
	byUser map[string]int64 // those who hold something
}

const (
	// userFactor is how many times what is left a user may hold.
	userFactor = 4
	// takeShare is the part, 1/takeShare, that only Take gives.
	takeShare = 10
)

// Take reports whether a user may hold more bytes. lane says that it is an administrator,
// whom only the limit bounds.
func (s *Shared) Take(user string, bytes int64, lane bool) bool {
	return s.take(user, bytes, lane, s.limit/laneShare)
}

// TakeMore is Take for what a user can do without.
func (s *Shared) TakeMore(user string, bytes int64, lane bool) bool {
	return s.take(user, bytes, lane, s.limit/laneShare+s.limit/takeShare)
}

// take is Take, which leaves so many bytes unless it is an administrator who wants some.
func (s *Shared) take(user string, bytes int64, lane bool, leave int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limit > 0 {
		left := s.limit - s.held.Load() - bytes
		if !lane {
			left -= leave
		}
		if left < 0 || !lane && s.byUser[user]+bytes > userFactor*left {
			return false
		}
	}
	if s.byUser == nil {
		s.byUser = map[string]int64{}
	}
	s.held.Add(bytes)
	s.byUser[user] += bytes
	return true
}

// Return gives back bytes that Take or TakeMore has given to a user.
func (s *Shared) Return(user string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held.Add(-bytes)
	if s.byUser[user] -= bytes; s.byUser[user] == 0 {
		delete(s.byUser, user)
	}
}

// Held returns how many bytes are held.
func (s *Shared) Held() int64 { return s.held.Load() }
