package etcd

import (
	"context"
	"sync"

	"github.com/apikeel/kelson/storage"
)

// revisionReader shares one request between concurrent callers that ask for the current
// revision.
//
// Invariant: a caller's answer comes from a request that started after the call. One
// request runs at a time; callers that arrive meanwhile share the next.
type revisionReader struct {
	ctx   context.Context
	spawn func(func()) bool // false: the backend is closed
	read  func(context.Context) (int64, error)

	mu      sync.Mutex
	running *revisionRequest
	next    *revisionRequest // nil unless a caller waits for it
}

type revisionRequest struct {
	done     chan struct{} // closed when revision and err are set
	revision int64
	err      error

	// Both under revisionReader.mu: the number of callers that wait, and, once the
	// request runs, the function that cancels it when callers is zero.
	callers int
	cancel  context.CancelFunc
}

// newRevisionReader returns a reader whose requests end with ctx and run in
// goroutines that spawn starts.
func newRevisionReader(ctx context.Context, spawn func(func()) bool, read func(context.Context) (int64, error)) *revisionReader {
	return &revisionReader{ctx: ctx, spawn: spawn, read: read}
}

func (r *revisionReader) get(ctx context.Context) (int64, error) {
	r.mu.Lock()
	if r.next == nil {
		r.next = &revisionRequest{done: make(chan struct{})}
	}
	req := r.next
	req.callers++
	r.startNext()
	r.mu.Unlock()

	select {
	case <-req.done:
		return req.revision, req.err
	case <-ctx.Done():
		r.leave(req)
		return 0, ctx.Err()
	}
}

// startNext starts the next request, if there is one and none is running. The caller
// holds mu.
func (r *revisionReader) startNext() {
	if r.running != nil || r.next == nil {
		return
	}
	req := r.next
	r.running, r.next = req, nil
	var ctx context.Context
	ctx, req.cancel = context.WithCancel(r.ctx)
	started := r.spawn(func() {
		defer req.cancel()
		req.revision, req.err = r.read(ctx)
		close(req.done)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.running = nil
		r.startNext()
	})
	if !started {
		req.cancel()
		req.err = storage.ErrClosed
		close(req.done)
		r.running = nil
	}
}

func (r *revisionReader) leave(req *revisionRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	req.callers--
	switch {
	case req.callers > 0:
	case r.next == req:
		r.next = nil
	default:
		req.cancel()
	}
}
