package etcd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/apikeel/kelson/storage"
)

// watcher is a storage.Watcher. One goroutine, run, receives events from etcd
// and puts them into a buffer from which Next takes them.
//
// It uses etcd's watch API itself, one gRPC stream a watcher, where etcd's
// client would put all watchers on one stream and let what is not read pile up
// in memory. Here the buffer is bounded: while it is full nothing is received,
// gRPC's flow control makes etcd wait, and etcd keeps nothing for a watcher but
// its position once its own small buffer is full. When the reader stays away,
// the stream is given up and opened again on its return.
//
// Invariants, under mu: pending holds, in order, every event of the prefix with
// a revision above reported and up to position. The stream is always (re)opened
// at position+1, so no event is received twice or left out.
type watcher struct {
	b      *Backend
	prefix string
	limits watchLimits

	// ctx ends with the caller's context, with Close or with the backend; its
	// cause is what Next then returns.
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when run has returned

	ready    chan struct{} // 1: pending or position has changed
	room     chan struct{} // 1: pending was taken
	progress chan struct{} // 1: etcd is to be asked for progress

	mu       sync.Mutex
	pending  []storage.Event
	size     int   // bytes in pending
	position int64 // how far events have been received
	reported int64 // how far Next has said it is, at first where it began
	err      error // set once; what Next returns when pending is empty

	// etcd does not answer a request for progress before it has come to the
	// first revision watched. So that somebody who waits for it learns where
	// the watch began, Next tells when it was asked for and the beginning is
	// not in the future.
	asked, begun, told bool
}

// watchLimits are what tests change.
type watchLimits struct {
	// events and bytes bound the buffer; it may exceed them by one message,
	// which etcd limits to about its largest request.
	events, bytes int
	// patience is how long a full buffer holds up its stream before the stream
	// is given up: etcd has the events in memory which it cannot send.
	patience time.Duration
	// progress is how often etcd is asked for progress on its own account: a
	// watcher of keys that do not change must not have an old position, lest
	// it be compacted when the connection is lost.
	progress time.Duration
	// backoff is the wait before the first attempt to reopen a stream.
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

// Watch follows the keys that begin with prefix. It does not wait for etcd to
// have the watch.
func (b *Backend) Watch(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
	w, err := b.watch(ctx, prefix, after, defaultWatchLimits())
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (b *Backend) watch(ctx context.Context, prefix string, after int64, limits watchLimits) (*watcher, error) {
	if err := b.usable(ctx); err != nil {
		return nil, err
	}
	switch {
	case after == 0:
		// Not etcd's own idea of now, which is that of the member which serves
		// the watch and may be behind.
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

// Next waits for events or for progress and returns all there are.
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

// take returns what there is for Next, if anything.
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
	if w.position == w.reported && (w.told || !w.asked || !w.begun) {
		return storage.Batch{}, false, nil
	}
	batch := storage.Batch{Events: w.pending, Revision: w.position}
	w.pending, w.size, w.reported, w.told = nil, 0, w.position, true
	signal(w.room)
	return batch, true, nil
}

// advance records that all events up to revision have been received, the given
// ones being those above the position.
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

// created records that etcd, which stands at revision, has the watch.
func (w *watcher) created(revision int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = w.begun || revision >= w.position
	signal(w.ready)
}

// fail ends the watch with an error, which comes after what was received.
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
	w.asked = true
	signal(w.ready)
	signal(w.progress)
}

// signal leaves a mark in a channel of capacity one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
