package postgres

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/apikeel/kelson/storage"
	"github.com/jackc/pgx/v5"
)

// Watch follows the keys that begin with prefix.
func (b *Backend) Watch(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
	s, err := b.revision.get(ctx)
	if err != nil {
		return nil, err
	}
	if after == 0 {
		after = s.revision
	}
	if after < 0 || after+1 < s.compacted {
		return nil, compactedWatch(after, s.compacted)
	}
	w := &watcher{b: b, ctx: ctx, prefix: prefix, position: after, done: make(chan struct{})}
	b.feed.join(s.revision)
	w.unlink = context.AfterFunc(ctx, w.leave)
	return w, nil
}

func compactedWatch(after, oldest int64) error {
	return fmt.Errorf("%w: events after %d are asked for, the oldest kept is of %d", storage.ErrCompacted, after, oldest)
}

// watcher implements storage.Watcher. It has no goroutine and no buffer: Next reads
// from the feed or from the database.
type watcher struct {
	b      *Backend
	ctx    context.Context
	prefix string

	mu       sync.Mutex // held by Next: one call at a time
	position int64      // every event up to it has been delivered or filtered out
	reported int64      // Revision of the last batch, 0 before the first
	err      error

	closing, leaving sync.Once
	done             chan struct{}
	unlink           func() bool
}

// leave takes the watcher off the feed.
func (w *watcher) leave() { w.leaving.Do(w.b.feed.leave) }

// Close implements storage.Watcher.
func (w *watcher) Close() {
	w.closing.Do(func() { close(w.done) })
	w.unlink()
	w.leave()
}

// Next implements storage.Watcher.
func (w *watcher) Next(ctx context.Context) (storage.Batch, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.err == nil {
		select { // checked first: an ended watch delivers nothing more
		case <-w.ctx.Done():
			return w.end(w.ctx.Err())
		case <-w.done:
			return w.end(storage.ErrClosed)
		default:
		}
		batch, wait, err := w.poll(ctx)
		if err != nil {
			if ctx.Err() != nil && w.b.ctx.Err() == nil {
				return storage.Batch{}, ctx.Err()
			}
			return w.end(err)
		}
		if len(batch.Events) > 0 || batch.Revision > w.reported {
			w.reported = batch.Revision
			return batch, nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return storage.Batch{}, ctx.Err()
		case <-w.ctx.Done():
		case <-w.done:
		}
	}
	return storage.Batch{}, w.err
}

// end ends the watch. The reason that came first stays. The caller holds mu.
func (w *watcher) end(err error) (storage.Batch, error) {
	w.err = err
	w.leave()
	return storage.Batch{}, err
}

// poll returns the next events or progress, if there are any, and a channel that is
// closed when poll should be called again.
func (w *watcher) poll(ctx context.Context) (batch storage.Batch, again <-chan struct{}, err error) {
	events, last, asked, changed, err := w.b.feed.recent(w.position)
	if err != nil {
		return batch, nil, err
	}
	switch {
	case events != nil:
		w.position = events[len(events)-1].KV.ModRevision
		batch.Events = w.filter(events)
	case w.position < last:
		if batch.Events, err = w.stored(ctx, last); err != nil {
			return batch, nil, err
		}
	}
	switch {
	case len(batch.Events) > 0:
		batch.Revision = w.position
	case w.position < last:
		return batch, closedChannel(), nil
	case w.position == last && asked > w.reported:
		batch.Revision = last
	}
	return batch, changed, nil
}

func closedChannel() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// filter keeps the events of the watched prefix, in place.
func (w *watcher) filter(events []storage.Event) []storage.Event {
	kept := events[:0]
	for _, ev := range events {
		if strings.HasPrefix(ev.KV.Key, w.prefix) {
			kept = append(kept, ev)
		}
	}
	return kept
}

// stored reads events that follow the watcher's position from the database, up to last,
// and moves the position. As long as the database does not answer, it waits.
func (w *watcher) stored(ctx context.Context, last int64) ([]storage.Event, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.ctx, cancel)()
	from, below := keyRange(w.prefix)
	upto := min(last, w.position+batchRevisions)
	var batch eventBatch
	for attempt := 0; ; attempt++ {
		err := w.b.read(ctx, func(conn *pgx.Conn) (err error) {
			batch, err = readEvents(ctx, conn, w.b.text.events, w.position, upto, batchEvents, batchBytes, from, below)
			return err
		})
		if err == nil {
			break
		}
		if w.b.ctx.Err() != nil || w.ctx.Err() != nil || ctx.Err() != nil || w.b.diverged() != nil {
			return nil, err
		}
		select {
		case <-w.done:
			return nil, nil
		default:
		}
		if !backoff(ctx, attempt) {
			return nil, ctx.Err()
		}
	}
	if w.position+1 < batch.compacted {
		return nil, compactedWatch(w.position, batch.compacted)
	}
	if batch.whole {
		w.position = upto
	} else {
		w.position = batch.events[len(batch.events)-1].KV.ModRevision
	}
	return batch.events, nil
}
