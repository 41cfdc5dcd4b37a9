package flow

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/request"
)

// This file estimates how many seats a request takes, and for how long.

// Bounds of the estimates.
const (
	maxListSeats  = 100
	maxWriteSeats = 10
	bytesPerSeat  = 100_000
	// maxListBytes is the largest size of a list that counts: larger ones are streamed
	// in pieces.
	maxListBytes = 1_000_000
	// unknownSize is the assumed size in bytes of an object of unknown size.
	unknownSize = 1_500_000
	// A write causes work for watches, after it has been answered.
	watchesPerSeat = 10
	eventDuration  = 5 * time.Millisecond
)

// Stats returns the size of a resource. It is called for every list, so it must be fast. Unknown
// resources count as empty.
type Stats func(group, resource string) Size

// Size is the number of objects of a resource, their average size in bytes, and whether they are
// in namespaces.
type Size struct {
	Count, AverageBytes int64
	Namespaced          bool
}

// estimate is the cost of a request: seats while it is executed, and seats for some
// time after it.
type estimate struct {
	initial, final int
	after          time.Duration
}

// seats returns the largest number of seats that the request takes.
func (e *estimate) seats() int { return max(e.initial, e.final) }

// estimate estimates the cost of a request. The level of the schema limits it to
// maxSeats; 0 is no limit.
func (c *Control) estimate(r *request.Request, s *schema) estimate {
	limit := s.maxSeats
	switch r.Verb {
	case request.List, request.Watch:
		if r.IsResource {
			return estimate{initial: c.listSeats(r, limit)}
		}
	case request.DeleteCollection:
		e := c.writeSeats(r, limit, s.observers().Watches)
		e.initial = c.listSeats(r, limit) // it reads what it deletes
		return e
	case request.Create, request.Update, request.Patch, request.Delete:
		return c.writeSeats(r, limit, s.observers().Watches)
	}
	return estimate{initial: 1}
}

func capped(limit, most int) int64 {
	if limit == 0 || limit > most {
		return int64(most)
	}
	return int64(limit)
}

// listSeats estimates lists, watches that begin with a list, and deletes of collections.
func (c *Control) listSeats(r *request.Request, limit int) int {
	o := r.ListOptions()
	if o.NumberErr != nil {
		return int(capped(limit, maxListSeats)) // it will be refused; a bad request must not be cheaper
	}
	if r.Verb == request.Watch && !o.ReadsState() {
		return 1
	}
	if c.stats == nil {
		return 1
	}
	stats := c.stats(r.Group, r.Resource)
	count, size := stats.Count, stats.AverageBytes
	if size <= 0 {
		size = unknownSize
	}
	// A page with selectors looks at all objects if few match.
	if page := o.PageLimit(false); page > 0 && r.Verb != request.Watch && !o.Selects() {
		count = min(count, page)
	}
	// A name is looked up if only one object can have it; else all are looked at. Nobody goes on
	// after that one.
	if r.Name != "" && (r.Namespace != "" || !stats.Namespaced) && o.Continue == "" {
		count = 1
	}
	// Above this count the product, which might overflow, makes no difference.
	bytes := min(min(count, maxListBytes)*size, maxListBytes)
	return int(max(1, min((bytes+bytesPerSeat-1)/bytesPerSeat, capped(limit, maxListSeats))))
}

func (c *Control) writeSeats(r *request.Request, limit int, sample Observer) estimate {
	e := estimate{initial: 1}
	if r.Resource == "serviceaccounts" && r.Subresource == "token" {
		return e // creating a token writes nothing
	}
	watches := c.watches.receivers(&r.Info)
	observe(sample, watches)
	if watches < watchesPerSeat {
		return e
	}
	wanted := (watches + watchesPerSeat - 1) / watchesPerSeat
	e.final = min(wanted, int(capped(limit, maxWriteSeats)))
	// With fewer seats the work takes longer.
	e.after = eventDuration * time.Duration(wanted) / time.Duration(e.final)
	return e
}

// watches counts the open watches by what they watch.
type watches struct {
	all atomic.Int64 // number of watches; usually zero or few, then by is not looked at
	mu  sync.Mutex
	by  map[watched]int
}

// watched is the scope of a watch: all objects of a resource, those of a namespace, or
// one object.
type watched struct{ group, resource, namespace, name string }

// add counts a watch, unless it gets only few of the events.
func (w *watches) add(r *request.Request) (what watched, counted bool) {
	if r.Resource == "pods" && selectsNode(r) {
		return watched{}, false
	}
	what = watched{r.Group, r.Resource, r.Namespace, r.Name}
	w.all.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = map[watched]int{}
	}
	w.by[what]++
	return what, true
}

func (w *watches) remove(what watched) {
	w.all.Add(-1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by[what]--; w.by[what] == 0 {
		delete(w.by, what)
	}
}

// receivers returns the number of watches that get the event of a write.
func (w *watches) receivers(i *request.Info) int {
	if w.all.Load() == 0 {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.by[watched{group: i.Group, resource: i.Resource}]
	if i.Namespace != "" {
		n += w.by[watched{group: i.Group, resource: i.Resource, namespace: i.Namespace}]
	}
	if i.Name != "" {
		n += w.by[watched{i.Group, i.Resource, i.Namespace, i.Name}]
	}
	if i.Name != "" && i.Namespace != "" { // of a name in all namespaces
		n += w.by[watched{group: i.Group, resource: i.Resource, name: i.Name}]
	}
	return n
}

// selectsNode reports whether a watch of pods selects those of one node, as kubelets do.
func selectsNode(r *request.Request) bool {
	node, exact := r.ListOptions().Fields.RequiresExactMatch("spec.nodeName")
	return exact && node != ""
}
