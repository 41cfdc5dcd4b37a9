package etcd

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// revisionScript is a store whose requests the test lets go one at a time.
type revisionScript struct {
	started chan struct{} // a request has started
	answer  chan int64
}

func newRevisionScript(t *testing.T) (*revisionScript, *revisionReader) {
	s := &revisionScript{started: make(chan struct{}), answer: make(chan int64)}
	var tasks sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		tasks.Wait()
	})
	spawn := func(f func()) bool {
		tasks.Go(f)
		return true
	}
	return s, newRevisionReader(ctx, spawn, func(ctx context.Context) (int64, error) {
		select {
		case s.started <- struct{}{}:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		select {
		case revision := <-s.answer:
			return revision, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	})
}

// waitForCallers waits until n callers wait for the next request.
func (r *revisionReader) waitForCallers(n int) {
	for {
		r.mu.Lock()
		ok := (r.next == nil && n == 0) || (r.next != nil && r.next.callers == n)
		r.mu.Unlock()
		if ok {
			return
		}
		runtime.Gosched()
	}
}

func TestRevisionIsShared(t *testing.T) {
	s, r := newRevisionScript(t)
	get := func(into chan<- int64) {
		revision, err := r.get(t.Context())
		if err != nil {
			t.Error(err)
		}
		into <- revision
	}
	early, late := make(chan int64), make(chan int64)
	go get(early)
	<-s.started
	// These came after the request had started: its answer is not for them.
	for range 10 {
		go get(late)
	}
	r.waitForCallers(10)
	s.answer <- 5
	if got := <-early; got != 5 {
		t.Errorf("first caller got %d", got)
	}
	<-s.started
	s.answer <- 7
	for range 10 {
		if got := <-late; got != 7 {
			t.Errorf("later caller got %d", got)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next != nil {
		t.Error("a request is waiting that nobody asked for")
	}
}

func TestRevisionCallersMayLeave(t *testing.T) {
	s, r := newRevisionScript(t)
	call := func() (context.CancelFunc, chan error) {
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := r.get(ctx)
			result <- err
		}()
		return cancel, result
	}
	leave, left := call()
	<-s.started
	leaveNext, leftNext := call()
	r.waitForCallers(1)
	leaveNext()
	if err := <-leftNext; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	r.waitForCallers(0)

	stay, stayed := call()
	defer stay()
	r.waitForCallers(1)
	// Nobody waits for the first request any more, so it makes way.
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-s.started
	s.answer <- 3
	if err := <-stayed; err != nil {
		t.Error(err)
	}
}

// hangingRevisions is a store of which some requests never end.
type hangingRevisions struct {
	mu       sync.Mutex
	requests int
	hang     func(n int) bool // whether the nth request, from 0, hangs
}

func (h *hangingRevisions) read(ctx context.Context) (int64, error) {
	h.mu.Lock()
	n := h.requests
	h.requests++
	h.mu.Unlock()
	if h.hang(n) {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return int64(n), nil
}

// runHanging runs a test on such a store, in a bubble with a clock of its own.
func runHanging(t *testing.T, hang func(n int) bool, test func(t *testing.T, h *hangingRevisions, r *revisionReader)) {
	synctest.Test(t, func(t *testing.T) {
		h := &hangingRevisions{hang: hang}
		ctx, cancel := context.WithCancel(t.Context())
		var tasks sync.WaitGroup
		test(t, h, newRevisionReader(ctx, func(f func()) bool { tasks.Go(f); return true }, h.read))
		cancel()
		tasks.Wait()
	})
}

// A request that never ends holds nobody up: who waits for it, and who comes later, is
// answered by another one.
func TestRevisionRequestThatNeverEnds(t *testing.T) {
	runHanging(t, func(n int) bool { return n == 0 }, func(t *testing.T, h *hangingRevisions, r *revisionReader) {
		began := time.Now()
		var callers sync.WaitGroup
		for i := range 20 {
			callers.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
				revision, err := r.get(t.Context())
				if err != nil || revision == 0 {
					t.Errorf("caller %d: got %d, %v, want a revision of a later request", i, revision, err)
				}
			})
		}
		callers.Wait()
		if took := time.Since(began); took > 2*revisionPatience {
			t.Errorf("the last of the callers waited until %v, want at most %v", took, 2*revisionPatience)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.running) != 0 || r.next != nil {
			t.Errorf("got %d requests running, next %v, want none", len(r.running), r.next)
		}
	})
}

// Requests are bounded if none is answered, and end when nobody waits for them.
func TestRevisionRequestsAreBounded(t *testing.T) {
	runHanging(t, func(int) bool { return true }, func(t *testing.T, h *hangingRevisions, r *revisionReader) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var callers sync.WaitGroup
		for range 10 {
			callers.Go(func() {
				if _, err := r.get(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v, want to wait", err)
				}
			})
		}
		callers.Wait()
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if h.requests != maxRevisionRequests || len(r.running) != 0 {
			t.Errorf("got %d requests, %d of them still running, want %d and none", h.requests, len(r.running), maxRevisionRequests)
		}
	})
}

// A caller is never answered by a request that began before it called, though others that
// wait are.
func TestRevisionIsNotOlderThanCall(t *testing.T) {
	runHanging(t, func(n int) bool { return n == 0 || n == 2 }, func(t *testing.T, h *hangingRevisions, r *revisionReader) {
		first, second := make(chan int64, 1), make(chan int64, 1)
		get := func(into chan<- int64) {
			revision, err := r.get(t.Context())
			if err != nil {
				t.Error(err)
			}
			into <- revision
		}
		go get(first)
		time.Sleep(revisionPatience + time.Millisecond) // request 1 has answered for request 0
		if got := <-first; got != 1 {
			t.Errorf("first caller got %d, want 1", got)
		}
		go get(second) // request 2 hangs, request 3 answers
		if got := <-second; got != 3 {
			t.Errorf("second caller got %d, want 3", got)
		}
	})
}

// TestRevisionWithoutAnyAnswer has callers come one after the other while every request
// fails: each gets an error, not a newer request again and again.
func TestRevisionWithoutAnyAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes, callers = 2 * time.Second, 100
		unreachable := errors.New("unreachable")
		var tasks sync.WaitGroup
		spawn := func(f func()) bool {
			tasks.Go(f)
			return true
		}
		r := newRevisionReader(t.Context(), spawn, func(ctx context.Context) (int64, error) {
			select {
			case <-time.After(takes):
				return 0, unreachable
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		})
		var waiting sync.WaitGroup
		for range callers {
			waiting.Go(func() {
				began := time.Now()
				_, err := r.get(t.Context())
				// A request may be running already, which is none of the caller's.
				if took := time.Since(began); !errors.Is(err, unreachable) || took > 3*takes {
					t.Errorf("got %v after %v, want %v after at most %v", err, took, unreachable, 3*takes)
				}
			})
			time.Sleep(revisionPatience)
		}
		waiting.Wait()
		tasks.Wait()
		if len(r.running) > 0 || r.next != nil || r.waiting() != 0 {
			t.Errorf("%d requests and %d callers are left", len(r.running), r.waiting())
		}
	})
}
