package etcd

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
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
