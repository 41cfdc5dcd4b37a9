package flow

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/fields"

	"github.com/apikeel/kelson/request"
)

// How much a request is thought to cost.
const (
	maxListSeats  = 100
	maxWriteSeats = 10
	bytesPerSeat  = 100_000
	// maxListBytes is what a list has in memory at most: larger ones are
	// written piece by piece.
	maxListBytes = 1_000_000
	// unknownSize is the size of objects of which it is not known.
	unknownSize = 1_500_000
	// A write makes work for those who watch, after it has been answered.
	watchesPerSeat = 10
	eventDuration  = 5 * time.Millisecond
)

// Stats returns how many objects a resource has, and how large they are on
// average. It is called for every list, so it must be quick. Resources that are
// not known count as empty.
type Stats func(group, resource string) (count, averageBytes int64)

// work is what a request costs: seats while it is answered, and seats for some
// time after that.
type estimate struct {
	initial, final int
	after          time.Duration
}

// seats is how many it takes in all.
func (e *estimate) seats() int { return max(e.initial, e.final) }

// estimate says what a request of a schema costs, whose level gives it at most
// maxSeats; 0 is no limit.
func (c *Control) estimate(r *request.Request, query string, s *schema) estimate {
	limit := s.maxSeats
	switch r.Verb {
	case request.List, request.Watch:
		if r.IsResource {
			return estimate{initial: c.listSeats(r, query, limit)}
		}
	case request.Create, request.Update, request.Patch, request.Delete:
		return c.writeSeats(r, limit, s.observers.Watches)
	}
	return estimate{initial: 1}
}

func capped(limit, most int) int64 {
	if limit == 0 || limit > most {
		return int64(most)
	}
	return int64(limit)
}

// listSeats is for lists, and for watches that begin with one.
func (c *Control) listSeats(r *request.Request, query string, limit int) int {
	page, err := number(query, "limit")
	if err == nil {
		_, err = number(query, "timeoutSeconds")
	}
	if err != nil {
		return int(capped(limit, maxListSeats)) // it will be refused; nobody should profit
	}
	if r.Verb == request.Watch {
		revision, _ := request.Param(query, "resourceVersion")
		initial, wanted := request.Param(query, "sendInitialEvents")
		wanted = wanted && initial != "0" && !strings.EqualFold(initial, "false")
		if !wanted && revision != "" && revision != "0" {
			return 1
		}
	}
	if c.stats == nil {
		return 1
	}
	count, size := c.stats(r.Group, r.Resource)
	if size <= 0 {
		size = unknownSize
	}
	if page > 0 {
		count = min(count, page)
	}
	if r.Name != "" {
		count = 1
	}
	// Beyond so many the product, which might overflow, does not matter.
	bytes := min(min(count, maxListBytes)*size, maxListBytes)
	return int(max(1, min((bytes+bytesPerSeat-1)/bytesPerSeat, capped(limit, maxListSeats))))
}

// number reads a parameter, which is 0 if it is not there.
func number(query, key string) (int64, error) {
	text, ok := request.Param(query, key)
	if !ok {
		return 0, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

func (c *Control) writeSeats(r *request.Request, limit int, sample Observer) estimate {
	e := estimate{initial: 1}
	if r.Resource == "serviceaccounts" && r.Subresource == "token" {
		return e // it writes nothing
	}
	watches := c.watches.interested(&r.Info)
	observe(sample, watches)
	if watches < watchesPerSeat {
		return e
	}
	wanted := (watches + watchesPerSeat - 1) / watchesPerSeat
	e.final = min(wanted, int(capped(limit, maxWriteSeats)))
	// Fewer seats are taken for longer.
	e.after = eventDuration * time.Duration(wanted) / time.Duration(e.final)
	return e
}

// watches counts who watches what.
type watches struct {
	all atomic.Int64 // most servers that are asked have few, and need not look further
	mu  sync.Mutex
	by  map[watched]int
}

// watched is what a watch is for: all objects of a resource, those of a
// namespace, or one.
type watched struct{ group, resource, namespace, name string }

// add counts a watch, unless it sees only few of the events.
func (w *watches) add(r *request.Request, query string) (what watched, counted bool) {
	if r.Resource == "pods" && nodeOnly(query) {
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

// interested returns how many watches get to see a write.
func (w *watches) interested(i *request.Info) int {
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
	return n
}

// nodeOnly reports whether a watch of pods sees those of one node only, as
// kubelets do.
func nodeOnly(query string) bool {
	text, _ := request.Param(query, "fieldSelector")
	if !strings.Contains(text, "spec.nodeName") {
		return false
	}
	selector, err := fields.ParseSelector(text)
	if err != nil {
		return false
	}
	node, exact := selector.RequiresExactMatch("spec.nodeName")
	return exact && node != ""
}
