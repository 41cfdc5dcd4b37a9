package storagetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apikeel/kelson/storage"
)

func writeChecks() []check {
	return []check{
		{name: "new", run: checkNew, own: true},
		{name: "guards", run: checkGuards},
		{name: "recreate", run: checkRecreate},
		{name: "keys", run: checkKeys},
		{name: "values", run: checkValues, own: true}, // tens of megabytes
		{name: "aliasing", run: checkAliasing},
		{name: "counter", run: checkCounter},
		{name: "one-creates", run: checkOneCreates},
		{name: "one-deletes", run: checkOneDeletes},
		{name: "read-your-writes", run: checkReadYourWrites},
		{name: "cancelled", run: checkCancelled},
		{name: "status", run: checkStatus},
	}
}

// checkNew: a new store is empty and stands at revision 1.
func checkNew(e *env) error {
	rev, err := e.revision()
	if err != nil {
		return err
	}
	page, err := e.b.List(e.ctx, "", storage.ListOptions{Count: true})
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	if rev != 1 || page.Revision != 1 || len(page.Items) != 0 || page.More || page.Remaining != 0 {
		return fmt.Errorf("new store is at revision %d and lists %+v", rev, page)
	}
	kv, err := e.b.Create(e.ctx, e.key("a"), nil, 0)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if kv.ModRevision <= 1 {
		return fmt.Errorf("first write took revision %d", kv.ModRevision)
	}
	return nil
}

// checkGuards: every outcome of the three writes. The answers, with the key in
// the way, are compared by script.
func checkGuards(e *env) error {
	return e.script([]step{
		{op: "update", key: "a", value: "x", guard: zero, want: storage.ErrNotFound},
		{op: "update", key: "a", value: "x", guard: negative, want: storage.ErrNotFound},
		{op: "update", key: "a", value: "x", guard: ahead, want: storage.ErrNotFound},
		{op: "delete", key: "a", guard: zero, want: storage.ErrNotFound},
		{op: "delete", key: "a", guard: negative, want: storage.ErrNotFound},
		{op: "delete", key: "a", guard: ahead, want: storage.ErrNotFound},
		{op: "create", key: "a", value: "1"},
		{op: "create", key: "a", value: "1", want: storage.ErrExists},
		{op: "create", key: "a", value: "2", want: storage.ErrExists},
		{op: "update", key: "a", value: "x", guard: zero, want: storage.ErrConflict},
		{op: "update", key: "a", value: "x", guard: negative, want: storage.ErrConflict},
		{op: "update", key: "a", value: "x", guard: ahead, want: storage.ErrConflict},
		{op: "update", key: "a", value: "2"},
		{op: "update", key: "a", value: "2"}, // the same bytes again are a write
		{op: "update", key: "a", value: "x", guard: stale, want: storage.ErrConflict},
		{op: "delete", key: "a", guard: stale, want: storage.ErrConflict},
		{op: "delete", key: "a", guard: zero, want: storage.ErrConflict},
		{op: "delete", key: "a", guard: negative, want: storage.ErrConflict},
		{op: "delete", key: "a", guard: ahead, want: storage.ErrConflict},
		{op: "create", key: "b", value: "b"},
		{op: "delete", key: "a"},
		{op: "delete", key: "a", want: storage.ErrNotFound},
		{op: "update", key: "a", value: "x", want: storage.ErrNotFound},
		{op: "update", key: "a", value: "x", guard: zero, want: storage.ErrNotFound},
		{op: "delete", key: "b"},
	})
}

// checkRecreate: a key that is created again has a new create revision.
func checkRecreate(e *env) error {
	return e.script([]step{
		{op: "create", key: "a", value: "1"},
		{op: "update", key: "a", value: "2"},
		{op: "delete", key: "a"},
		{op: "create", key: "a", value: "3"},
		{op: "create", key: "a", value: "x", want: storage.ErrExists},
		{op: "update", key: "a", value: "4"},
		{op: "delete", key: "a", guard: stale, want: storage.ErrConflict},
		{op: "delete", key: "a"},
		{op: "create", key: "a", value: "1"},
	})
}

// checkKeys: which keys are accepted.
func checkKeys(e *env) error {
	long := e.key(strings.Repeat("k", storage.MaxKeyBytes-len(e.prefix)))
	var good []step
	for _, key := range []string{" ", "a\xffb", "\xff\xff", "\x01", "ü/€", "a//b", "a/", "%00", long[len(e.prefix):]} {
		good = append(good,
			step{op: "create", key: key, value: key},
			step{op: "update", key: key, value: key + "2"},
			step{op: "delete", key: key},
			step{op: "create", key: key, value: key + "3"})
	}
	if err := e.script(good); err != nil {
		return err
	}
	before, err := e.revision()
	if err != nil {
		return err
	}
	for _, bad := range []struct {
		key  string
		want error
	}{
		{"", storage.ErrInvalidKey},
		{e.key("a\x00"), storage.ErrInvalidKey},
		{e.key("a\x00b"), storage.ErrInvalidKey},
		{"\x00", storage.ErrInvalidKey},
		{long + "k", storage.ErrTooLarge},
	} {
		what := fmt.Sprintf("key %.40q of %d bytes", bad.key, len(bad.key))
		_, create := e.b.Create(e.ctx, bad.key, []byte("x"), 0)
		_, update := e.b.Update(e.ctx, bad.key, []byte("x"), before, 0)
		_, _, remove := e.b.Delete(e.ctx, bad.key, before)
		err := errors.Join(
			fails("create of "+what, create, bad.want),
			fails("update of "+what, update, bad.want),
			fails("delete of "+what, remove, bad.want))
		// ErrNotFound is right for such a key as well.
		if _, get := e.b.Get(e.ctx, bad.key); !errors.Is(get, storage.ErrNotFound) {
			err = errors.Join(err, fails("get of "+what, get, bad.want))
		}
		if err != nil {
			return err
		}
	}
	return e.unmoved(before)
}

// unmoved returns an error if something was written since before.
func (e *env) unmoved(before int64) error {
	after, err := e.revision()
	if err != nil {
		return err
	}
	if after != before {
		return fmt.Errorf("refused writes moved the revision from %d to %d", before, after)
	}
	return nil
}

// checkValues: which values are accepted, and that they are read back unchanged.
func checkValues(e *env) error {
	t, err := e.twin()
	if err != nil {
		return err
	}
	binary := make([]byte, 1024)
	for i := range binary {
		binary[i] = byte(i * 7)
	}
	large := make([]byte, 1<<20)
	for i := range large {
		large[i] = byte(i ^ i>>8)
	}
	values := [][]byte{nil, {}, {0}, []byte("k8s\x00"), binary, large, nil, []byte("after nothing")}
	for i, value := range values {
		key := e.key(fmt.Sprintf("new-%d", i))
		if err := errors.Join(t.create(key, value), t.get(key)); err != nil {
			return err
		}
	}
	key := e.key("new-0")
	for _, value := range values {
		err := errors.Join(t.update(key, value, t.m.keys[key].ModRevision), t.get(key))
		if err != nil {
			return err
		}
	}
	if err := t.everything(); err != nil {
		return err
	}
	before, err := e.revision()
	if err != nil {
		return err
	}
	huge := make([]byte, storage.MaxValueBytes+1)
	_, create := e.b.Create(e.ctx, e.key("huge"), huge, 0)
	_, update := e.b.Update(e.ctx, key, huge, t.rev(t.m.keys[key].ModRevision), 0)
	if err := errors.Join(
		fails("create above the largest value", create, storage.ErrTooLarge),
		fails("update above the largest value", update, storage.ErrTooLarge),
		e.unmoved(before)); err != nil {
		return err
	}
	// A stricter store may refuse the largest value, but must not change it.
	kv, err := e.b.Create(e.ctx, e.key("huge"), huge[1:], 0)
	if errors.Is(err, storage.ErrTooLarge) {
		return e.unmoved(before)
	}
	if err != nil {
		return fmt.Errorf("create of the largest value: %w", err)
	}
	got, err := e.b.Get(e.ctx, kv.Key)
	if err != nil || len(got.Value) != storage.MaxValueBytes {
		return fmt.Errorf("largest value has %d bytes, error %v", len(got.Value), err)
	}
	_, _, err = e.b.Delete(e.ctx, kv.Key, kv.ModRevision)
	return err
}

// checkAliasing: a slice that was passed in belongs to the caller again after the call.
// The writer overwrites every one.
func checkAliasing(e *env) error {
	after, err := e.revision()
	if err != nil {
		return err
	}
	h := &history{}
	w := e.writer(h)
	live, err := e.follow(e.prefix, 0)
	if err != nil {
		return err
	}
	defer live.w.Close()
	for i := range 20 {
		if err := w.put(e.key(fmt.Sprint(i%3)), fill(fmt.Sprint(i), 10*i)); err != nil {
			return err
		}
	}
	page, err := e.list(0)
	if err != nil {
		return err
	}
	late, err := e.follow(e.prefix, after)
	if err != nil {
		return err
	}
	defer late.w.Close()
	log := h.log()
	return errors.Join(
		diffKVs("list", page.Items, stateAt(log, e.prefix, page.Revision)),
		live.matches(log, after),
		late.matches(log, after))
}

// checkCancelled: a call whose context has ended says so.
func checkCancelled(e *env) error {
	kv, err := e.b.Create(e.ctx, e.key("a"), []byte("1"), 0)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	cancelled, cancel := context.WithCancel(e.ctx)
	cancel()
	expired, cancel := context.WithDeadline(e.ctx, time.Now().Add(-time.Second))
	defer cancel()
	for _, ctx := range []context.Context{cancelled, expired} {
		_, create := e.b.Create(ctx, e.key("b"), nil, 0)
		_, update := e.b.Update(ctx, kv.Key, nil, kv.ModRevision, 0)
		_, _, remove := e.b.Delete(ctx, kv.Key, kv.ModRevision)
		_, get := e.b.Get(ctx, kv.Key)
		_, list := e.b.List(ctx, e.prefix, storage.ListOptions{})
		_, _, count := e.b.Count(ctx, e.prefix)
		_, revision := e.b.Revision(ctx)
		_, status := e.b.Status(ctx)
		w, watch := e.b.Watch(ctx, e.prefix, 0)
		if watch == nil {
			_, watch = w.Next(e.ctx)
			w.Close()
		}
		want := ctx.Err()
		if err := errors.Join(
			fails("create", create, want),
			fails("update", update, want),
			fails("delete", remove, want),
			fails("get", get, want),
			fails("list", list, want),
			fails("count", count, want),
			fails("revision", revision, want),
			fails("progress", e.b.Progress(ctx), want),
			fails("compact", e.b.Compact(ctx, kv.ModRevision), want),
			fails("status", status, want),
			fails("watch", watch, want)); err != nil {
			return err
		}
	}
	return nil
}

// checkStatus: the status agrees with the store.
func checkStatus(e *env) error {
	kv, err := e.b.Create(e.ctx, e.key("a"), nil, 0)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	s, err := e.b.Status(e.ctx)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if s.Engine == "" || s.Revision < kv.ModRevision || s.CompactRevision > s.Revision || s.SizeBytes < 0 || s.SizeLimitBytes < 0 || s.ReadOnly != nil {
		return fmt.Errorf("status after revision %d: %+v", kv.ModRevision, s)
	}
	return nil
}
