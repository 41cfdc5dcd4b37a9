package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
)

// logRecords is a slog.Handler that passes on what is logged as long as there
// is room for it.
type logRecords chan slog.Record

func (l logRecords) Enabled(context.Context, slog.Level) bool { return true }
func (l logRecords) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l logRecords) WithGroup(string) slog.Handler            { return l }
func (l logRecords) Handle(_ context.Context, r slog.Record) error {
	select {
	case l <- r:
	default:
	}
	return nil
}

// wait returns the attributes of the next record with a message.
func (l logRecords) wait(tb testing.TB, message string) map[string]slog.Value {
	tb.Helper()
	for {
		select {
		case r := <-l:
			if r.Message == message {
				attrs := map[string]slog.Value{}
				r.Attrs(func(a slog.Attr) bool {
					attrs[a.Key] = a.Value
					return true
				})
				return attrs
			}
		case <-tb.Context().Done():
			tb.Fatalf("%q was not logged", message)
		}
	}
}

// collect reads at least n events and checks what holds for any sequence of
// batches.
func collect(tb testing.TB, w storage.Watcher, n int) []storage.Event {
	tb.Helper()
	var events []storage.Event
	revision := int64(-1)
	for len(events) < n {
		batch, err := w.Next(tb.Context())
		if err != nil {
			tb.Fatalf("after %d of %d events: %v", len(events), n, err)
		}
		if len(batch.Events) == 0 && batch.Revision <= revision {
			tb.Fatalf("batch without news at %d, after %d", batch.Revision, revision)
		}
		for _, e := range batch.Events {
			if e.KV.ModRevision <= revision || e.KV.ModRevision > batch.Revision {
				tb.Fatalf("event at %d in a batch at %d, after one at %d", e.KV.ModRevision, batch.Revision, revision)
			}
		}
		revision = batch.Revision
		events = append(events, batch.Events...)
	}
	return events
}

func TestWatchEvents(t *testing.T) {
	t.Parallel()
	b, ctx := open(t, etcdtest.Start(t)), t.Context()
	live, err := b.Watch(ctx, "/registry/", 0)
	if err != nil {
		t.Fatal(err)
	}
	before, err := b.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	one := create(t, b, "/registry/a", "one")
	two := update(t, b, one, "two")
	create(t, b, "/registrz", "outside")
	gone := remove(t, b, two)
	three := create(t, b, "/registry/a", "three")
	want := []storage.Event{
		{Op: storage.Created, KV: one},
		{Op: storage.Updated, KV: two, Prev: one},
		{Op: storage.Deleted, KV: storage.KeyValue{Key: "/registry/a", CreateRevision: one.CreateRevision, ModRevision: gone}, Prev: two},
		{Op: storage.Created, KV: three},
	}
	check := func(name string, w storage.Watcher, want []storage.Event) {
		t.Helper()
		got := collect(t, w, len(want))
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
			t.Errorf("%s:\n%+v, want\n%+v", name, got, want)
		}
		if last := got[len(got)-1]; last.Op == storage.Deleted && last.KV.Value != nil {
			t.Errorf("%s: a deleted key has a value", name)
		}
		w.Close()
	}
	check("live", live, want)
	for i, after := range []int64{before, one.ModRevision, two.ModRevision, gone} {
		w, err := b.Watch(ctx, "/registry/", after)
		if err != nil {
			t.Fatal(err)
		}
		check(fmt.Sprintf("after %d", after), w, want[i:])
	}

	// From a revision that is yet to come: the first is not wanted.
	future, err := b.Watch(ctx, "/registry/", three.ModRevision+1)
	if err != nil {
		t.Fatal(err)
	}
	four := update(t, b, three, "four")
	five := update(t, b, four, "five")
	check("future", future, []storage.Event{{Op: storage.Updated, KV: five, Prev: four}})
	_, err = b.Watch(ctx, "/registry/", -1)
	wantErr(t, "negative", err, storage.ErrCompacted)
}

func TestWatchEnds(t *testing.T) {
	t.Parallel()
	b := open(t, etcdtest.Start(t))
	create(t, b, "/a", "1")
	for name, c := range map[string]struct {
		end  func(w storage.Watcher, cancel context.CancelFunc)
		want error
	}{
		"Close":   {func(w storage.Watcher, _ context.CancelFunc) { w.Close(); w.Close() }, storage.ErrClosed},
		"context": {func(_ storage.Watcher, cancel context.CancelFunc) { cancel() }, context.Canceled},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w, err := b.Watch(ctx, "/", 0)
		if err != nil {
			t.Fatal(err)
		}
		once, give := context.WithCancel(t.Context())
		give()
		_, err = w.Next(once)
		wantErr(t, name+": Next whose own context ended", err, context.Canceled)
		create(t, b, "/"+name, "1")
		if got := collect(t, w, 1); got[0].KV.Key != "/"+name {
			t.Errorf("%s: %+v", name, got)
		}

		result := make(chan error)
		go func() {
			_, err := w.Next(t.Context())
			result <- err
		}()
		c.end(w, cancel)
		wantErr(t, name+": waiting", <-result, c.want)
		create(t, b, "/after "+name, "1")
		_, err = w.Next(t.Context())
		wantErr(t, name+": afterwards", err, c.want)
		<-w.(*watcher).done
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.watchers); n != 0 {
		t.Errorf("%d watchers are still known", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Watch(ctx, "/", 1)
	wantErr(t, "Watch whose context ended before", err, context.Canceled)
}

func TestProgress(t *testing.T) {
	t.Parallel()
	b, ctx := open(t, etcdtest.Start(t)), t.Context()
	start := create(t, b, "/c", "").ModRevision
	var watchers []storage.Watcher
	for _, prefix := range []string{"/a", "/b"} {
		w, err := b.Watch(ctx, prefix, 0)
		if err != nil {
			t.Fatal(err)
		}
		watchers = append(watchers, w)
	}
	future, err := b.Watch(ctx, "/", start+100)
	if err != nil {
		t.Fatal(err)
	}
	// Where they began can be asked for although nothing has happened since,
	// unless that is in the future.
	if err := b.Progress(ctx); err != nil {
		t.Fatal(err)
	}
	for _, w := range watchers {
		if batch, err := w.Next(ctx); err != nil || batch.Revision != start {
			t.Fatalf("%+v, %v; want revision %d", batch, err, start)
		}
	}
	defer func() {
		if _, ok, err := future.(*watcher).take(); ok || err != nil {
			t.Errorf("progress before the beginning: %v", err)
		}
	}()
	for i := range 20 {
		last := create(t, b, fmt.Sprintf("/b%d", i), "")
		for n, w := range watchers {
			seen := 0
			for revision := int64(0); revision < last.ModRevision; {
				// A request may get lost: ask until it is answered.
				asked, done := context.WithCancel(ctx)
				go func() {
					for asked.Err() == nil {
						if err := b.Progress(ctx); err != nil {
							t.Error(err)
						}
						select {
						case <-asked.Done():
						case <-time.After(20 * time.Millisecond):
						}
					}
				}()
				batch, err := w.Next(ctx)
				done()
				if err != nil {
					t.Fatal(err)
				}
				if batch.Revision < revision {
					t.Fatalf("went back from %d to %d", revision, batch.Revision)
				}
				revision = batch.Revision
				seen += len(batch.Events)
			}
			if seen != n {
				t.Fatalf("watcher %d: %d events up to %d", n, seen, last.ModRevision)
			}
		}
	}
}

func TestWatchAsksForProgressByItself(t *testing.T) {
	t.Parallel()
	b := open(t, etcdtest.Start(t))
	limits := defaultWatchLimits()
	limits.progress = 10 * time.Millisecond
	w, err := b.watch(t.Context(), "/quiet", 0, limits)
	if err != nil {
		t.Fatal(err)
	}
	kv := create(t, b, "/busy", "")
	for {
		batch, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if batch.Revision >= kv.ModRevision {
			return
		}
	}
}

func TestWatchWithoutPreviousValueIsCompacted(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	b, client := open(t, cluster), cluster.Client(t)
	one := create(t, b, "/a", "1")
	two := update(t, b, one, "2")
	// etcd itself would go on from here, but without previous values.
	if _, err := client.Compact(t.Context(), two.ModRevision); err != nil {
		t.Fatal(err)
	}
	w, err := b.Watch(t.Context(), "/", one.ModRevision)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Next(t.Context())
	wantErr(t, "Next", err, storage.ErrCompacted)
}

// TestUnreadWatch checks that a watcher which is not read holds a bounded
// number of events, whether its stream is held up or given up, and that they
// all come once it is read, each revision in one batch.
func TestUnreadWatch(t *testing.T) {
	t.Parallel()
	const size = 20 // events of a revision
	for name, c := range map[string]struct {
		patience     time.Duration
		transactions int
	}{
		"held up":   {time.Hour, 200},
		"suspended": {time.Millisecond, 2500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := etcdtest.Start(t)
			logged := make(logRecords, 100)
			b := open(t, cluster, func(o *Options) { o.Logger = slog.New(logged) })
			client := cluster.Client(t)
			limits := defaultWatchLimits()
			limits.patience = c.patience
			w, err := b.watch(t.Context(), "/", 0, limits)
			if err != nil {
				t.Fatal(err)
			}
			// Keys and values so small that etcd need not split what it sends,
			// at which it takes a time that grows with the square of the number
			// of events.
			var writers sync.WaitGroup
			for i := range 10 {
				writers.Go(func() {
					for range c.transactions / 10 {
						fill(t, client, fmt.Sprintf("/%d", i), size, "v")
					}
				})
			}
			if c.patience < time.Second {
				logged.wait(t, "watch suspended, its events are not being read")
			}
			writers.Wait()
			for !w.full() {
				time.Sleep(time.Millisecond)
			}
			// One message of etcd's comes on top: at most 1000 revisions.
			bound := limits.events + 1000*size
			w.mu.Lock()
			if len(w.pending) > bound || w.size > limits.bytes {
				t.Errorf("%d events of %d bytes in memory", len(w.pending), w.size)
			}
			w.mu.Unlock()
			// It is in nobody's way.
			if _, err := b.Get(t.Context(), "/000000"); err != nil {
				t.Error(err)
			}

			revisions := map[int64]int{}
			var got int
			for got < c.transactions*size {
				batch, err := w.Next(t.Context())
				if err != nil {
					t.Fatalf("after %d events: %v", got, err)
				}
				if len(batch.Events) > bound {
					t.Errorf("a batch of %d events", len(batch.Events))
				}
				got += len(batch.Events)
				before := len(revisions)
				for i, e := range batch.Events {
					if i > 0 && e.KV.ModRevision < batch.Events[i-1].KV.ModRevision {
						t.Fatal("events are out of order")
					}
					revisions[e.KV.ModRevision]++
				}
				if len(revisions)-before != len(batch.Events)/size {
					t.Fatal("a revision is in more than one batch")
				}
			}
			if got != c.transactions*size || len(revisions) != c.transactions {
				t.Errorf("%d events of %d revisions", got, len(revisions))
			}
		})
	}
}

// TestLargeRevisions makes etcd send the events of one revision in several
// messages.
func TestLargeRevisions(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	b, client := open(t, cluster), cluster.Client(t)
	start, err := b.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Every event of the second and third has the value and the one before:
	// 100 times 25 KB, where a message has at most 2 MB.
	for _, v := range []string{"1", "2", "3"} {
		fill(t, client, "/registry/", 100, strings.Repeat(v, 12_500))
	}
	limits := defaultWatchLimits()
	limits.events = 1
	w, err := b.watch(t.Context(), "/registry/", start, limits)
	if err != nil {
		t.Fatal(err)
	}
	for got := 0; got < 300; {
		batch, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(batch.Events)%100 != 0 {
			t.Errorf("%d events", len(batch.Events))
		}
		got += len(batch.Events)
	}
}
