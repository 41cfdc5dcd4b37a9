package memory

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/apikeel/kelson/storage"
)

// Bounds of one batch, and of how many events are looked at for it.
const (
	batchEvents = 1024
	batchBytes  = 4 << 20
	stepEvents  = 16 * batchEvents
)

// Watch implements storage.Backend.
func (s *Store) Watch(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
	if err := s.rlock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.RUnlock()
	if after == 0 {
		after = s.revision
	}
	if err := s.canWatch(after); err != nil {
		return nil, err
	}
	return &watcher{s: s, ctx: ctx, prefix: prefix, position: after, done: make(chan struct{})}, nil
}

// canWatch returns an error if events after a revision are gone. The lock is held.
func (s *Store) canWatch(after int64) error {
	if after < 0 || after+1 < s.compacted {
		return fmt.Errorf("%w: events after %d are asked for, the oldest kept is of %d", storage.ErrCompacted, after, s.compacted)
	}
	return nil
}

// watcher is a storage.Watcher. It has no goroutine and no buffer.
type watcher struct {
	s      *Store
	ctx    context.Context
	prefix string

	mu       sync.Mutex // held by Next
	position int64      // everything up to it has been looked at
	reported int64      // Revision of the last batch, 0 before the first
	err      error

	closing sync.Once
	done    chan struct{}
}

// Close implements storage.Watcher.
func (w *watcher) Close() { w.closing.Do(func() { close(w.done) }) }

// Next implements storage.Watcher.
func (w *watcher) Next(ctx context.Context) (storage.Batch, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.err == nil {
		select { // these end the watch, whatever else there is to say
		case <-w.ctx.Done():
			w.err = w.ctx.Err()
			return storage.Batch{}, w.err
		case <-w.done:
			w.err = storage.ErrClosed
			return storage.Batch{}, w.err
		default:
		}
		batch, changed, err := w.poll()
		if err != nil {
			w.err = err
			break
		}
		if len(batch.Events) > 0 || batch.Revision > w.reported {
			w.reported = batch.Revision
			return batch, nil
		}
		if changed == nil {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return storage.Batch{}, ctx.Err()
		case <-w.ctx.Done():
		case <-w.done:
		}
	}
	return storage.Batch{}, w.err
}

// poll takes one step and returns what the watcher has to say now, if anything, and
// a channel that is closed when to ask again; nil is at once.
func (w *watcher) poll() (batch storage.Batch, changed <-chan struct{}, err error) {
	s := w.s
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return batch, nil, storage.ErrClosed
	}
	if w.position < s.revision {
		if err := s.canWatch(w.position); err != nil {
			return batch, nil, err
		}
		first := s.revision - int64(len(s.log)) + 1
		rest := s.log[w.position+1-first:]
		size := 0
		batch.Events = make([]storage.Event, 0, min(len(rest), batchEvents))
		for _, v := range rest[:min(len(rest), stepEvents)] {
			w.position = v.mod
			if !strings.HasPrefix(v.key, w.prefix) {
				continue
			}
			batch.Events = append(batch.Events, v.event())
			size += int(v.size())
			if len(batch.Events) == batchEvents || size >= batchBytes {
				break
			}
		}
	}
	switch {
	case len(batch.Events) > 0:
		batch.Revision = w.position
	case w.position < s.revision:
		return batch, nil, nil
	case w.position == s.revision && s.asked > w.reported:
		batch.Revision = s.revision
	}
	return batch, s.changed, nil
}
