package store

import "github.com/apikeel/kelson/storage"

// maxArrivals is how many bytes of events are kept while a resource is loaded, unless
// its objects take more.
const maxArrivals = 16 << 20

// arrivals are the events that the feed brings while a resource is loaded, in their
// order. When they take too much room, only the last one of each key stays: they take
// about as much as the objects that are loaded, then, however long that takes.
type arrivals struct {
	events []storage.Event // without Prev, which the tree has
	bytes  int
	limit  int // bytes from which events are dropped; 0 is maxArrivals
	// complete is the revision after which no event was dropped.
	complete int64
}

func (a *arrivals) add(ev *storage.Event) {
	a.events = append(a.events, storage.Event{Op: ev.Op, KV: ev.KV})
	a.bytes += arrivalSize(ev)
	if a.bytes > max(a.limit, maxArrivals) {
		a.thin()
	}
}

// thin drops the events that a later one of the same key makes void.
func (a *arrivals) thin() {
	last := make(map[string]int, len(a.events))
	for i := range a.events {
		last[a.events[i].KV.Key] = i
	}
	kept := make([]storage.Event, 0, len(last))
	a.bytes = 0
	for i := range a.events {
		if ev := &a.events[i]; last[ev.KV.Key] == i {
			kept = append(kept, *ev)
			a.bytes += arrivalSize(ev)
		}
	}
	a.complete = a.events[len(a.events)-1].KV.ModRevision
	a.events, a.limit = kept, 2*a.bytes // so that not every event looks at all of them
}

func arrivalSize(ev *storage.Event) int { return len(ev.KV.Key) + len(ev.KV.Value) + 256 }
