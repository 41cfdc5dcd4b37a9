package storagetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apikeel/kelson/storage"
)

// follower reads a watcher and checks what the contract says about every stream: order,
// prefix, previous values, and a Revision that is never ahead of the events. Whether
// all events are there is for the check to compare.
type follower struct {
	e      *env
	w      storage.Watcher
	prefix string
	// pos: every event up to here has been delivered, or was not asked for.
	pos int64
	// reported is the Revision of the last batch, zero before the first.
	reported int64
	events   []storage.Event
	// known is what the stream has said of each key; nil is a deleted one.
	known map[string]*storage.KeyValue
}

// follow opens a watch.
func (e *env) follow(prefix string, after int64) (*follower, error) {
	pos := after
	if after == 0 {
		var err error
		if pos, err = e.revision(); err != nil {
			return nil, err
		}
	}
	w, err := e.b.Watch(e.ctx, prefix, after)
	if err != nil {
		return nil, fmt.Errorf("watch of %q after %d: %w", prefix, after, err)
	}
	return &follower{e: e, w: w, prefix: prefix, pos: pos, known: map[string]*storage.KeyValue{}}, nil
}

// next reads one batch.
func (f *follower) next(ctx context.Context) error {
	batch, err := f.w.Next(ctx)
	if err != nil {
		return fmt.Errorf("next of %q at %d: %w", f.prefix, f.pos, err)
	}
	if batch.Revision < f.reported || batch.Revision == f.reported && len(batch.Events) == 0 {
		return fmt.Errorf("watch of %q: batch of %d events goes from revision %d to %d",
			f.prefix, len(batch.Events), f.reported, batch.Revision)
	}
	for i, ev := range batch.Events {
		var before *storage.Event
		if i > 0 {
			before = &batch.Events[i-1]
		}
		if err := f.judge(ev, before, batch.Revision); err != nil {
			return fmt.Errorf("watch of %q at %d: %w: %s", f.prefix, f.pos, err, showEvent(ev))
		}
		if ev.Op == storage.Deleted {
			f.known[ev.KV.Key] = nil
		} else {
			f.known[ev.KV.Key] = &ev.KV
		}
	}
	f.events = append(f.events, batch.Events...)
	f.reported = batch.Revision
	f.pos = max(f.pos, batch.Revision)
	return nil
}

// judge checks one event; before is the event before it in the batch.
func (f *follower) judge(ev storage.Event, before *storage.Event, upto int64) error {
	kv, prev := ev.KV, ev.Prev
	switch {
	case !strings.HasPrefix(kv.Key, f.prefix):
		return errors.New("event of another prefix")
	case kv.ModRevision <= f.pos:
		return errors.New("event is late: the batch before said that all up to its revision had been delivered")
	case kv.ModRevision > upto:
		return fmt.Errorf("event is above the revision %d of its batch", upto)
	case before != nil && kv.ModRevision < before.KV.ModRevision:
		return errors.New("event is out of order")
	case before != nil && kv.ModRevision == before.KV.ModRevision &&
		(ev.Op != storage.Deleted || before.Op != storage.Deleted || kv.Key == before.KV.Key):
		return errors.New("two events have one revision")
	}
	was, told := f.known[kv.Key]
	present := was != nil
	if ev.Op == storage.Created {
		switch {
		case told && present:
			return errors.New("created, but the key was there")
		case kv.CreateRevision != kv.ModRevision:
			return errors.New("created at another revision than its own")
		case !sameKV(prev, storage.KeyValue{}):
			return errors.New("created, but has a previous value")
		}
		return nil
	}
	if ev.Op != storage.Updated && ev.Op != storage.Deleted {
		return errors.New("unknown operation")
	}
	switch {
	case told && !present:
		return errors.New("the key was not there")
	case ev.Op == storage.Deleted && len(kv.Value) > 0:
		return errors.New("deleted, but has a value")
	case kv.CreateRevision >= kv.ModRevision:
		return errors.New("has its create revision after its beginning")
	case present && !sameKV(prev, *was):
		return fmt.Errorf("previous value is not the one delivered before, %s", show(*was))
	case prev.Key != kv.Key || prev.CreateRevision != kv.CreateRevision || prev.ModRevision >= kv.ModRevision:
		return errors.New("previous value does not fit")
	}
	return nil
}

// until reads until the watcher has reached revision. It requests progress whenever the
// watcher has been silent for a while.
func (f *follower) until(revision int64) error {
	wait := time.Millisecond
	for f.pos < revision {
		ctx, cancel := context.WithTimeout(f.e.ctx, wait)
		err := f.next(ctx)
		cancel()
		if err == nil {
			continue
		}
		if !errors.Is(err, context.DeadlineExceeded) || f.e.ctx.Err() != nil {
			return fmt.Errorf("waiting for revision %d: %w", revision, err)
		}
		if err := f.e.b.Progress(f.e.ctx); err != nil {
			return fmt.Errorf("progress: %w", err)
		}
		wait = min(2*wait, time.Second)
	}
	return nil
}

// matches reads up to the end of log, which holds all writes, and compares the events.
// The follower began after the revision after.
func (f *follower) matches(log []storage.Event, after int64) error {
	upto := after
	if len(log) > 0 {
		upto = max(upto, log[len(log)-1].KV.ModRevision)
	}
	if err := f.until(upto); err != nil {
		return err
	}
	return diffEvents(fmt.Sprintf("events of %q after %d", f.prefix, after), f.events, eventsOf(log, f.prefix, after, 0))
}
