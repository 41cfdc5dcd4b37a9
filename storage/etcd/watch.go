package etcd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/apikeel/kelson/storage"
)

// watcher implements storage.Watcher. One goroutine, run, receives events from etcd and
// puts them into a buffer, from which Next takes them.
//
// It uses etcd's watch API directly, one gRPC stream for each watcher. etcd's client
// would put all watchers on one stream and buffer without bound what is not read. Here
// the buffer is bounded: while it is full nothing is received, gRPC's flow control
// stops etcd, and etcd keeps only the watcher's position once its own small buffer is
// full. If the buffer stays full, the stream is closed, and opened again when Next has
// emptied it.
//
// Invariants, under mu: pending holds, in order, every event of the prefix with a
// revision above reported and up to position. The stream is always (re)opened at
// position+1, so no event is received twice or lost.
type watcher struct {
	b      *Backend
	prefix string
	limits watchLimits

	// ctx ends with the caller's context, with Close or with the backend; its cause is
	// the error that Next returns.
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when run has returned

	ready    chan struct{} // capacity 1: pending or position has changed
	room     chan struct{} // capacity 1: Next has taken pending
	progress chan struct{} // capacity 1: request a progress notification

	mu       sync.Mutex
	pending  []storage.Event
	size     int   // bytes in pending
	position int64 // every event up to it has been received
	reported int64 // Revision of the last batch; at first where the watch began
	err      error // set once; returned by Next when pending is empty

	// etcd sends no progress notification before it has reached the first revision that
	// is watched. So Next reports the revision where the watch began once (startReported), after
	// progress was requested (progressRequested) and etcd has reached that revision (startReached).
	progressRequested, startReached, startReported bool
}

// watchLimits are the bounds and times of a watcher, which tests change.
type watchLimits struct {
	// events and bytes bound the buffer; it may exceed them by one message,
	// which etcd limits to about its largest request.
	events, bytes int
	// patience is how long the buffer may stay full before the stream is closed:
	// meanwhile etcd holds the events that it cannot send in memory.
	patience time.Duration
	// progress is how often a progress notification is requested without being asked
	// for. A watcher of keys that do not change needs a recent position: an old one may
	// be compacted when the stream has to be opened again.
	progress time.Duration
	// backoff is the delay before the first attempt to reopen a stream; it doubles up
	// to maxBackoff.
	backoff, maxBackoff time.Duration
}

func defaultWatchLimits() watchLimits {
	return watchLimits{
		events:     1024,
		bytes:      4 << 20,
		patience:   2 * time.Second,
		progress:   time.Minute,
		backoff:    10 * time.Millisecond,
		maxBackoff: 2 * time.Second,
	}
}

// Watch follows the keys that begin with prefix. It returns before etcd has created the
// watch.
func (b *Backend) Watch(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
	w, err := b.watch(ctx, prefix, after, defaultWatchLimits())
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (b *Backend) watch(ctx context.Context, prefix string, after int64, limits watchLimits) (*watcher, error) {
	if err := b.checkUsable(ctx); err != nil {
		return nil, err
	}
	switch {
	case after == 0:
		// Not zero, etcd's own word for now: that is the revision of the member that
		// serves the watch, which may be behind.
		var err error
		if after, err = b.Revision(ctx); err != nil {
			return nil, err
		}
	case after < 0:
		return nil, fmt.Errorf("%w: watch after revision %d", storage.ErrCompacted, after)
	default:
		if err := b.checkCompacted(ctx, after+1); err != nil {
			return nil, err
		}
	}
	w := &watcher{
		b:        b,
		prefix:   prefix,
		limits:   limits,
		done:     make(chan struct{}),
		ready:    make(chan struct{}, 1),
		room:     make(chan struct{}, 1),
		progress: make(chan struct{}, 1),
		position: after,
		reported: after,
	}
	w.ctx, w.cancel = context.WithCancelCause(b.ctx)

	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, storage.ErrClosed
	}
	b.watchers[w] = struct{}{}
	unlink := context.AfterFunc(ctx, func() { w.cancel(ctx.Err()) })
	b.tasks.Go(func() {
		defer unlink()
		defer b.forget(w)
		defer close(w.done)
		w.run()
	})
	return w, nil
}

func (b *Backend) forget(w *watcher) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.watchers, w)
}

// Next waits for events or progress and returns all that is buffered.
func (w *watcher) Next(ctx context.Context) (storage.Batch, error) {
	for {
		batch, ok, err := w.take()
		if ok || err != nil {
			return batch, err
		}
		select {
		case <-w.ready:
		case <-w.done:
		case <-w.ctx.Done():
		case <-ctx.Done():
			return storage.Batch{}, ctx.Err()
		}
	}
}

// Close ends the watch.
func (w *watcher) Close() { w.cancel(storage.ErrClosed) }

// take returns the next batch, if there is one.
func (w *watcher) take() (storage.Batch, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pending) == 0 && w.err != nil {
		return storage.Batch{}, false, w.err
	}
	if w.ctx.Err() != nil {
		w.pending, w.err = nil, context.Cause(w.ctx)
		return storage.Batch{}, false, w.err
	}
	if w.position == w.reported && (w.startReported || !w.progressRequested || !w.startReached) {
		return storage.Batch{}, false, nil
	}
	batch := storage.Batch{Events: w.pending, Revision: w.position}
	w.pending, w.size, w.reported, w.startReported = nil, 0, w.position, true
	signal(w.room)
	return batch, true, nil
}

// advance records that all events up to revision have been received; events are those
// above position.
func (w *watcher) advance(events []storage.Event, size int, revision int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if revision <= w.position {
		return
	}
	w.pending = append(w.pending, events...)
	w.size += size
	w.position = revision
	signal(w.ready)
}

// created records that etcd has created the watch, and etcd's revision then.
func (w *watcher) created(revision int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.startReached = w.startReached || revision >= w.position
	signal(w.ready)
}

// fail ends the watch with an error, which Next returns after the buffered events.
func (w *watcher) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
}

func (w *watcher) full() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pending) >= w.limits.events || w.size >= w.limits.bytes
}

func (w *watcher) drained() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pending) == 0
}

func (w *watcher) start() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.position + 1
}

func (w *watcher) requestProgress() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.progressRequested = true
	signal(w.ready)
	signal(w.progress)
}

// signal sends to a channel of capacity 1 unless it is full.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
