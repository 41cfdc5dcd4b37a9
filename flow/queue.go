package flow

import (
	"fmt"
	"math"
	"time"

	"github.com/apikeel/kelson/request"
)

// This file holds the queues of a level and the entries in them.

// work is seats multiplied by time, in units of 1e-8 seat-seconds. It also measures
// virtual time: the work that each busy queue of a level could have done since the
// level was last idle. An int64 holds decades of it for levels with a few hundred
// seats.
type work int64

const workSecond = 1e8

func seatTime(seats float64, d time.Duration) work {
	return work(math.Round(seats * float64(d) / (float64(time.Second) / workSecond)))
}

// String formats work as the debug pages do.
func (w work) String() string { return fmt.Sprintf("%d.%08dss", w/workSecond, w%workSecond) }

// Entry is the state of a request in a Limiter. It is embedded in the server's own
// state of the request, so that admitting a request need not allocate.
type Entry struct {
	// Client, if set before Enter, is who may be cut off while others wait for its seats.
	Client Client
	// RetryAfter is the Retry-After in seconds for a refused request.
	RetryAfter int
	// Waited is how long the request waited in a queue.
	Waited time.Duration

	limit *limit // set by InFlight

	control       *Control
	request       *request.Request
	schema        *schema
	distinguisher string
	estimate      estimate
	watched       watched
	counted       bool // in control.watches
	admitted      bool // admitted and not released
	worked        time.Duration

	// The fields below are guarded by the level's mu.
	level            *level
	queue            *queue
	flow             uint64
	state            state
	arrived, started time.Time
	arrivedAt        work          // in virtual time
	dispatched       chan struct{} // closed when the entry need not wait any longer; nil if it never waited
	ahead            int           // entries in its queue when it was added, including itself
	before, after    *Entry        // neighbours in the list of its queue, or in level.running
}

// state is where an entry is.
type state uint8

const (
	outside state = iota // not yet entered, refused, or ended
	waiting
	working
)

// reason is why a request was refused.
type reason uint8

const (
	noSeat reason = iota // of a level without queues
	queueFull
	timedOut
	reasons
)

func (r reason) String() string {
	return [...]string{"concurrency-limit", "queue-full", "time-out"}[r]
}

// total is the work that an entry is charged with in advance.
func (e *Entry) total() work {
	return seatTime(float64(e.estimate.initial), serviceTime) + seatTime(float64(e.estimate.final), e.estimate.after)
}

// list is a doubly linked list of entries, the oldest first.
type list struct{ first, last *Entry }

func (l *list) push(e *Entry) {
	e.before, e.after = l.last, nil
	if l.last == nil {
		l.first = e
	} else {
		l.last.after = e
	}
	l.last = e
}

func (l *list) remove(e *Entry) {
	if e.before == nil {
		l.first = e.after
	} else {
		e.before.after = e.after
	}
	if e.after == nil {
		l.last = e.before
	} else {
		e.after.before = e.before
	}
	e.before, e.after = nil, nil
}

// queue is one of the queues of a level. It is busy while entries wait in it or entries
// that came from it are executed.
type queue struct {
	index    int
	entries  list
	waiting  int
	working  int
	seats    int // in use by its entries
	initial  int // initial seats of the waiting entries
	most     int // largest seats of the waiting entries
	sum      work
	dispatch work // virtual start time of the next entry
	running  owed // of its executing entries
}

func (q *queue) busy() bool { return q.waiting > 0 || q.working > 0 }

// owed is the work of executing requests beyond what they were charged with in advance.
// It makes a queue with long requests pay before the first of them ends.
type owed struct {
	seats int64
	since int64 // sum over all seats of the time when it was taken, in microseconds
}

func (o *owed) add(seats int, at time.Duration) {
	o.seats += int64(seats)
	o.since += int64(seats) * at.Microseconds()
}

func (o *owed) at(now time.Duration) work {
	return max(0, seatTime(1, time.Duration(o.seats*(now-serviceTime).Microseconds()-o.since)*time.Microsecond))
}

// virtualStart returns the virtual start time of the next entry, less the work in progress.
func (q *queue) virtualStart() work { return q.dispatch - seatTime(float64(q.seats), serviceTime) }

// raiseToArrival prevents a queue from saving up a share that it did not use: in virtual time
// too, no entry starts before it has arrived.
func (q *queue) raiseToArrival() {
	if first := q.entries.first; first != nil {
		q.dispatch = max(q.dispatch, first.arrivedAt)
	}
}
