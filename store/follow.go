package store

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/apikeel/kelson/resource"
)

// Follower delivers the objects of some resources, and then their changes, to
// one consumer. It is a resource.Follower: a position in the logs of the
// resources, without a goroutine. Whoever needs to be up to date pulls.
//
// Two things tell that there is something to pull: the logs have gone on, or
// this process has got a write acknowledged whose event has not arrived yet. So
// the consumer knows every write that this process has acknowledged, and those
// of other processes when their events arrive.
type Follower struct {
	// Complete makes Pull fail as long as an object cannot be decoded, for a consumer that
	// must not decide without it.
	Complete  bool
	resources func() []*Resource
	log       *slog.Logger

	mu sync.Mutex // held by Pull
	// position is where the consumer is; nil before it has all objects. A position
	// is never changed, only replaced.
	position atomic.Pointer[position]
}

var _ resource.Follower = (*Follower)(nil)

// position is how far a Follower has delivered the changes of its resources.
type position struct {
	watchers     []*Watcher
	acknowledged []int64           // the newest write to each resource
	more         []<-chan struct{} // of each log: closed when it goes on
}

// NewFollower returns a Follower of the resources that the function returns. It
// is asked when the consumer first pulls, and again when one of the resources is
// replaced. Objects that cannot be decoded are logged and left out.
func NewFollower(resources func() []*Resource, log *slog.Logger) *Follower {
	return &Follower{resources: resources, log: log}
}

// Synced reports whether the consumer has got all objects once.
func (f *Follower) Synced() bool { return f.position.Load() != nil }

// Current implements resource.Follower.
func (f *Follower) Current() bool {
	p := f.position.Load()
	return p != nil && p.current()
}

func (p *position) current() bool {
	for i, w := range p.watchers {
		if w.r.acknowledged.Load() > p.acknowledged[i] {
			return false
		}
		select {
		case <-p.more[i]:
			return false
		default:
		}
	}
	return true
}

// Pull implements resource.Follower.
func (f *Follower) Pull(ctx context.Context, apply func(reset bool, changes []resource.Change)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.position.Load()
	if old != nil && old.current() {
		return nil // somebody else has pulled meanwhile
	}
	if old != nil && f.Complete {
		for _, w := range old.watchers {
			if out := w.r.LeftOut(); len(out) > 0 {
				f.position.Store(nil) // the consumer gets all objects when it can be read
				old.close()
				return out
			}
		}
	}
	if old != nil {
		next := &position{watchers: old.watchers}
		for _, w := range old.watchers {
			newest := w.r.acknowledged.Load()
			if err := w.r.WaitFor(ctx, newest); err != nil {
				return err
			}
			next.acknowledged = append(next.acknowledged, newest)
		}
		changes, err := f.poll(ctx, next, nil)
		if err == nil {
			f.deliver(next, false, changes, apply)
			return nil
		}
		f.position.Store(nil)
		old.close()
		if !errors.Is(err, ErrExpired) && !errors.Is(err, ErrGone) {
			return err
		}
	}
	next, changes, err := f.list(ctx)
	if err != nil {
		next.close()
		return err
	}
	f.deliver(next, true, changes, apply)
	return nil
}

// deliver calls apply and moves to the position behind the changes. If apply panics,
// the consumer may have got any part of them: it gets all objects again.
func (f *Follower) deliver(next *position, reset bool, changes []resource.Change, apply func(bool, []resource.Change)) {
	delivered := false
	defer func() {
		if !delivered {
			f.position.Store(nil)
			next.close()
		}
	}()
	apply(reset, changes)
	delivered = true
	f.position.Store(next)
}

// Wait implements resource.Follower. Every log is given the same channel, which
// is what makes one wait for all of them.
func (f *Follower) Wait(ctx context.Context) error {
	p := f.position.Load()
	if p == nil {
		return ctx.Err()
	}
	woken := make(chan struct{}, 1)
	for _, w := range p.watchers {
		defer w.signal(woken)()
	}
	// What came before the logs knew the channel has not woken it.
	if !p.current() {
		return ctx.Err()
	}
	select {
	case <-woken:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// signal has the log of the watcher send to a channel, which has room for one,
// whenever the log goes on or ends, until stop is called.
func (w *Watcher) signal(c chan<- struct{}) (stop func()) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	if w.log.waiting == nil {
		w.log.waiting = map[chan<- struct{}]struct{}{}
	}
	w.log.waiting[c] = struct{}{}
	return func() {
		w.r.mu.Lock()
		defer w.r.mu.Unlock()
		delete(w.log.waiting, c)
	}
}

// list returns all objects, and the position behind them. With an error there is
// a position too, which has to be closed.
func (f *Follower) list(ctx context.Context) (p *position, changes []resource.Change, err error) {
	p = &position{}
	for _, r := range f.resources() {
		p.acknowledged = append(p.acknowledged, r.acknowledged.Load())
		snapshot, err := r.Snapshot(ctx, Read{})
		if err == nil && f.Complete {
			err = snapshot.complete(r.prefix)
		}
		if err != nil {
			return p, nil, err
		}
		snapshot.Range(r.Key("", ""), "", func(rec *Record) bool {
			changes = f.add(changes, r, Event{Added, rec})
			return true
		})
		w, err := r.WatchFrom(ctx, snapshot, "", false, func(*Record) bool { return true })
		if err != nil {
			return p, nil, err
		}
		p.watchers = append(p.watchers, w)
	}
	changes, err = f.poll(ctx, p, changes)
	return p, changes, err
}

// poll adds what the logs have got since the watchers were last asked.
func (f *Follower) poll(ctx context.Context, p *position, changes []resource.Change) ([]resource.Change, error) {
	for _, w := range p.watchers {
		for {
			before := w.position
			events, more, err := w.Poll(ctx)
			if err != nil {
				return nil, err
			}
			for _, event := range events {
				changes = f.add(changes, w.r, event)
			}
			// A watcher that has not moved has nothing more, or a part of a batch that
			// is being brought in: that is for the next time. One that reads the history
			// of the backend, because its log was trimmed, has to come back to the log.
			if len(events) == 0 && w.Synced() && w.position == before {
				p.more = append(p.more, more)
				break
			}
		}
	}
	return changes, nil
}

func (f *Follower) add(changes []resource.Change, r *Resource, event Event) []resource.Change {
	obj, err := r.Decode(event.Record)
	if err != nil {
		f.log.Error("an object cannot be decoded; the server decides without it", "key", event.Record.Key, "error", err)
		return changes
	}
	obj.SetManagedFields(nil) // no consumer decides by them, and many keep the object
	return append(changes, resource.Change{Object: obj, Deleted: event.Type == Deleted})
}

func (p *position) close() {
	for _, w := range p.watchers {
		w.Close()
	}
}

// WaitForChange returns when an object of the resource may have changed after a
// revision.
func (r *Resource) WaitForChange(ctx context.Context, revision int64) error {
	w, err := r.Watch(ctx, revision, func(*Record) bool { return true })
	if errors.Is(err, ErrExpired) {
		return nil
	}
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		events, more, err := w.Poll(ctx)
		switch {
		case errors.Is(err, ErrExpired), len(events) > 0:
			return nil
		case err != nil:
			return err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
