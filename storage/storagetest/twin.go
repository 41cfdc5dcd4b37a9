package storagetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/apikeel/kelson/storage"
)

// twin makes the same calls on a store and on the model and compares every answer.
// Nothing else may write below its prefix meanwhile.
//
// The model counts its revisions without gaps; a store need not. So the twin
// keeps, for every revision of the model, the one of the store.
type twin struct {
	e    *env
	m    *model
	ctx  context.Context // for the model, which never waits
	revs []int64         // by revision of the model; the first is 1
	// outcome is what the last write came to, on both sides.
	outcome error
}

func (e *env) twin() (*twin, error) {
	rev, err := e.revision()
	if err != nil {
		return nil, err
	}
	return &twin{e: e, m: newModel(), ctx: context.Background(), revs: []int64{0, rev}}, nil
}

// rev translates a revision of the model. One that lies ahead of the model lies
// as far ahead of the store; zero and below mean the same to both.
func (t *twin) rev(r int64) int64 {
	last := int64(len(t.revs)) - 1
	switch {
	case r <= 0:
		return r
	case r > last:
		return t.revs[last] + r - last
	}
	return t.revs[r]
}

func (t *twin) kv(kv storage.KeyValue) storage.KeyValue {
	kv.CreateRevision, kv.ModRevision = t.rev(kv.CreateRevision), t.rev(kv.ModRevision)
	return kv
}

func (t *twin) kvs(kvs []storage.KeyValue) []storage.KeyValue {
	out := make([]storage.KeyValue, len(kvs))
	for i, kv := range kvs {
		out[i] = t.kv(kv)
	}
	return out
}

// expected returns the events that a watch of prefix must deliver that began
// after a revision of the store.
func (t *twin) expected(prefix string, after int64) []storage.Event {
	var events []storage.Event
	for _, ev := range eventsOf(t.m.log, prefix, 0, 0) {
		if ev = (storage.Event{Op: ev.Op, KV: t.kv(ev.KV), Prev: t.kv(ev.Prev)}); ev.KV.ModRevision > after {
			events = append(events, ev)
		}
	}
	return events
}

// agree compares errors by their sentinels.
func agree(what string, got, want error) error {
	if want == nil && got == nil {
		return nil
	}
	if want == nil || got == nil || !errors.Is(got, want) && !errors.Is(got, errors.Unwrap(want)) {
		return fmt.Errorf("%s: error is %v, want %v", what, got, want)
	}
	return nil
}

// wrote enters the revision of a write that both have done.
func (t *twin) wrote(what string, rev int64) error {
	if last := t.rev(t.m.revision - 1); rev <= last {
		return fmt.Errorf("%s: took revision %d, not above %d", what, rev, last)
	}
	t.revs = append(t.revs, rev)
	return nil
}

func (t *twin) create(key string, value []byte) error {
	what := fmt.Sprintf("create %.60q (%d bytes)", key, len(value))
	// The store gets a copy, which is overwritten afterwards.
	mine := bytes.Clone(value)
	got, gotErr := t.e.b.Create(t.e.ctx, key, mine, 0)
	want, wantErr := t.m.Create(t.ctx, key, value, 0)
	return t.written(what, mine, got, gotErr, want, wantErr)
}

// update writes key with a guard, which is a revision of the model.
func (t *twin) update(key string, value []byte, guard int64) error {
	what := fmt.Sprintf("update %.60q (%d bytes) guarded by %d", key, len(value), t.rev(guard))
	mine := bytes.Clone(value)
	got, gotErr := t.e.b.Update(t.e.ctx, key, mine, t.rev(guard), 0)
	want, wantErr := t.m.Update(t.ctx, key, value, guard, 0)
	return t.written(what, mine, got, gotErr, want, wantErr)
}

// written compares the answers to a create or an update.
func (t *twin) written(what string, passed []byte, got storage.KeyValue, gotErr error, want storage.KeyValue, wantErr error) error {
	if err := agree(what, gotErr, wantErr); err != nil {
		return err
	}
	t.outcome = wantErr
	if wantErr == nil {
		if err := t.wrote(what, got.ModRevision); err != nil {
			return err
		}
	}
	if err := t.answered(what, got, want, wantErr); err != nil {
		return err
	}
	for i := range passed {
		passed[i] ^= 0xff
	}
	return nil
}

// answered compares the key that came with an answer. With errors about the
// state of the key, that is the key in the way; with others, nothing.
func (t *twin) answered(what string, got, want storage.KeyValue, err error) error {
	if err == nil || errors.Is(err, storage.ErrExists) || errors.Is(err, storage.ErrConflict) {
		return diffKV(fmt.Sprintf("%s (error %v)", what, err), got, t.kv(want))
	}
	return nil
}

func (t *twin) delete(key string, guard int64) error {
	what := fmt.Sprintf("delete %.60q guarded by %d", key, t.rev(guard))
	got, rev, gotErr := t.e.b.Delete(t.e.ctx, key, t.rev(guard))
	want, _, wantErr := t.m.Delete(t.ctx, key, guard)
	if err := agree(what, gotErr, wantErr); err != nil {
		return err
	}
	t.outcome = wantErr
	if wantErr == nil {
		if err := t.wrote(what, rev); err != nil {
			return err
		}
	}
	return t.answered(what, got, want, wantErr)
}

func (t *twin) get(key string) error {
	what := fmt.Sprintf("get %.60q", key)
	got, gotErr := t.e.b.Get(t.e.ctx, key)
	want, wantErr := t.m.Get(t.ctx, key)
	if err := agree(what, gotErr, wantErr); err != nil {
		return err
	}
	return t.answered(what, got, want, wantErr)
}

// list compares a list; the revision in opts is one of the model.
func (t *twin) list(prefix string, opts storage.ListOptions) error {
	want, wantErr := t.m.List(t.ctx, prefix, opts)
	opts.Revision = t.rev(opts.Revision)
	what := fmt.Sprintf("list %q %+v", prefix, opts)
	got, gotErr := t.e.b.List(t.e.ctx, prefix, opts)
	if err := agree(what, gotErr, wantErr); err != nil || wantErr != nil {
		return err
	}
	switch now := t.rev(t.m.revision); {
	case opts.Revision > 0 && got.Revision != opts.Revision:
		return fmt.Errorf("%s: was read at %d", what, got.Revision)
	case opts.Revision == 0 && got.Revision < now:
		return fmt.Errorf("%s: was read at %d, which is before %d", what, got.Revision, now)
	case got.More != want.More:
		return fmt.Errorf("%s: more is %t, want %t", what, got.More, want.More)
	case opts.Count && got.Remaining != want.Remaining:
		return fmt.Errorf("%s: %d remain, want %d", what, got.Remaining, want.Remaining)
	}
	return diffKVs(what, got.Items, t.kvs(want.Items))
}

func (t *twin) count(prefix string) error {
	got, rev, err := t.e.b.Count(t.e.ctx, prefix)
	if err != nil {
		return fmt.Errorf("count %q: %w", prefix, err)
	}
	want, _, _ := t.m.Count(t.ctx, prefix)
	if now := t.rev(t.m.revision); got != want || rev < now {
		return fmt.Errorf("count %q: %d at %d, want %d at %d", prefix, got, rev, want, now)
	}
	return nil
}

func (t *twin) compact(revision int64) error {
	what := fmt.Sprintf("compact %d", t.rev(revision))
	return agree(what, t.e.b.Compact(t.e.ctx, t.rev(revision)), t.m.Compact(t.ctx, revision))
}

// everything compares all that can be read: the state at every kept revision, or at
// some of them if there are many, and every event.
func (t *twin) everything() error {
	const lists = 50
	step := 1 + (t.m.revision-t.m.compacted)/lists
	for rev := t.m.compacted; rev <= t.m.revision; rev += step {
		if err := t.list(t.e.prefix, storage.ListOptions{Revision: rev}); err != nil {
			return err
		}
	}
	after := t.rev(t.m.compacted)
	if t.m.compacted > 1 {
		after-- // the events of the compaction revision are kept, too
	}
	f, err := t.e.follow(t.e.prefix, after)
	if err != nil {
		return err
	}
	defer f.w.Close()
	if err := f.until(t.rev(t.m.revision)); err != nil {
		return err
	}
	return diffEvents(fmt.Sprintf("events after %d", after), f.events, t.expected(t.e.prefix, after))
}

// guard names a guard by what it is to the key.
type guard int

const (
	current  guard = iota // the key's mod-revision; of a missing key, the last it had
	stale                 // its create revision: of a key that was updated, an old one
	ahead                 // a revision that has not been reached
	zero                  // what a missing key has in etcd
	negative              // nonsense
)

// step is a line of a script.
type step struct {
	op    string // create, update or delete
	key   string // below the prefix of the check
	value string
	guard guard
	want  error
}

// script does the steps, with the outcomes that they name; the answers are
// compared with the model's, and so is the state after every step.
func (e *env) script(steps []step) error {
	t, err := e.twin()
	if err != nil {
		return err
	}
	last := map[string]storage.KeyValue{}
	for i, s := range steps {
		key := e.key(s.key)
		guard := map[guard]int64{
			current: last[s.key].ModRevision, stale: last[s.key].CreateRevision, ahead: t.m.revision + 7, zero: 0, negative: -1,
		}[s.guard]
		switch s.op {
		case "create":
			err = t.create(key, []byte(s.value))
		case "update":
			err = t.update(key, []byte(s.value), guard)
		case "delete":
			err = t.delete(key, guard)
		}
		if err == nil {
			err = t.get(key)
		}
		if err == nil {
			err = t.list(e.prefix, storage.ListOptions{})
		}
		if err != nil {
			return fmt.Errorf("step %d (%s %q): %w", i, s.op, s.key, err)
		}
		// The model agreed with the store so far; this checks the model itself.
		if !errors.Is(t.outcome, s.want) {
			return fmt.Errorf("step %d (%s %q): outcome is %v, want %v", i, s.op, s.key, t.outcome, s.want)
		}
		if kv, ok := t.m.keys[key]; ok {
			last[s.key] = kv
		}
	}
	return t.everything()
}
