package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
)

// past is a model of a store: what it had at every revision, and what was done when.
type past struct {
	states map[int64]map[string]string
	log    []storage.Change
}

// writeRandomly writes n times, a second of the clock apart, to a store and to the model.
func (p *past) writeRandomly(t *testing.T, b storage.Backend, n int, clock *fakeClock) {
	t.Helper()
	ctx, r := t.Context(), randomtest.New(t)
	last := int64(1)
	if len(p.log) > 0 {
		last = p.log[len(p.log)-1].KV.ModRevision
	} else {
		p.states = map[int64]map[string]string{1: {}}
	}
	guards := map[string]int64{}
	for i := range n {
		clock.advance(time.Second)
		key, value := fmt.Sprint("/k/", r.IntN(10)), fmt.Sprintf("%d-%0*d", i, r.IntN(300), 0)
		state := maps.Clone(p.states[last])
		old, exists := state[key]
		c := storage.Change{Time: time.UnixMilli(clock.Now().UnixMilli())}
		var kv storage.KeyValue
		var err error
		switch {
		case !exists:
			c.Op = storage.Created
			kv, err = b.Create(ctx, key, []byte(value), 0)
			last = kv.ModRevision
		case r.IntN(4) == 0:
			c.Op, value = storage.Deleted, ""
			kv, last, err = b.Delete(ctx, key, guards[key])
		default:
			c.Op = storage.Updated
			kv, err = b.Update(ctx, key, []byte(value), guards[key], 0)
			last = kv.ModRevision
		}
		if err != nil {
			t.Fatal(err)
		}
		c.KV, c.Prev = storage.KeyValue{Key: key, Value: []byte(value), ModRevision: last}, storage.KeyValue{Value: []byte(old)}
		guards[key] = last
		if state[key] = value; c.Op == storage.Deleted {
			delete(state, key)
		}
		p.states[last], p.log = state, append(p.log, c)
	}
}

// check compares what a store tells of its past with the model, from a revision on.
func (p *past) check(t *testing.T, b storage.Backend, oldest int64, times bool) {
	t.Helper()
	ctx := t.Context()
	for _, c := range p.log {
		at := c.KV.ModRevision
		page, err := b.List(ctx, "/k/", storage.ListOptions{Revision: at, History: true})
		if at < oldest {
			if !errors.Is(err, storage.ErrCompacted) {
				t.Fatalf("list at %d, before the history: %v, want ErrCompacted", at, err)
			}
			continue
		}
		got := map[string]string{}
		for _, item := range page.Items {
			got[item.Key] = string(item.Value)
		}
		if err != nil || !maps.Equal(got, p.states[at]) {
			t.Fatalf("at revision %d: %v (%v), want %v", at, got, err, p.states[at])
		}
		if found, err := storage.RevisionAt(ctx, b, c.Time); times && (err != nil || found != at) {
			t.Fatalf("revision at %v: %d (%v), want %d", c.Time, found, err, at)
		}
	}
	for _, key := range []string{"", "/k/3"} {
		var want []string
		for _, c := range slices.Backward(p.log) {
			if c.KV.ModRevision >= oldest && (key == "" || c.KV.Key == key) {
				want = append(want, text(&c, times))
			}
		}
		if got := allPages(t, b, key, times); !slices.Equal(got, want) {
			t.Errorf("changes of %q from %d on:\n got %q\nwant %q", key, oldest, got, want)
		}
	}
}

// allPages reads all changes, of a key or of all keys, in small pages.
func allPages(t *testing.T, b storage.Backend, key string, times bool) (all []string) {
	t.Helper()
	opts := storage.ChangesOptions{Key: key, Prefix: "/k/", Limit: 7, MaxBytes: 1000}
	for range 1000 {
		n := 0
		complete, err := storage.Changes(t.Context(), b, opts, func(c *storage.Change) error {
			n++
			all = append(all, text(c, times))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if n > opts.Limit {
			t.Fatalf("a page has %d changes, want at most %d", n, opts.Limit)
		}
		if opts.To = complete - 1; n == 0 {
			return all
		}
	}
	t.Fatal("the pages do not end")
	return nil
}

func text(c *storage.Change, times bool) string {
	s := fmt.Sprintf("%d %v %s %q %q", c.KV.ModRevision, c.Op, c.KV.Key, c.KV.Value, c.Prev.Value)
	if times {
		s += fmt.Sprint(" ", c.Time.UnixMilli())
	}
	return s
}

// What is kept for history is complete, and nothing of it is in lists and watches, also
// after a restart.
func TestRetainedHistoryIsComplete(t *testing.T) {
	ctx := t.Context()
	clock := &fakeClock{now: time.Now()}
	opts := Options{Dir: t.TempDir(), HistoryAge: time.Minute, RetainAge: 10 * time.Minute, now: clock.Now}
	e := open(t, opts)
	var p past
	p.writeRandomly(t, e, 500, clock)
	p.check(t, e, 1, true)
	trim(t, e)
	window := e.compacted.Load()
	if want := p.log[len(p.log)-61].KV.ModRevision; window != want {
		t.Errorf("watches begin at %d, want %d", window, want)
	}
	p.check(t, e, 1, true)
	if _, err := e.List(ctx, "", storage.ListOptions{Revision: window - 1}); !errors.Is(err, storage.ErrCompacted) {
		t.Errorf("list before the window: %v, want ErrCompacted", err)
	}
	if _, err := e.Watch(ctx, "", window-2); !errors.Is(err, storage.ErrCompacted) {
		t.Errorf("watch before the window: %v, want ErrCompacted", err)
	}
	p.writeRandomly2(t, e, clock)
	trim(t, e)
	oldest := p.oldestSince(clock.Now().Add(-opts.RetainAge))
	if got := e.floor.Load(); got != oldest {
		t.Fatalf("history begins at %d, want %d", got, oldest)
	}
	p.check(t, e, oldest, true)
	if _, err := e.RevisionAt(ctx, p.log[0].Time); !errors.Is(err, storage.ErrCompacted) {
		t.Errorf("revision at a time before the history: %v, want ErrCompacted", err)
	}
	kept, before := e.retained.Load(), e.storedVersions(t)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = open(t, opts)
	trim(t, e)
	p.check(t, e, oldest, true)
	if got := e.retained.Load(); got != kept {
		t.Errorf("after a restart %d bytes are counted, want %d", got, kept)
	}
	// Without --history all of it goes.
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	opts.RetainAge = 0
	e = open(t, opts)
	polltest.Until(t, "most versions are removed without retention", func() bool { return e.storedVersions(t) < before/2 })
	p.check(t, e, e.compacted.Load(), true)
	// And it begins anew when it is on again.
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	opts.RetainAge = time.Hour
	e = open(t, opts)
	p.check(t, e, e.compacted.Load(), true)
}

// writeRandomly2 goes on with a second seed after the first run.
func (p *past) writeRandomly2(t *testing.T, e *Engine, clock *fakeClock) {
	t.Helper()
	state := p.states[p.log[len(p.log)-1].KV.ModRevision]
	for key := range state {
		clock.advance(time.Second)
		kv, err := e.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		_, revision, err := e.Delete(t.Context(), key, kv.ModRevision)
		if err != nil {
			t.Fatal(err)
		}
		state = maps.Clone(state)
		delete(state, key)
		p.states[revision] = state
		p.log = append(p.log, storage.Change{Time: time.UnixMilli(clock.Now().UnixMilli()), Event: storage.Event{
			Op: storage.Deleted, KV: storage.KeyValue{Key: key, ModRevision: revision}, Prev: storage.KeyValue{Value: kv.Value}}})
	}
	p.writeRandomly(t, e, 300, clock)
}

func (p *past) oldestSince(horizon time.Time) int64 {
	for _, c := range p.log {
		if c.Time.UnixMilli() >= horizon.UnixMilli() {
			return c.KV.ModRevision
		}
	}
	return 0
}

// trim does the housekeeping that the goroutine would do some time.
func trim(t *testing.T, e *Engine) {
	t.Helper()
	if err := errors.Join(e.trimHistory(), e.trimRetained()); err != nil {
		t.Fatal(err)
	}
}

// The bound in bytes holds while others write, and what is oldest goes first.
func TestRetainedBytesAreBounded(t *testing.T) {
	ctx, clock := t.Context(), &fakeClock{now: time.Now()}
	const bound = 1 << 20
	e := open(t, Options{Dir: t.TempDir(), HistoryAge: time.Minute, RetainAge: 24 * time.Hour, RetainBytes: bound, now: clock.Now})
	kv := create(t, e, "/a", "0")
	value := make([]byte, 4<<10)
	highest := int64(0)
	for i := range 2000 {
		var err error
		if kv, err = e.Update(ctx, "/a", value, kv.ModRevision, 0); err != nil {
			t.Fatal(err)
		}
		if clock.advance(time.Second); i%50 == 49 {
			trim(t, e)
			highest = max(highest, e.retained.Load())
		}
	}
	if highest > bound || highest < bound-64<<10 {
		t.Errorf("%d bytes were kept at most, want nearly %d", highest, bound)
	}
	// The window of watches comes on top: 60 versions, and up to 50 between two trims.
	if got, most := e.storedVersions(t), bound/(4<<10)+60+50+2; got > most {
		t.Errorf("%d versions are stored, want at most %d", got, most)
	}
	kept, err := e.KeptHistory(ctx)
	if err != nil || kept.Oldest != e.floor.Load() || kept.Bytes > bound || kept.MaxBytes != bound || kept.Since.IsZero() {
		t.Errorf("kept history: %+v, %v", kept, err)
	}
}

// A program that does not know of retained history removes it; the next one that does
// must not promise what is gone.
func TestRetainedHistoryRemovedByAnOlderProgram(t *testing.T) {
	clock := &fakeClock{now: time.Now()}
	opts := Options{Dir: t.TempDir(), HistoryAge: time.Minute, RetainAge: time.Hour, now: clock.Now}
	e := open(t, opts)
	var p past
	p.writeRandomly(t, e, 300, clock)
	trim(t, e)
	compacted := e.compacted.Load()
	if err := e.removeHistory(context.Background(), compacted); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = open(t, opts)
	if got := e.floor.Load(); got != compacted {
		t.Errorf("history begins at %d, want %d", got, compacted)
	}
	p.check(t, e, compacted, true)
}

// Without a Historian the changes come from a watch.
func TestChangesOfAnyBackend(t *testing.T) {
	b := memory.New(memory.Options{})
	defer b.Close()
	var p past
	p.writeRandomly(t, b, 300, &fakeClock{now: time.Now()})
	p.check(t, b, 1, false)
	compact := p.log[200].KV.ModRevision
	if err := b.Compact(t.Context(), compact); err != nil {
		t.Fatal(err)
	}
	p.check(t, b, compact, false)
	if _, err := storage.RevisionAt(t.Context(), b, time.Now()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("revision at a time: %v, want ErrUnsupported", err)
	}
}

// BenchmarkRetain compares updates with and without retained history.
func BenchmarkRetain(b *testing.B) {
	for _, c := range []struct {
		name   string
		retain time.Duration
	}{{"off", 0}, {"on", 24 * time.Hour}} {
		b.Run(c.name, func(b *testing.B) {
			e, err := Open(Options{Dir: b.TempDir(), HistoryAge: time.Second, RetainAge: c.retain, RetainBytes: 64 << 20})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			value := make([]byte, 2<<10)
			b.RunParallel(func(pb *testing.PB) {
				key := fmt.Sprintf("/k/%p", pb)
				kv, err := e.Create(b.Context(), key, value, 0)
				for err == nil && pb.Next() {
					kv, err = e.Update(b.Context(), key, value, kv.ModRevision, 0)
				}
				if err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// The names of users are kept as long as the changes that they made, and no longer.
func TestUsersAreKeptWithHistory(t *testing.T) {
	ctx, dir, clock := t.Context(), t.TempDir(), &fakeClock{now: time.Now()}
	opts := Options{Dir: dir, now: clock.Now, HistoryAge: time.Minute, RetainAge: time.Hour}
	e, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	users := map[int64]string{}
	for i := range 20 {
		users[create(t, e, fmt.Sprint("/k/", i), "v").ModRevision] = fmt.Sprint("user", i)
	}
	if err := e.NoteUsers(ctx, users); err != nil {
		t.Fatal(err)
	}
	wantUsers := func(e *Engine, from, to int64) {
		t.Helper()
		for revision, name := range users {
			if revision < from || revision > to {
				name = ""
			}
			if got, err := e.UserOf(ctx, revision); err != nil || got != name {
				t.Errorf("user of revision %d: %q (%v), want %q", revision, got, err, name)
			}
		}
	}
	wantUsers(e, 0, 100)
	clock.advance(30 * time.Minute)
	create(t, e, "/k/middle", "v")
	clock.advance(20 * time.Minute)
	trim(t, e)
	wantUsers(e, 0, 100)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := RollBack(ctx, dir, 10, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if e, err = Open(opts); err != nil {
		t.Fatal(err)
	}
	wantUsers(e, 0, 10)
	clock.advance(time.Hour)
	last := create(t, e, "/k/last", "v").ModRevision
	trim(t, e)
	wantUsers(e, last, 10)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = open(t, Options{Dir: dir})
	if err := e.NoteUsers(ctx, users); err != nil || e.KeepsUsers() {
		t.Errorf("without history: %v, keeps users %v; want no error and no users", err, e.KeepsUsers())
	}
	wantUsers(e, last, 10)
}
