package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Change is an Event with the time at which it was committed.
type Change struct {
	Event
	// Time is zero if the backend does not record when it commits.
	Time time.Time
	// User is who made it; empty if that is not known. A Backend does not set it: see
	// UserKeeper.
	User string
}

// UserKeeper is a Backend that keeps the names of those who made its revisions, as long as
// it keeps these for history.
type UserKeeper interface {
	// KeepsUsers reports whether it does.
	KeepsUsers() bool
	// NoteUsers stores names by revisions that were committed.
	NoteUsers(ctx context.Context, users map[int64]string) error
	// UserOf returns the name for a revision; empty if there is none.
	UserOf(ctx context.Context, revision int64) (string, error)
}

// ChangesOptions says which changes Changes returns.
type ChangesOptions struct {
	// Key is the one key whose changes are wanted. If it is empty, those of all keys that
	// begin with Prefix are.
	Key, Prefix string
	// Match chooses among the keys of Prefix; nil takes all.
	Match func(key string) bool
	// From and To are the first and the last revision. From is raised to the oldest that
	// is kept; a To of zero is the current revision.
	From, To int64
	// Limit and MaxBytes end the answer after so many changes, or with the change with
	// which its values have so many bytes. Both are required.
	Limit, MaxBytes int
}

// Kept describes which history a backend can be asked for with Changes, and with
// ListOptions.History.
type Kept struct {
	// Oldest and Newest are the revisions between which history is complete. Oldest is
	// zero where the backend does not know it.
	Oldest, Newest int64
	// Since is when Oldest was committed; zero if that is not known.
	Since time.Time
	// Times says that RevisionAt works.
	Times bool
	// Age is how long versions are kept, as configured; zero if the store decides.
	Age time.Duration
	// Bytes is what is kept for history only, and MaxBytes its bound; zero if nothing is.
	Bytes, MaxBytes int64
}

// Historian is a Backend that can read its past. A Backend that wraps another one
// implements it with Changes, KeptHistory and RevisionAt, the functions, which work on
// any Backend as far as its watches reach back.
type Historian interface {
	// Changes passes changes to each, the newest first, and returns the revision from
	// which on the answer is complete: at most From if there are no more. The next page
	// ends at the revision before it. A value is valid until each returns.
	Changes(ctx context.Context, opts ChangesOptions, each func(*Change) error) (complete int64, err error)
	// KeptHistory tells which history there is.
	KeptHistory(ctx context.Context) (Kept, error)
	// RevisionAt returns the revision that was the current one at a time. ErrCompacted
	// says that the time is before the history that is kept, errors.ErrUnsupported that
	// the backend does not record times.
	RevisionAt(ctx context.Context, t time.Time) (int64, error)
}

// KeptHistory tells which history a backend has, whatever it is.
func KeptHistory(ctx context.Context, b Backend) (Kept, error) {
	if h, ok := b.(Historian); ok {
		return h.KeptHistory(ctx)
	}
	s, err := b.Status(ctx)
	return Kept{Oldest: s.CompactRevision, Newest: s.Revision}, err
}

// RevisionAt finds the revision of a time, if the backend records times.
func RevisionAt(ctx context.Context, b Backend, t time.Time) (int64, error) {
	if h, ok := b.(Historian); ok {
		return h.RevisionAt(ctx, t)
	}
	return 0, fmt.Errorf("%w: this store does not record at which time a revision was written; give a revision instead of a time", errors.ErrUnsupported)
}

// Changes reads the changes of the past as a Historian does. Of other backends it reads a
// watch, oldest first, and keeps the last ones: as far back as the backend has events.
func Changes(ctx context.Context, b Backend, opts ChangesOptions, each func(*Change) error) (int64, error) {
	if h, ok := b.(Historian); ok {
		return h.Changes(ctx, opts, each)
	}
	now, err := b.Revision(ctx)
	if err != nil {
		return 0, err
	}
	if opts.To == 0 || opts.To > now {
		opts.To = now
	}
	kept, err := KeptHistory(ctx, b)
	if err != nil {
		return 0, err
	}
	opts.From = max(opts.From, kept.Oldest, 2) // the first write of a store has revision 2
	if opts.From > opts.To {
		return opts.From, nil
	}
	last, complete, err := watchPast(ctx, b, opts)
	if errors.Is(err, ErrCompacted) {
		// Some backends learn only by the refusal how much is gone.
		if kept, again := KeptHistory(ctx, b); again == nil && kept.Oldest > opts.From && kept.Oldest <= opts.To {
			opts.From = kept.Oldest
			last, complete, err = watchPast(ctx, b, opts)
		}
	}
	if err != nil {
		return 0, err
	}
	for i := len(last) - 1; i >= 0; i-- {
		if err := each(&Change{Event: last[i]}); err != nil {
			return 0, err
		}
	}
	return complete, nil
}

// progressEvery is how often watchPast asks for progress again.
const progressEvery = 100 * time.Millisecond

// watchPast reads the events from opts.From to opts.To, and returns the last ones that
// opts allow with the revision from which on they are complete.
func watchPast(ctx context.Context, b Backend, opts ChangesOptions) (last []Event, complete int64, err error) {
	prefix := opts.Prefix
	if opts.Key != "" {
		prefix = opts.Key
	}
	w, err := b.Watch(ctx, prefix, opts.From-1)
	if err != nil {
		return nil, 0, err
	}
	defer w.Close()
	complete, bytes := opts.From, 0
	for {
		batch, err := nextOrProgress(ctx, b, w)
		if err != nil {
			return nil, 0, err
		}
		for _, ev := range batch.Events {
			if ev.KV.ModRevision > opts.To {
				return last, complete, nil
			}
			if opts.Key != "" && ev.KV.Key != opts.Key || opts.Match != nil && !opts.Match(ev.KV.Key) {
				continue
			}
			last, bytes = append(last, ev), bytes+changeSize(&ev)
			for len(last) > 1 && (len(last) > opts.Limit || bytes > opts.MaxBytes) && last[0].KV.ModRevision != ev.KV.ModRevision {
				complete = last[0].KV.ModRevision + 1
				for last[0].KV.ModRevision < complete {
					bytes -= changeSize(&last[0])
					last = last[1:]
				}
			}
		}
		if batch.Revision >= opts.To {
			return last, complete, nil
		}
	}
}

// nextOrProgress waits for a batch, and asks for progress until one comes.
func nextOrProgress(ctx context.Context, b Backend, w Watcher) (Batch, error) {
	for {
		if err := b.Progress(ctx); err != nil {
			return Batch{}, err
		}
		soon, cancel := context.WithTimeout(ctx, progressEvery)
		batch, err := w.Next(soon)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return batch, err
		}
	}
}

// changeSize is what an event counts against ChangesOptions.MaxBytes.
func changeSize(ev *Event) int { return len(ev.KV.Value) + len(ev.Prev.Value) }

// Done reports whether an answer with n changes and so many bytes is full.
func (o *ChangesOptions) Done(n, bytes int) bool { return n >= o.Limit || bytes >= o.MaxBytes }

// Wants reports whether the changes of a key are asked for.
func (o *ChangesOptions) Wants(key string) bool {
	if o.Key != "" {
		return key == o.Key
	}
	return strings.HasPrefix(key, o.Prefix) && (o.Match == nil || o.Match(key))
}
