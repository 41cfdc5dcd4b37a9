package storagetest

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/apikeel/kelson/storage"
)

// history collects the writes that a check made and the store acknowledged,
// independently of what the store returns about its past.
type history struct {
	mu     sync.Mutex
	events []storage.Event
}

func (h *history) add(ev storage.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, ev)
}

// log returns all events in the order of their revisions.
func (h *history) log() []storage.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	log := slices.Clone(h.events)
	slices.SortFunc(log, func(a, b storage.Event) int { return cmp.Compare(a.KV.ModRevision, b.KV.ModRevision) })
	return log
}

// last returns the highest revision acknowledged so far.
func (h *history) last() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	var last int64
	for _, ev := range h.events {
		last = max(last, ev.KV.ModRevision)
	}
	return last
}

// unique returns an error if two writes took the same revision.
func (h *history) unique() error {
	log := h.log()
	for i := 1; i < len(log); i++ {
		if log[i].KV.ModRevision == log[i-1].KV.ModRevision {
			return fmt.Errorf("two writes have one revision: %s and %s", showEvent(log[i-1]), showEvent(log[i]))
		}
	}
	return nil
}

// writer writes keys that no one else writes, so that it knows what every
// answer must be. It is for one goroutine.
type writer struct {
	e    *env
	h    *history
	keys map[string]storage.KeyValue
	last int64
}

func (e *env) writer(h *history) *writer {
	return &writer{e: e, h: h, keys: map[string]storage.KeyValue{}}
}

// put creates or updates a key.
func (w *writer) put(key, value string) error {
	prev, ok := w.keys[key]
	var kv storage.KeyValue
	var err error
	op := storage.Created
	b := []byte(value)
	if ok {
		op = storage.Updated
		kv, err = w.e.b.Update(w.e.ctx, key, b, prev.ModRevision, 0)
	} else {
		kv, err = w.e.b.Create(w.e.ctx, key, b, 0)
	}
	if err != nil {
		return fmt.Errorf("put %q: %w", key, err)
	}
	want := storage.KeyValue{Key: key, Value: []byte(value), ModRevision: kv.ModRevision, CreateRevision: kv.ModRevision}
	if ok {
		want.CreateRevision = prev.CreateRevision
	}
	if err := diffKV("answer to a put", kv, want); err != nil {
		return err
	}
	// The slice belongs to the caller again: a store that kept it shows the changed
	// bytes.
	for i := range b {
		b[i] = '!'
	}
	w.keys[key] = want
	return w.wrote(storage.Event{Op: op, KV: want, Prev: prev})
}

// remove deletes a key that is there.
func (w *writer) remove(key string) error {
	prev := w.keys[key]
	kv, rev, err := w.e.b.Delete(w.e.ctx, key, prev.ModRevision)
	if err != nil {
		return fmt.Errorf("delete %q: %w", key, err)
	}
	if err := diffKV("answer to a delete", kv, prev); err != nil {
		return err
	}
	delete(w.keys, key)
	gone := storage.KeyValue{Key: key, CreateRevision: prev.CreateRevision, ModRevision: rev}
	return w.wrote(storage.Event{Op: storage.Deleted, KV: gone, Prev: prev})
}

// wrote records an acknowledged write.
func (w *writer) wrote(ev storage.Event) error {
	rev := ev.KV.ModRevision
	if rev <= w.last {
		return fmt.Errorf("revision %d was given after %d", rev, w.last)
	}
	w.last = rev
	w.h.add(ev)
	return nil
}

// any writes or deletes a random one of n keys whose names begin with base.
func (w *writer) any(rng *rand.Rand, base string, n int) error {
	key := fmt.Sprintf("%s%02d", base, rng.IntN(n))
	if _, ok := w.keys[key]; ok && rng.IntN(4) == 0 {
		return w.remove(key)
	}
	return w.put(key, fmt.Sprintf("%d", rng.Int64()))
}

// churn is a group of writers in the background. They make only as many writes as the
// check allows, so that reads and writes interleave whatever their speed.
type churn struct {
	*history
	writes chan struct{} // one for every write allowed
	quit   func()        // tells the writers to stop
	free   func()        // allows all writes
	done   chan struct{} // closed when there are no writers any more
	result error
}

// churn starts n writers that call write so many times each.
func (e *env) churn(n, rounds int, write func(i, round int, w *writer) error) *churn {
	stopped, freed := make(chan struct{}), make(chan struct{})
	c := &churn{
		history: &history{},
		writes:  make(chan struct{}, n*rounds),
		quit:    sync.OnceFunc(func() { close(stopped) }),
		free:    sync.OnceFunc(func() { close(freed) }),
		done:    make(chan struct{}),
	}
	go func() {
		defer close(c.done)
		err := together(n, func(i int) error {
			w := e.writer(c.history)
			for round := range rounds {
				select {
				case <-stopped:
					return nil
				case <-c.writes:
				case <-freed:
				}
				if err := write(i, round, w); err != nil {
					return err
				}
			}
			return nil
		})
		c.result = errors.Join(err, c.unique())
	}()
	return c
}

// allow lets the writers make n more writes, and reports whether any are left.
func (c *churn) allow(n int) bool {
	// A reader in a tight loop would keep the writers off a busy processor.
	runtime.Gosched()
	for range n {
		select {
		case c.writes <- struct{}{}:
		default: // all writes are allowed already
		}
	}
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// wait allows all writes, waits for the writers and returns their error.
func (c *churn) wait() error {
	c.free()
	<-c.done
	return c.result
}

// stop stops the writers, where a check ends before they do.
func (c *churn) stop() {
	c.quit()
	<-c.done
}

// stateAt replays log, which is ordered, up to revision: the keys that begin
// with prefix, in order.
func stateAt(log []storage.Event, prefix string, revision int64) []storage.KeyValue {
	state := map[string]storage.KeyValue{}
	for _, ev := range log {
		switch {
		case ev.KV.ModRevision > revision:
		case !strings.HasPrefix(ev.KV.Key, prefix):
		case ev.Op == storage.Deleted:
			delete(state, ev.KV.Key)
		default:
			state[ev.KV.Key] = ev.KV
		}
	}
	items := make([]storage.KeyValue, 0, len(state))
	for _, kv := range state {
		items = append(items, kv)
	}
	slices.SortFunc(items, func(a, b storage.KeyValue) int { return strings.Compare(a.Key, b.Key) })
	return items
}

// eventsOf returns the events of log, which is ordered, above after whose keys
// begin with prefix; the first limit of them, if that is not zero.
func eventsOf(log []storage.Event, prefix string, after int64, limit int) []storage.Event {
	first := sort.Search(len(log), func(i int) bool { return log[i].KV.ModRevision > after })
	var events []storage.Event
	for _, ev := range log[first:] {
		if strings.HasPrefix(ev.KV.Key, prefix) {
			events = append(events, ev)
		}
		if len(events) == limit && limit > 0 {
			break
		}
	}
	return events
}
