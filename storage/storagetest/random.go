package storagetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/apikeel/kelson/storage"
)

// checkRandom: random operations, one after the other, have the answers that
// the model gives.
func checkRandom(e *env) error {
	first := e.seed
	for i := range int64(e.times(3, 10)) {
		e.seed = first + i
		sub := e.below(fmt.Sprint(i))
		err := sub.walk(e.times(350, 3000))
		// The walk may have restarted the store.
		e.b = sub.b
		if err != nil {
			return err
		}
	}
	return nil
}

// walk does n random operations.
func (e *env) walk(n int) error {
	t, err := e.twin()
	if err != nil {
		return err
	}
	r := &walker{twin: t, rng: e.rand(0)}
	defer func() {
		for _, w := range r.watches {
			w.w.Close()
		}
	}()
	for i := range n {
		if err := r.step(); err != nil {
			return fmt.Errorf("operation %d: %w; the last ones were:\n%s", i, err, strings.Join(r.trace, "\n"))
		}
	}
	for _, w := range slices.Clone(r.watches) {
		if err := r.drain(w); err != nil {
			return err
		}
	}
	return t.everything()
}

// walker is a twin with a random source.
type walker struct {
	*twin
	rng     *rand.Rand
	watches []*walkerWatch
	trace   []string
}

// walkerWatch is an open watch; after is a revision of the store.
type walkerWatch struct {
	*follower
	after int64
}

// did notes an operation for the report of a failure.
func (r *walker) did(format string, args ...any) {
	r.trace = append(r.trace, fmt.Sprintf(format, args...))
	if len(r.trace) > 30 {
		r.trace = r.trace[1:]
	}
}

// key returns one of a few keys, some of which are prefixes of others.
func (r *walker) key() string {
	names := []string{"a", "a/", "a/b", "a/b/c", "a\xff", "ab", "b", "b/x", "b/y", "b/z", "c", "\xff", "d/1", "d/2", "d/3"}
	return r.e.key(names[r.rng.IntN(len(names))])
}

func (r *walker) prefix() string {
	names := []string{"", "", "a", "a/", "b/", "d/", "d", "\xff", "none"}
	return r.e.key(names[r.rng.IntN(len(names))])
}

func (r *walker) value() []byte {
	sizes := []int{0, 1, 10, 100, 1000, 20000}
	value := make([]byte, sizes[r.rng.IntN(len(sizes))])
	for i := range value {
		value[i] = byte(r.rng.Uint32())
	}
	return value
}

// guard returns a guard for key: mostly the right one.
func (r *walker) guard(key string) int64 {
	switch r.rng.IntN(10) {
	case 0:
		return 0
	case 1:
		return r.m.revision - r.rng.Int64N(min(8, r.m.revision))
	case 2:
		return r.m.revision + 3
	}
	return r.m.keys[key].ModRevision
}

// past returns a revision of the model, sometimes one that cannot be read.
func (r *walker) past() int64 {
	// Revisions that were compacted before the twin began are not known.
	oldest := max(r.m.compacted-2, 1)
	return oldest + r.rng.Int64N(r.m.revision+2-oldest)
}

// step does one operation.
func (r *walker) step() error {
	key, prefix := r.key(), r.prefix()
	switch n := r.rng.IntN(100); {
	case n < 22:
		value := r.value()
		r.did("create %q, %d bytes", key, len(value))
		return r.create(key, value)
	case n < 42:
		value, guard := r.value(), r.guard(key)
		r.did("update %q, %d bytes, guard %d", key, len(value), guard)
		return r.update(key, value, guard)
	case n < 54:
		guard := r.guard(key)
		r.did("delete %q, guard %d", key, guard)
		return r.delete(key, guard)
	case n < 62:
		r.did("get %q", key)
		return r.get(key)
	case n < 80:
		opts := storage.ListOptions{Limit: r.rng.IntN(5), Count: r.rng.IntN(2) == 0, KeysOnly: r.rng.IntN(4) == 0}
		if r.rng.IntN(2) == 0 {
			opts.Revision = r.past()
		}
		if r.rng.IntN(3) == 0 {
			opts.Start = key
			prefix = key[:len(r.e.prefix)+r.rng.IntN(2)]
		}
		r.did("list %q %+v", prefix, opts)
		return r.list(prefix, opts)
	case n < 83:
		r.did("count %q", prefix)
		return r.count(prefix)
	case n < 84:
		rev := 2 + r.rng.Int64N(r.m.revision)
		r.did("compact %d", rev)
		return r.compact(rev)
	case n < 90:
		after := r.rev(r.past())
		r.did("watch %q after %d", prefix, after)
		return r.watch(prefix, after)
	case n < 98:
		if len(r.watches) == 0 {
			return nil
		}
		w := r.watches[r.rng.IntN(len(r.watches))]
		r.did("drain %q after %d", w.prefix, w.after)
		return r.drain(w)
	case n < 99 && r.e.subject.Reopen != nil:
		return r.restart()
	}
	return r.everything()
}

// watch opens a watch after a revision of the store, if that is kept.
func (r *walker) watch(prefix string, after int64) error {
	f, err := r.e.follow(prefix, after)
	if after+1 < r.rev(r.m.compacted) {
		if err == nil {
			err = f.next(r.e.ctx)
			f.w.Close()
		}
		return fails("watch", err, storage.ErrCompacted)
	}
	if err != nil {
		return err
	}
	r.watches = append(r.watches, &walkerWatch{follower: f, after: after})
	if len(r.watches) > 8 {
		r.end(r.watches[0])
	}
	return nil
}

func (r *walker) end(w *walkerWatch) {
	w.w.Close()
	r.watches = slices.DeleteFunc(r.watches, func(x *walkerWatch) bool { return x == w })
}

// drain reads all events of a watch.
func (r *walker) drain(w *walkerWatch) error {
	err := w.until(r.rev(r.m.revision))
	if err != nil && !errors.Is(err, storage.ErrCompacted) {
		return err
	}
	what := fmt.Sprintf("watch of %q after %d", w.prefix, w.after)
	if err != nil {
		r.end(w)
		if at := r.rev(r.m.compacted); w.pos+1 >= at {
			return fmt.Errorf("%s is at %d, and %d can be watched: %w", what, w.pos, at, err)
		}
	}
	var want []storage.Event
	for _, ev := range r.expected(w.prefix, w.after) {
		if ev.KV.ModRevision <= w.pos {
			want = append(want, ev)
		}
	}
	return diffEvents(what, w.events, want)
}

// restart ends all watches, each where it is, and opens them again there.
func (r *walker) restart() error {
	r.did("restart")
	old := r.watches
	r.watches = nil
	r.e.reopen()
	for _, w := range old {
		if err := over(r.e.ctx, "watch of the store that was closed", w.w, storage.ErrClosed); err != nil {
			// It may have been compacted before.
			if over(r.e.ctx, "", w.w, storage.ErrCompacted) != nil {
				return err
			}
		}
		w.w.Close()
		if w.after+1 >= r.rev(r.m.compacted) {
			if err := r.watch(w.prefix, w.after); err != nil {
				return err
			}
		}
	}
	return r.everything()
}
