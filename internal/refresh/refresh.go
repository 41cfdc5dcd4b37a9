// Package refresh fetches something that many callers need, such as the keys of an issuer:
// one fetch at a time, which does not end with the context of a caller, and which nobody
// waits for longer than its own context. Start at Shared. It never lets more than MaxWaiting
// callers wait: strangers may cause fetches, and what they sent stays in memory until then.
package refresh

import (
	"context"
	"sync"
	"time"

	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/request"
)

// MaxWaiting is the largest number of callers that wait for a fetch.
const MaxWaiting = 64

// Shared is a fetch that callers share. The fields above mu are set before its first use.
type Shared struct {
	// Fetch must end soon after its context.
	Fetch   func(ctx context.Context) error
	Timeout time.Duration // of a fetch
	// Retry is how long after the end of a failed fetch callers cause no other and get its
	// error. Again is the time between the end of a successful fetch and the next: callers
	// wait for that one, since they may need what is newer.
	Retry, Again time.Duration
	// Life ends the fetch in progress, and all later ones.
	Life context.Context
	Now  func() time.Time

	mu      sync.Mutex    // guards the fields below; never held during a fetch
	running chan struct{} // closed at the end of the fetch in progress; nil if there is none
	waiting int           // callers that wait for the fetch in progress
	next    time.Time     // no fetch begins before, unless by force
	err     error         // of the last fetch
}

// Begin begins a fetch, unless there is one or the last one was just now. It does not wait.
func (s *Shared) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.pausesLocked() {
		s.beginLocked(s.next)
	}
}

// pausesLocked reports whether callers cause no fetch, since the last one failed just now.
func (s *Shared) pausesLocked() bool {
	return s.running == nil && s.err != nil && s.Now().Before(s.next)
}

// Wait waits for the fetch in progress, and begins one if there is none. It returns the
// error of the fetch; if the last one failed just now, its error, at once.
func (s *Shared) Wait(ctx context.Context) error {
	s.mu.Lock()
	if s.pausesLocked() {
		defer s.mu.Unlock()
		return s.err
	}
	s.beginLocked(s.next)
	if s.waiting >= MaxWaiting {
		s.mu.Unlock()
		return request.ErrBusy
	}
	return s.waitLocked(ctx)
}

// Force is Wait without regard to when the last fetch was, and to how many wait: for who asks
// periodically.
func (s *Shared) Force(ctx context.Context) error {
	s.mu.Lock()
	s.beginLocked(time.Time{})
	return s.waitLocked(ctx)
}

// Failed returns the error of the last fetch, nil if it succeeded or there was none.
func (s *Shared) Failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// waitLocked waits for the fetch in progress. It unlocks mu.
func (s *Shared) waitLocked(ctx context.Context) error {
	s.waiting++
	running := s.running
	s.mu.Unlock()
	request.EndArrival(ctx)
	select {
	case <-running:
		return s.Failed()
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.running == running {
			s.waiting--
		}
		return ctx.Err()
	}
}

// beginLocked begins a fetch unless there is one, at once or at a time that is near. It ends
// with its timeout or with Life.
func (s *Shared) beginLocked(at time.Time) {
	if s.running != nil {
		return
	}
	s.running, s.waiting = make(chan struct{}), 0
	pause := at.Sub(s.Now())
	go func() {
		if pause > 0 {
			select {
			case <-time.After(pause):
			case <-s.Life.Done(): // Fetch will say so
			}
		}
		ctx, cancel := context.WithTimeout(s.Life, s.Timeout)
		defer cancel()
		err := protect.Call(func() error { return s.Fetch(ctx) })
		s.mu.Lock()
		defer s.mu.Unlock()
		s.err, s.next = err, s.Now().Add(s.Again)
		if err != nil {
			s.next = s.Now().Add(s.Retry)
		}
		close(s.running)
		s.running = nil
	}()
}
