package etcd

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/apikeel/kelson/storage"
)

const (
	// revisionPatience is how long the newest request for the revision may take before
	// another one is sent beside it.
	revisionPatience = 100 * time.Millisecond
	// maxRevisionRequests bounds the requests in flight.
	maxRevisionRequests = 4
)

// revisionReader shares requests for the current revision between concurrent callers.
//
// Invariant: a caller's answer comes from a request that started after the call. As a
// rule one request runs at a time, and callers that arrive meanwhile share the next. A
// request that takes longer than patience is joined by another one, which most likely
// goes to another member: its answer is good for all who called before it started, so
// one member that does not answer holds up nobody for long.
type revisionReader struct {
	ctx      context.Context
	spawn    func(func()) bool // false: the backend is closed
	read     func(context.Context) (int64, error)
	patience time.Duration

	mu      sync.Mutex
	running []*revisionRequest // in the order in which they started
	next    *revisionRequest   // nil unless a caller waits for it
}

type revisionRequest struct {
	// done is closed when revision and err are set. If a newer request was running when
	// this one failed, it is the successor, which answers for it. A caller goes on to one
	// successor only: while no member answers, each request that fails has a newer one.
	done      chan struct{}
	revision  int64
	err       error
	successor *revisionRequest

	// These are under revisionReader.mu: the number of callers that wait, and, once the
	// request runs, the function that cancels it, the timer of its patience, and whether
	// that is over.
	callers int
	cancel  context.CancelFunc
	timer   *time.Timer
	late    bool
}

// newRevisionReader returns a reader whose requests end with ctx and run in
// goroutines that spawn starts.
func newRevisionReader(ctx context.Context, spawn func(func()) bool, read func(context.Context) (int64, error)) *revisionReader {
	return &revisionReader{ctx: ctx, spawn: spawn, read: read, patience: revisionPatience}
}

func newRevisionRequest() *revisionRequest { return &revisionRequest{done: make(chan struct{})} }

func (r *revisionReader) get(ctx context.Context) (int64, error) {
	r.mu.Lock()
	if r.next == nil {
		r.next = newRevisionRequest()
	}
	req := r.next
	req.callers++
	r.startNext()
	r.mu.Unlock()

	for followed := false; ; followed = true {
		select {
		case <-req.done:
			if req.successor == nil {
				return req.revision, req.err
			}
			if followed {
				r.leave(req)
				return 0, req.err
			}
			req = req.successor
		case <-ctx.Done():
			r.leave(req)
			return 0, ctx.Err()
		}
	}
}

// start starts the next request, for which nobody need wait yet. The caller holds mu.
func (r *revisionReader) start() {
	req := r.next
	if req == nil {
		req = newRevisionRequest()
	}
	r.next = nil
	r.running = append(r.running, req)
	var ctx context.Context
	ctx, req.cancel = context.WithCancel(r.ctx)
	req.timer = time.AfterFunc(r.patience, func() { r.join(req) })
	started := r.spawn(func() {
		revision, err := r.read(ctx)
		r.finish(req, revision, err)
	})
	if !started {
		r.end(req, 0, storage.ErrClosed) // r.running is what it was before
	}
}

// startNext starts the next request if somebody waits for it and none is running, or
// only such that take long. The caller holds mu.
func (r *revisionReader) startNext() {
	n := len(r.running)
	if r.next != nil && (n == 0 || n < maxRevisionRequests && r.running[n-1].late) {
		r.start()
	}
}

// join starts another request beside one that takes long.
func (r *revisionReader) join(req *revisionRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	req.late = true
	n := len(r.running)
	if n > 0 && n < maxRevisionRequests && r.running[n-1] == req && (r.next != nil || r.waiting() > 0) {
		r.start()
	}
}

// finish passes an answer on to those who wait for it, and starts the next request if
// somebody waits for that.
func (r *revisionReader) finish(req *revisionRequest, revision int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.running, req)
	if i < 0 {
		return // a newer request has answered for it
	}
	if err != nil && i < len(r.running)-1 {
		newer := r.running[i+1]
		newer.callers += req.callers
		req.successor = newer
		r.end(req, 0, err)
	} else if err != nil {
		r.end(req, 0, err)
	} else {
		for _, older := range slices.Clone(r.running[:i+1]) {
			r.end(older, revision, nil)
		}
	}
	r.startNext()
}

// end removes a request from those that run, and wakes its callers. The caller holds mu.
func (r *revisionReader) end(req *revisionRequest, revision int64, err error) {
	r.running = slices.DeleteFunc(r.running, func(o *revisionRequest) bool { return o == req })
	req.timer.Stop()
	req.cancel()
	req.revision, req.err = revision, err
	close(req.done)
}

// leave notes that a caller does not wait any more. Requests for which nobody waits are
// canceled.
func (r *revisionReader) leave(req *revisionRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for req.successor != nil {
		req = req.successor
	}
	req.callers--
	if r.next == req {
		if req.callers == 0 {
			r.next = nil
		}
		return
	}
	// A newer request may still answer for the callers of an older one.
	if r.waiting() == 0 {
		for _, o := range r.running {
			o.cancel()
		}
	}
}

// waiting returns the number of callers of requests that run. The caller holds mu.
func (r *revisionReader) waiting() (callers int) {
	for _, req := range r.running {
		callers += req.callers
	}
	return callers
}
