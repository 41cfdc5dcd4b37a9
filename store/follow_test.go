package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/wire"
	corev1 "k8s.io/api/core/v1"
)

// gate is a backend whose watch can be stopped.
type gate struct {
	storage.Backend
	mu sync.Mutex
}

func (g *gate) Watch(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
	w, err := g.Backend.Watch(ctx, prefix, after)
	return gatedWatcher{w, g}, err
}

type gatedWatcher struct {
	storage.Watcher
	g *gate
}

func (w gatedWatcher) Next(ctx context.Context) (storage.Batch, error) {
	batch, err := w.Watcher.Next(ctx)
	w.g.mu.Lock()
	defer w.g.mu.Unlock()
	return batch, err
}

func openGated(t testing.TB) (*Store, *gate) {
	t.Helper()
	b := memory.New(memory.Options{})
	g := &gate{Backend: b}
	s, err := Open(context.Background(), g, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); b.Close() })
	return s, g
}

// consumer is what a Follower has delivered.
type consumer struct {
	*Follower
	t      testing.TB
	pods   map[string]*corev1.Pod
	resets int
}

func newConsumer(t testing.TB, resources func() []*Resource) *consumer {
	return &consumer{Follower: NewFollower(resources, slog.New(slog.DiscardHandler)), t: t, pods: map[string]*corev1.Pod{}}
}

func (c *consumer) pull(ctx context.Context) error {
	return c.Pull(ctx, func(reset bool, changes []resource.Change) {
		if reset {
			c.resets++
			clear(c.pods)
		}
		for _, change := range changes {
			pod := change.Object.(*corev1.Pod)
			if change.Deleted {
				delete(c.pods, pod.Name)
			} else {
				c.pods[pod.Name] = pod
			}
		}
	})
}

func (c *consumer) want(names ...string) {
	c.t.Helper()
	if err := c.pull(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	got := []string{}
	for name := range c.pods {
		got = append(got, name)
	}
	if slices.Sort(got); !slices.Equal(got, names) {
		c.t.Fatalf("got %q, want %q", got, names)
	}
}

// definitionAt is podDefinition under another key.
func definitionAt(key string, epoch int64) *resource.Definition {
	def := podDefinition()
	def.StorageKey, def.Epoch = key, epoch
	return def
}

// TestFollowerKnowsAcknowledgedWrites holds events back: the follower must not
// be current, and must not deliver less than was acknowledged.
func TestFollowerKnowsAcknowledgedWrites(t *testing.T) {
	s, g := openGated(t)
	a, b := s.Resource(definitionAt("a", 0)), s.Resource(definitionAt("b", 0))
	c := newConsumer(t, func() []*Resource { return []*Resource{a, b} })
	if c.Current() || c.Synced() {
		t.Error("current before the first pull")
	}
	mustCreate(t, a, newPod("one", ""))
	c.want("one")
	if !c.Current() || !c.Synced() {
		t.Error("not current after a pull")
	}
	g.mu.Lock()
	mustCreate(t, b, newPod("two", ""))
	if c.Current() {
		t.Error("current without a write that was acknowledged")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := c.pull(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want to wait for the event", err)
	}
	g.mu.Unlock()
	c.want("one", "two")
	remove(t, a, "one")
	c.want("two")
	if c.resets != 1 {
		t.Errorf("got %d resets, want 1", c.resets)
	}
}

// TestFollowerWaits writes to one of several resources while the consumer waits,
// many times: no wake-up may be lost.
func TestFollowerWaits(t *testing.T) {
	s, _ := openStore(t)
	var all []*Resource
	for _, key := range []string{"a", "b", "c"} {
		all = append(all, s.Resource(definitionAt(key, 0)))
	}
	c := newConsumer(t, func() []*Resource { return all })
	if err := c.Wait(t.Context()); err != nil {
		t.Errorf("got %v, want to be sent to the first pull", err)
	}
	c.want()
	const writes = 300
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := range writes {
			mustCreate(t, all[i%len(all)], newPod(fmt.Sprint("p", i), ""))
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for len(c.pods) < writes {
		if err := c.Wait(ctx); err != nil {
			t.Fatalf("%v with %d of %d writes", err, len(c.pods), writes)
		}
		if err := c.pull(ctx); err != nil {
			t.Fatal(err)
		}
	}
	writing.Wait()
	// The events may have come before the last writes were acknowledged.
	if err := c.pull(ctx); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, cancel)
	if err := c.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want to wait until the context ends", err)
	}
	for _, r := range all {
		r.mu.Lock()
		if n := len(r.log.waiting); n != 0 {
			t.Errorf("got %d channels of those who wait no more, want 0", n)
		}
		r.mu.Unlock()
	}
}

// TestFollowerOfReplacedDefinition replaces the definition of a resource: the
// follower goes over to the new one, with all that the old one has acknowledged.
func TestFollowerOfReplacedDefinition(t *testing.T) {
	s, g := openGated(t)
	epoch := int64(1)
	current := s.Resource(definitionAt("pods", epoch))
	c := newConsumer(t, func() []*Resource { return []*Resource{current} })
	mustCreate(t, current, newPod("one", ""))
	c.want("one")
	old := current
	woken := make(chan error)
	go func() { woken <- c.Wait(t.Context()) }()
	g.mu.Lock()
	mustCreate(t, old, newPod("two", ""))
	current = s.Resource(definitionAt("pods", epoch+1))
	if err := <-woken; err != nil || c.Current() {
		t.Errorf("got %v and current is %v, want to be told of the end of the definition", err, c.Current())
	}
	if got, want := current.Acknowledged(), old.Acknowledged(); got != want || got == 0 {
		t.Errorf("got %d as the newest write, want %d", got, want)
	}
	g.mu.Unlock()
	c.want("one", "two")
	mustCreate(t, current, newPod("three", ""))
	c.want("one", "three", "two")
	if c.resets != 2 {
		t.Errorf("got %d resets, want 2", c.resets)
	}
}

// TestReadAcknowledged wants a read to wait for the writes of this process, and
// for nothing else.
func TestReadAcknowledged(t *testing.T) {
	s, g := openGated(t)
	r := s.Resource(podDefinition())
	if _, err := r.Snapshot(t.Context(), Read{}); err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	key := r.Key("default", "theirs")
	value, err := wire.EncodeStored(podDefinition(), newPod("theirs", ""))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Create(t.Context(), key, value, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Get(t.Context(), key, Read{Acknowledged: true}); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("got %v, want not to wait for others", err)
	}
	mustCreate(t, r, newPod("ours", ""))
	key = r.Key("default", "ours")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := r.Get(ctx, key, Read{Acknowledged: true}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want to wait for the event", err)
	}
	if _, err := r.Get(t.Context(), key, Read{Any: true}); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("got %v, want what the cache has", err)
	}
	g.mu.Unlock()
	if _, err := r.Get(t.Context(), key, Read{Acknowledged: true}); err != nil {
		t.Error(err)
	}
}

// TestFollowerPullsWhatTheLogHasTrimmed leaves a follower alone until the log has
// dropped what it has not got: one pull still delivers every acknowledged write.
func TestFollowerPullsWhatTheLogHasTrimmed(t *testing.T) {
	s, _ := openStore(t)
	r, quiet := s.Resource(definitionAt("a", 0)), s.Resource(definitionAt("b", 0))
	c := newConsumer(t, func() []*Resource { return []*Resource{r, quiet} })
	mustCreate(t, r, newPod("one", ""))
	c.want("one")
	remove(t, r, "one")
	for i := range 3 {
		if err := s.WaitFor(t.Context(), mustCreate(t, r, newPod(fmt.Sprint("p", i), "")).Revision); err != nil {
			t.Fatal(err)
		}
	}
	s.trim()
	if err := s.WaitFor(t.Context(), mustCreate(t, r, newPod("last", "")).Revision); err != nil {
		t.Fatal(err)
	}
	s.trim()
	c.want("last", "p0", "p1", "p2")
	if !c.Current() {
		t.Error("not current after a pull")
	}
	if c.resets != 1 {
		t.Errorf("got %d resets, want 1", c.resets)
	}
}

// TestFollowerAfterPanic lets the consumer panic: what it was given does not count
// as delivered.
func TestFollowerAfterPanic(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	c := newConsumer(t, func() []*Resource { return []*Resource{r} })
	c.want()
	mustCreate(t, r, newPod("one", ""))
	func() {
		defer func() { _ = recover() }()
		_ = c.Pull(t.Context(), func(bool, []resource.Change) { panic("cannot take it") })
	}()
	if c.Current() {
		t.Error("current after a consumer that panicked")
	}
	c.want("one")
}

func remove(t testing.TB, r *Resource, name string) {
	t.Helper()
	if _, err := r.Delete(context.Background(), r.Key("default", name), func(*Record) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkFollowerCurrent is what every decision pays to know that nothing has
// changed.
func BenchmarkFollowerCurrent(b *testing.B) {
	s, _ := openStore(b)
	var all []*Resource
	for i := range 5 {
		all = append(all, s.Resource(definitionAt(fmt.Sprint("r", i), 0)))
	}
	c := newConsumer(b, func() []*Resource { return all })
	c.want()
	b.ReportAllocs()
	for b.Loop() {
		if !c.Current() {
			b.Fatal("not current")
		}
	}
}
