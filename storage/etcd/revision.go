package etcd

import (
	"context"
	"sync"

	"github.com/apikeel/kelson/storage"
)

// revisionReader lets callers that ask for the revision at the same time share
// a request.
//
// Invariant: the answer that a caller gets comes from a request which started
// after the caller had come. One request runs at a time; whoever comes while it
// does waits for the next.
type revisionReader struct {
	ctx   context.Context
	spawn func(func()) bool // false: closed
	read  func(context.Context) (int64, error)

	mu      sync.Mutex
	running *revisionRequest
	next    *revisionRequest // nil unless somebody waits for it
}

type revisionRequest struct {
	done     chan struct{} // closed when revision and err are set
	revision int64
	err      error

	// Under revisionReader.mu: how many wait, and once it runs, what ends it
	// when nobody does any more.
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

// startNext starts the request that callers wait for, if there is one and none
// is running. The mutex is held.
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
