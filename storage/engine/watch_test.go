package engine

import (
	"fmt"
	"testing"
)

// Wherever what is kept in memory begins, a watcher sees every event once: from
// disk up to there, from memory from there on.
func TestFeedMeetsHistory(t *testing.T) {
	ctx := t.Context()
	e := open(t, Options{Dir: t.TempDir()})
	const n = 20
	for i := range n {
		create(t, e, fmt.Sprint("/", i), "x")
	}
	last, err := e.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	e.feed.mu.Lock()
	all := e.feed.events
	e.feed.mu.Unlock()
	if len(all) != n {
		t.Fatalf("%d events are in memory, want %d", len(all), n)
	}
	for dropped := range n + 1 {
		e.feed.mu.Lock()
		e.feed.events = all[dropped:]
		e.feed.mu.Unlock()
		for after := last - n; after < last; after++ {
			w, err := e.Watch(ctx, "", after)
			if err != nil {
				t.Fatal(err)
			}
			next := after + 1
			for next <= last {
				b, err := w.Next(ctx)
				if err != nil {
					t.Fatal(err)
				}
				for _, ev := range b.Events {
					if ev.KV.ModRevision != next {
						t.Fatalf("%d events dropped, watch after %d: event %d, want %d", dropped, after, ev.KV.ModRevision, next)
					}
					next++
				}
				if b.Revision != next-1 {
					t.Fatalf("%d events dropped, watch after %d: batch says %d after event %d", dropped, after, b.Revision, next-1)
				}
			}
			w.Close()
		}
	}
}
