package flow

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// serviceTime is how long a request is thought to take. When it has ended its
// queue is charged for the time that it really took.
const serviceTime = 3 * time.Millisecond

const (
	// newcomersPart is which part of the seats of a level is kept for newcomers:
	// one of so many.
	newcomersPart = 10
	// fewSeats is what a request takes that is no burden.
	fewSeats = 2
)

// limits are the seats of a level.
type limits struct {
	nominal         int // what its shares give it
	lowest, highest int // when it has lent, and borrowed, as much as it may
	now             int
}

// queuing is how requests of a level wait: not at all, if there are no queues.
type queuing struct{ queues, hand, length int }

// A level has seats, and shares them out among its queues: each busy queue gets
// the same. It works like a clock for virtual time, which goes the faster the
// fewer queues are busy. A request is charged to its queue with the work that it
// probably makes; the queue whose first request would be finished first in
// virtual time is the next.
type level struct {
	name   string
	exempt bool
	retry  retry
	born   time.Time

	mu        sync.Mutex
	queuing   queuing
	share     shareSpec
	limits    limits
	quiescing bool // there is no such level any longer, but there are requests

	queues  []*queue // more than wanted, as long as those are busy
	busy    int      // queues
	virtual work
	at      time.Time // when virtual was right
	robin   int       // the queue that was dispatched from last
	dealt   int       // how many hands were dealt

	waiting, working int
	seats            int // in use, also by those who have been answered
	queueSeats       int // the part of them that is charged to queues
	seatsWaiting     int
	running          list           // those who are worked on
	inside           map[uint64]int // how many they are of each flow

	demand demand
	over   ratios
	last   dispatched
	flows  map[string]*schemaStats
	counts counts
}

// dispatched is the virtual world as it was when a request was last dispatched from
// a queue: the time, and when that request began.
type dispatched struct {
	any       bool
	at, began work
	bounds    bounds
}

// bounds are of when the first ones of the queues begin, with and without the work
// that is being done for these queues.
type bounds struct{ least, most, leastIn, mostIn work }

// bounds returns those at this time. If there is a newest queue, and it is the one
// that is next, it is the only one.
func (l *level) bounds(next, newest *queue) bounds {
	b := bounds{next.dispatch, next.dispatch, next.begins(), next.begins()}
	if next != newest || next.waiting < l.waiting {
		for _, q := range l.queues {
			if q.entries.first != nil {
				b.least, b.most = min(b.least, q.dispatch), max(b.most, q.dispatch)
				b.leastIn, b.mostIn = min(b.leastIn, q.begins()), max(b.mostIn, q.begins())
			}
		}
	}
	return b
}

// counts count requests.
type counts struct {
	dispatched int
	refused    [reasons]int
	noRoom     int // how often there were too few seats for the next one
}

// schemaStats are what a level knows of one of its schemas.
type schemaStats struct {
	counts
	waiting, working    int
	seats, seatsWaiting int
}

func newLevel(name string, exempt bool, now time.Time) *level {
	return &level{name: name, exempt: exempt, born: now, at: now, demand: demand{at: now}, over: newRatios(), inside: map[uint64]int{}, flows: map[string]*schemaStats{}}
}

// configure changes how requests wait.
func (l *level) configure(q queuing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q.hand = min(q.hand, q.queues, maxHand)
	l.queuing, l.quiescing = q, false
	for i := len(l.queues); i < q.queues; i++ {
		l.queues = append(l.queues, &queue{index: i})
	}
	l.shrink()
}

// setLimits changes the seats, of all that the server has, which may let some in
// who wait.
func (l *level) setLimits(seats int, target float64, all int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(now)
	l.limits.now, l.demand.found.target = seats, target
	l.limit(all, now)
	l.dispatch(now)
	l.note(now)
}

// quiesce reports whether a level that is not wanted any longer can be forgotten.
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

// forget drops what is known of schemas that the level has nothing to do with any
// longer.
func (l *level) forget(schemas []*schema) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.flows, func(name string, s *schemaStats) bool {
		used := slices.ContainsFunc(schemas, func(s *schema) bool { return s.level == l && s.name == name })
		return !used && s.waiting == 0 && s.seats == 0
	})
}

// enter takes an entry in, or refuses it. If it has to wait its channel tells
// when that is over.
func (l *level) enter(e *Entry, flow uint64, now time.Time) state {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.note(now)
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
	if e.state == waiting {
		e.dispatched = make(chan struct{})
	}
	return e.state
}

// giveUp takes an entry out that has waited for too long, unless it has just
// been dispatched.
func (l *level) giveUp(e *Entry, now time.Time) state {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.state == waiting {
		l.advance(now)
		l.dequeue(e)
		l.refuse(e, timedOut)
		l.note(now)
	}
	return e.state
}

// leave is the end of an entry that was worked on. It reports whether the level
// can be forgotten.
func (l *level) leave(e *Entry, now time.Time) (useless bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.note(now)
	l.advance(now)
	e.state = outside
	l.running.remove(e)
	if l.inside[e.flow]--; l.inside[e.flow] == 0 {
		delete(l.inside, e.flow)
	}
	l.working--
	e.schema.stats.working--
	q, seats := e.queue, e.estimate.seats()
	if q != nil {
		q.working--
		// What was charged in advance was a guess.
		q.dispatch -= seatTime(float64(e.estimate.initial), serviceTime-now.Sub(e.started))
		q.running.add(-e.estimate.initial, e.started.Sub(l.born))
		q.bound()
		l.rest(q)
	}
	if e.estimate.after > 0 {
		// The entry is the caller's from here on.
		stats := e.schema.stats
		time.AfterFunc(e.estimate.after, func() {
			now := time.Now()
			l.mu.Lock()
			defer l.mu.Unlock()
			l.advance(now)
			l.free(q, stats, seats, now)
			l.note(now)
		})
		l.dispatch(now)
	} else {
		l.free(q, e.schema.stats, seats, now)
	}
	return l.quiescing && l.idle()
}

// free gives seats back.
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

// advance lets virtual time go on as it has since it was last right: with the
// seats that could be used, shared by the queues that were busy.
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

// rest notes that a queue may not be busy any longer. When none is, virtual time
// starts anew: a queue that becomes busy starts from it.
func (l *level) rest(q *queue) {
	if q.busy() {
		return
	}
	if l.busy--; l.busy == 0 {
		l.virtual = 0
	}
}

// choose returns the queue of a hand in which the least work waits. Where to
// begin looking changes, so that flows whose hands overlap do not meet in the
// same queue.
func (l *level) choose(flow uint64) *queue {
	var space [maxHand]int
	hand := deal(flow, l.queuing.queues, l.queuing.hand, &space)
	begin := l.dealt % len(hand)
	l.dealt++
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
	l.await(e, 1)
	q.bound()
}

func (l *level) dequeue(e *Entry) {
	e.state = outside
	e.queue.entries.remove(e)
	l.await(e, -1)
	e.queue.bound()
	l.rest(e.queue)
}

// await counts an entry as waiting, or as not any longer.
func (l *level) await(e *Entry, n int) {
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

// dispatch lets in as many of those who wait as there is room for.
func (l *level) dispatch(now time.Time) { l.dispatchFrom(nil, now) }

// dispatchFrom does so too. As a rule nobody waits but the one who has just
// come to a queue, and there is no need to look at the others.
func (l *level) dispatchFrom(newest *queue, now time.Time) {
	for l.waiting > 0 && l.seats < l.limits.now {
		q := newest
		if q == nil || q.waiting < l.waiting {
			q = l.next(now, false)
		}
		if !l.fits(q) {
			q.entries.first.schema.stats.noRoom++
			// A queue that waits for more seats is not passed over, but for the
			// seats that it cannot have anyway.
			if l.newcomer(q) {
				return
			}
			if q = l.next(now, true); q == nil || !l.fits(q) {
				return
			}
		}
		e := q.entries.first
		l.robin = q.index
		l.last = dispatched{any: true, at: l.virtual, began: q.dispatch, bounds: l.bounds(q, newest)}
		// Before the queue has nothing to wait for it has something to work on:
		// it stays busy.
		q.entries.remove(e)
		l.await(e, -1)
		if most := l.limits.now; e.estimate.final > most {
			e.estimate.after = e.estimate.after * time.Duration(e.estimate.final) / time.Duration(most)
			e.estimate.final = most
		}
		l.begin(e, now)
		q.dispatch += e.total()
		q.bound()
		if e.dispatched != nil {
			close(e.dispatched)
		}
	}
}

// next returns the queue whose first entry would be finished first in virtual
// time. If there are several it is the turn of the one after that which was last.
// Only newcomers can be wanted.
func (l *level) next(now time.Time, newcomers bool) (best *queue) {
	var earliest work
	age := now.Sub(l.born)
	for i := range l.queues {
		q := l.queues[(l.robin+1+i)%len(l.queues)]
		if q.entries.first == nil || newcomers && !l.newcomer(q) {
			continue
		}
		if finish := q.dispatch + q.running.at(age) + q.entries.first.total(); best == nil || finish < earliest {
			best, earliest = q, finish
		}
	}
	return best
}

// fits reports whether there are seats for the first entry of a queue. Some are
// kept for newcomers, who would otherwise wait until somebody has finished, which
// with requests that take long is not soon.
func (l *level) fits(q *queue) bool {
	limit := l.limits.now
	if !l.newcomer(q) {
		limit -= limit / newcomersPart
	}
	return l.room(q.entries.first.estimate.seats(), limit)
}

// newcomer reports whether the first entry of a queue is of a flow of which nothing
// is worked on. If it takes few seats that nothing is worked on that came from the
// queue is enough; otherwise a greedy flow, which has several queues, would take all
// that is kept.
func (l *level) newcomer(q *queue) bool {
	first := q.entries.first
	return l.inside[first.flow] == 0 || q.working == 0 && first.estimate.seats() <= fewSeats
}

// room reports whether there are seats. One who wants more than there are gets
// all.
func (l *level) room(seats, limit int) bool {
	switch {
	case l.exempt:
		return true
	case seats > limit:
		return l.working == 0
	}
	return l.seats+seats <= limit
}

// begin lets an entry in.
func (l *level) begin(e *Entry, now time.Time) {
	seats, stats := e.estimate.seats(), e.schema.stats
	e.state, e.started = working, now
	l.running.push(e)
	l.inside[e.flow]++
	l.working++
	l.seats += seats
	l.counts.dispatched++
	stats.dispatched++
	stats.working++
	stats.seats += seats
	if q := e.queue; q != nil {
		q.working++
		q.running.add(e.estimate.initial, now.Sub(l.born))
		q.seats += seats
		l.queueSeats += seats
	}
}

// shrink drops queues that are not wanted any longer, from the end.
func (l *level) shrink() {
	for n := len(l.queues); n > l.queuing.queues; n-- {
		if q := l.queues[n-1]; q.busy() || q.seats > 0 {
			return
		}
		l.queues = l.queues[:n-1]
		l.robin = min(l.robin, n-1)
	}
}
