package flow

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// This file is one priority level: fair queuing for server requests.

// serviceTime is the assumed duration of a request. When a request has ended, its queue
// is charged for the real duration instead.
const serviceTime = 3 * time.Millisecond

const (
	// newcomersPart is the part of a level's seats that is reserved for newcomers: one
	// in so many.
	newcomersPart = 10
	// fewSeats is the largest number of seats of a request that counts as small.
	fewSeats = 2
)

// limits are the seats of a level.
type limits struct {
	nominal         int // by its concurrency shares
	lowest, highest int // bounds when it has lent or borrowed as much as it may
	now             int
}

// queuing configures the queues of a level; without queues requests do not wait.
type queuing struct{ queues, hand, length int }

// level is a priority level. It divides its seats among its queues: every busy queue
// gets the same share. It keeps a virtual clock, which runs faster the fewer queues are
// busy. A request charges its queue with its estimated work; the request that would
// finish first in virtual time is dispatched next. mu guards the fields below it.
type level struct {
	name    string
	exempt  bool
	retry   retryAfter
	created time.Time

	mu        sync.Mutex
	queuing   queuing
	share     shareSpec
	limits    limits
	quiescing bool // its object is gone, but there are still requests

	queues     []*queue // made when first needed; may be more than configured, while the surplus ones are busy
	busy       int      // number of busy queues
	virtual    work
	at         time.Time // the time at which virtual was computed
	lastQueue  int       // index of the queue that was dispatched from last
	handsDealt int       // number of hands dealt so far

	waiting, working int
	seats            int // in use, also by requests that were answered (final seats)
	queueSeats       int // the part of seats that is charged to queues
	seatsWaiting     int
	running          list           // requests that are executed
	executing        map[uint64]int // number of executing requests, by flow

	demand demand
	over   ratios
	last   dispatched
	flows  map[string]*schemaStats
	counts counts
}

// dispatched is the virtual time of the last dispatch from a queue, and the virtual
// start time of that request.
type dispatched struct {
	any       bool
	at, began work
	bounds    bounds
}

// bounds are the least and the most of the virtual start times of the queues' first
// requests, without and with the work in progress of the queues.
type bounds struct{ least, most, leastIn, mostIn work }

// bounds computes the bounds now. If next is the newest queue and nobody waits in
// another, it is the only one.
func (l *level) bounds(next, newest *queue) bounds {
	b := bounds{next.dispatch, next.dispatch, next.virtualStart(), next.virtualStart()}
	if next != newest || next.waiting < l.waiting {
		for _, q := range l.queues {
			if q.entries.first != nil {
				b.least, b.most = min(b.least, q.dispatch), max(b.most, q.dispatch)
				b.leastIn, b.mostIn = min(b.leastIn, q.virtualStart()), max(b.mostIn, q.virtualStart())
			}
		}
	}
	return b
}

// counts counts requests by outcome.
type counts struct {
	dispatched int
	refused    [reasons]int
	noRoom     int // how often there were too few seats for the next request
}

// schemaStats are the statistics of a schema in a level.
type schemaStats struct {
	counts
	waiting, working    int
	seats, seatsWaiting int
}

func newLevel(name string, exempt bool, now time.Time) *level {
	return &level{name: name, exempt: exempt, created: now, at: now, demand: demand{at: now}, over: newRatios(), executing: map[uint64]int{}, flows: map[string]*schemaStats{}}
}

// configure changes the number and length of the queues.
func (l *level) configure(q queuing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q.hand = min(q.hand, q.queues, maxHand)
	l.queuing, l.quiescing = q, false
	l.shrink()
}

// makeQueues makes the queues that are not there yet. A level in which nobody has ever
// had to wait has none. The lock is held.
func (l *level) makeQueues() {
	for i := len(l.queues); i < l.queuing.queues; i++ {
		l.queues = append(l.queues, &queue{index: i})
	}
}

// setLimits changes the seats of the level, of all that the server has, and dispatches
// the requests that fit now.
func (l *level) setLimits(seats int, target float64, all int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(now)
	l.limits.now, l.demand.found.target = seats, target
	l.setRatioLimits(all, now)
	l.dispatch(now)
	l.recordDemand(now)
}

// quiesce marks a level whose object is gone, and reports whether it is idle and can be
// removed.
func (l *level) quiesce() (idle bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quiescing = true
	return l.idle()
}

func (l *level) idle() bool { return l.waiting == 0 && l.working == 0 }

func (l *level) stats(schema string) *schemaStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.flows[schema]
	if s == nil {
		s = &schemaStats{}
		l.flows[schema] = s
	}
	return s
}

// forget removes the statistics of schemas that do not use the level any more.
func (l *level) forget(schemas []*schema) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.flows, func(name string, s *schemaStats) bool {
		used := slices.ContainsFunc(schemas, func(s *schema) bool { return s.level == l && s.name == name })
		return !used && s.waiting == 0 && s.seats == 0
	})
}

// longQueue is how many times longer a queue may be whose first request waits for more seats
// than are free.
const longQueue = 4

// enter executes, queues or refuses an entry. If it is queued, e.dispatched is closed
// when it need not wait any longer.
func (l *level) enter(e *Entry, flow uint64, now time.Time) state {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.recordDemand(now)
	l.advance(now)
	e.level, e.flow, e.arrived, e.arrivedAt = l, flow, now, l.virtual
	if l.queuing.queues == 0 {
		if !l.room(e.estimate.seats(), l.limits.now) {
			l.refuse(e, noSeat)
			return outside
		}
		l.begin(e, now)
		return working
	}
	q := l.choose(flow)
	if l.seats >= l.limits.now && q.waiting >= l.queuing.length {
		l.refuse(e, queueFull)
		return outside
	}
	l.enqueue(e, q)
	e.ahead = q.waiting
	l.dispatchFrom(q, now)
	if e.state != waiting {
		return e.state
	}
	// There are seats. If they are kept for newcomers, the queue is as full as without them. If
	// its first request needs more of them, that should not keep others out, but not for ever.
	most := l.queuing.length
	if !l.room(q.entries.first.estimate.seats(), l.limits.now) {
		most *= longQueue
	}
	if q.waiting > most {
		l.dequeue(e)
		l.refuse(e, queueFull)
		return e.state
	}
	e.dispatched = make(chan struct{})
	return waiting
}

// giveUp removes an entry from its queue because its time is over, unless it has just
// been dispatched.
func (l *level) giveUp(e *Entry, now time.Time) state {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.state == waiting {
		l.advance(now)
		l.dequeue(e)
		l.refuse(e, timedOut)
		l.recordDemand(now)
	}
	return e.state
}

// stallPatience is how long a client may read nothing while others wait for the seats of its
// request, and how long they wait before they look.
const stallPatience = 5 * time.Second

// cutOffStalled ends the requests that have waited for their clients for stallPatience. It is
// called when others wait for seats: whoever asks for much and reads none of it would keep them.
func (l *level) cutOffStalled() {
	var clients []Client
	l.mu.Lock()
	for e := l.running.first; e != nil; e = e.after {
		if e.Client != nil {
			clients = append(clients, e.Client)
		}
	}
	l.mu.Unlock()
	for _, client := range clients {
		if client.Stalled() >= stallPatience {
			client.CutOff()
		}
	}
}

// leave ends an entry that was executed. It reports whether the level can be removed.
func (l *level) leave(e *Entry, now time.Time) (useless bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.recordDemand(now)
	l.advance(now)
	e.state = outside
	l.running.remove(e)
	if l.executing[e.flow]--; l.executing[e.flow] == 0 {
		delete(l.executing, e.flow)
	}
	l.working--
	e.schema.stats.working--
	q, seats := e.queue, e.estimate.seats()
	if q != nil {
		q.working--
		// The charge in advance was an estimate.
		q.dispatch -= seatTime(float64(e.estimate.initial), serviceTime-now.Sub(e.started))
		q.running.add(-e.estimate.initial, e.started.Sub(l.created))
		q.raiseToArrival()
		l.updateBusy(q)
	}
	if e.estimate.after > 0 {
		// The entry belongs to the caller again.
		stats := e.schema.stats
		time.AfterFunc(e.estimate.after, func() {
			now := time.Now()
			l.mu.Lock()
			defer l.mu.Unlock()
			l.advance(now)
			l.free(q, stats, seats, now)
			l.recordDemand(now)
		})
		l.dispatch(now)
	} else {
		l.free(q, e.schema.stats, seats, now)
	}
	return l.quiescing && l.idle()
}

// free returns seats and dispatches the requests that fit now.
func (l *level) free(q *queue, stats *schemaStats, seats int, now time.Time) {
	l.seats -= seats
	stats.seats -= seats
	if q != nil {
		l.queueSeats -= seats
		q.seats -= seats
		l.shrink()
	}
	l.dispatch(now)
}

// advance moves the virtual clock: by the seats that could be used since the last time,
// divided by the number of busy queues.
func (l *level) advance(now time.Time) {
	passed := now.Sub(l.at)
	if passed <= 0 {
		return
	}
	l.at = now
	if l.busy > 0 {
		l.virtual += seatTime(float64(min(l.queueSeats+l.seatsWaiting, l.limits.now))/float64(l.busy), passed)
	}
}

// updateBusy updates the number of busy queues after a queue may have become idle. When none
// is busy, virtual time starts at zero again.
func (l *level) updateBusy(q *queue) {
	if q.busy() {
		return
	}
	if l.busy--; l.busy == 0 {
		l.virtual = 0
	}
}

// choose returns the queue of a flow's hand with the least waiting work. The search
// starts at another queue each time, so that flows with overlapping hands do not choose
// the same queue.
func (l *level) choose(flow uint64) *queue {
	var space [maxHand]int
	hand := dealHand(flow, l.queuing.queues, l.queuing.hand, &space)
	begin := l.handsDealt % len(hand)
	l.handsDealt++
	l.makeQueues()
	var best *queue
	for i := range hand {
		q := l.queues[hand[(begin+i)%len(hand)]]
		if best == nil || q.sum < best.sum {
			best = q
		}
	}
	return best
}

func (l *level) enqueue(e *Entry, q *queue) {
	if !q.busy() {
		q.dispatch = l.virtual
		l.busy++
	}
	e.queue, e.state = q, waiting
	q.entries.push(e)
	l.countWaiting(e, 1)
	q.raiseToArrival()
}

func (l *level) dequeue(e *Entry) {
	e.state = outside
	e.queue.entries.remove(e)
	l.countWaiting(e, -1)
	e.queue.raiseToArrival()
	l.updateBusy(e.queue)
}

// countWaiting adds an entry to the counters of waiting requests (n = 1) or removes it (n =
// -1).
func (l *level) countWaiting(e *Entry, n int) {
	seats := n * e.estimate.seats()
	e.queue.waiting += n
	e.queue.initial += n * e.estimate.initial
	e.queue.most += seats
	e.queue.sum += work(n) * e.total()
	l.waiting += n
	l.seatsWaiting += seats
	e.schema.stats.waiting += n
	e.schema.stats.seatsWaiting += seats
}

func (l *level) refuse(e *Entry, why reason) {
	l.counts.refused[why]++
	e.schema.stats.refused[why]++
}

// dispatch executes waiting requests as long as there is room.
func (l *level) dispatch(now time.Time) { l.dispatchFrom(nil, now) }

// dispatchFrom is dispatch after an entry was added to newest. Usually nobody else
// waits, so the other queues need not be looked at.
func (l *level) dispatchFrom(newest *queue, now time.Time) {
	for l.waiting > 0 && l.seats < l.limits.now {
		q := newest
		if q == nil || q.waiting < l.waiting {
			q = l.next(now, false)
		}
		if !l.fits(q) {
			q.entries.first.schema.stats.noRoom++
			// A queue whose first request needs more seats is not overtaken, except for
			// the seats reserved for newcomers, which that request cannot have anyway.
			if l.newcomer(q) {
				return
			}
			if q = l.next(now, true); q == nil || !l.fits(q) {
				return
			}
		}
		e := q.entries.first
		l.lastQueue = q.index
		l.last = dispatched{any: true, at: l.virtual, began: q.dispatch, bounds: l.bounds(q, newest)}
		// begin before the queue is looked at again: it stays busy.
		q.entries.remove(e)
		l.countWaiting(e, -1)
		if most := l.limits.now; e.estimate.final > most {
			e.estimate.after = e.estimate.after * time.Duration(e.estimate.final) / time.Duration(most)
			e.estimate.final = most
		}
		l.begin(e, now)
		q.dispatch += e.total()
		q.raiseToArrival()
		if e.dispatched != nil {
			close(e.dispatched)
		}
	}
}

// next returns the queue whose first entry would finish first in virtual time, in
// round-robin order if there are several. With newcomers, only queues whose first entry
// is a newcomer.
func (l *level) next(now time.Time, newcomers bool) (best *queue) {
	var earliest work
	age := now.Sub(l.created)
	for i := range l.queues {
		q := l.queues[(l.lastQueue+1+i)%len(l.queues)]
		if q.entries.first == nil || newcomers && !l.newcomer(q) {
			continue
		}
		if finish := q.dispatch + q.running.at(age) + q.entries.first.total(); best == nil || finish < earliest {
			best, earliest = q, finish
		}
	}
	return best
}

// fits reports whether there are seats for the first entry of a queue. Some seats are
// reserved for newcomers, who would else wait until a request ends, which may take
// long.
func (l *level) fits(q *queue) bool {
	limit := l.limits.now
	if !l.newcomer(q) {
		limit -= limit / newcomersPart
	}
	return l.room(q.entries.first.estimate.seats(), limit)
}

// newcomer reports whether the first entry of a queue belongs to a flow with no
// executing request. For a small request it is enough that no request of its queue is
// executing: a large flow, which has several queues, could otherwise take all reserved
// seats.
func (l *level) newcomer(q *queue) bool {
	first := q.entries.first
	return l.executing[first.flow] == 0 || q.working == 0 && first.estimate.seats() <= fewSeats
}

// room reports whether seats are free. A request that needs more seats than there are
// waits for all of them.
func (l *level) room(seats, limit int) bool {
	switch {
	case l.exempt:
		return true
	case seats > limit:
		return l.working == 0
	}
	return l.seats+seats <= limit
}

// begin starts the execution of an entry.
func (l *level) begin(e *Entry, now time.Time) {
	seats, stats := e.estimate.seats(), e.schema.stats
	e.state, e.started = working, now
	l.running.push(e)
	l.executing[e.flow]++
	l.working++
	l.seats += seats
	l.counts.dispatched++
	stats.dispatched++
	stats.working++
	stats.seats += seats
	if q := e.queue; q != nil {
		q.working++
		q.running.add(e.estimate.initial, now.Sub(l.created))
		q.seats += seats
		l.queueSeats += seats
	}
}

// shrink removes idle surplus queues from the end.
func (l *level) shrink() {
	for n := len(l.queues); n > l.queuing.queues; n-- {
		if q := l.queues[n-1]; q.busy() || q.seats > 0 {
			return
		}
		l.queues = l.queues[:n-1]
		l.lastQueue = min(l.lastQueue, n-1)
	}
}
