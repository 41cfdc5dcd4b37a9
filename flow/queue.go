package flow

import (
	"fmt"
	"math"
	"time"

	"github.com/apikeel/kelson/request"
)

// work is seats multiplied by time, in units of a hundred-millionth of a
// seat-second. It also measures virtual time: how much work each busy queue of a
// level could have got done since the level was last idle. An int64 holds
// decades of that for levels with a few hundred seats.
type work int64

const workSecond = 1e8

func seatTime(seats float64, d time.Duration) work {
	return work(math.Round(seats * float64(d) / (float64(time.Second) / workSecond)))
}

// String is the form that the pages for people have.
func (w work) String() string { return fmt.Sprintf("%d.%08dss", w/workSecond, w%workSecond) }

// Entry is a request on its way through a Limiter. It is part of what the server
// has of a request anyway, so that letting one in need not allocate.
type Entry struct {
	// RetryAfter is in how many seconds a client should come back that was
	// refused.
	RetryAfter int
	// Waited is how long the request had to wait.
	Waited time.Duration

	limit *limit // of InFlight

	control       *Control
	request       *request.Request
	schema        *schema
	distinguisher string
	estimate      estimate
	watched       watched
	counted       bool // as a watch
	inside        bool // let in, and not released
	worked        time.Duration

	// Those below are guarded by the lock of the level.
	level            *level
	queue            *queue
	flow             uint64
	state            state
	arrived, started time.Time
	arrivedAt        work          // the virtual time
	dispatched       chan struct{} // closed when it need not wait any longer; nil if it never had to
	ahead            int           // how many waited in its queue when it had come, with itself
	before, after    *Entry        // in its queue, or among those that are worked on
}

// state is how far an entry has come.
type state uint8

const (
	outside state = iota // not there yet, refused, or gone
	waiting
	working
)

// why a request was refused.
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

// list is a list of entries, the first of which has been there longest.
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

// queue is one of the queues of a level. It is busy as long as something waits
// in it, or is worked on that came from it.
type queue struct {
	index    int
	entries  list
	waiting  int
	working  int
	seats    int // in use
	initial  int // seats of those who wait, at first
	most     int // and in all
	sum      work
	dispatch work // the virtual time at which the next one is dispatched
	running  owed // by those who are worked on
}

func (q *queue) busy() bool { return q.waiting > 0 || q.working > 0 }

// owed is what requests that are worked on will be charged with, beyond what
// they were charged with in advance. It tells a queue whose requests take long
// from others before the first of them ends.
type owed struct {
	seats int64
	since int64 // the sum of when each seat was taken, in microseconds
}

func (o *owed) add(seats int, at time.Duration) {
	o.seats += int64(seats)
	o.since += int64(seats) * at.Microseconds()
}

func (o *owed) at(now time.Duration) work {
	return max(0, seatTime(1, time.Duration(o.seats*(now-serviceTime).Microseconds()-o.since)*time.Microsecond))
}

// begins is when the queue's next one is dispatched in virtual time, less what is
// being done for it.
func (q *queue) begins() work { return q.dispatch - seatTime(float64(q.seats), serviceTime) }

// bound keeps a queue that could not use its share from saving it up: in virtual
// time too nobody is dispatched before having arrived.
func (q *queue) bound() {
	if first := q.entries.first; first != nil {
		q.dispatch = max(q.dispatch, first.arrivedAt)
	}
}
