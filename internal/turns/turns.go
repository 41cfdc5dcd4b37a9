// Package turns is a scheduler of CPU time for large responses: they are made and
// written a few at a time, piece by piece. With dozens of them under way a small
// response would wait for as many time slices of the operating system, more than once.
// Start at Scheduler, of which a server has one, and at Turn, of which each request
// has one.
package turns

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// longTurn is how long a turn lasts at most. A client that reads slowly, or not
	// at all, loses its turn: it costs no processor time meanwhile.
	longTurn = 5 * time.Millisecond
	// manyWaiting is how many for each processor wait for a turn when there are so
	// many large responses that they leave half of the processors to others.
	manyWaiting = 3
	// stint is how long so many are worked on until they rest for as long, if there
	// are small requests: their clients, too, need processors, and on a machine that
	// is never idle a small request waits for time slices on its way in and out.
	stint = time.Millisecond
	// recently is for how long a small request is taken as a sign of more.
	recently = time.Second
)

// Scheduler gives turns to requests with large responses.
type Scheduler struct {
	processors int
	// crowded tells whether many requests wait; small is when the last small request
	// came while they did, in nanoseconds since 1970.
	crowded atomic.Bool
	small   atomic.Int64

	mu      sync.Mutex
	running []*takenTurn
	waiting []chan *takenTurn // gets the turn
	late    *time.Timer       // ends turns that take too long, while somebody waits
	worked  time.Duration     // since the last rest
	resting bool
}

// takenTurn is a turn that a request has.
type takenTurn struct{ began time.Time }

// New returns a scheduler of as many turns at a time as there are processors.
func New() *Scheduler { return &Scheduler{processors: runtime.GOMAXPROCS(0)} }

// take waits for a turn, which lasts until end is called, or for longTurn if others
// wait.
func (t *Scheduler) take() (r *takenTurn) {
	t.mu.Lock()
	if len(t.waiting) == 0 && len(t.running) < t.processors {
		r = t.start()
		t.mu.Unlock()
	} else {
		come := make(chan *takenTurn, 1)
		t.waiting = append(t.waiting, come)
		if t.late == nil {
			t.late = time.AfterFunc(t.patience(), t.endLate)
		}
		t.mu.Unlock()
		r = <-come
	}
	// Whoever has been waiting for a processor meanwhile goes first.
	runtime.Gosched()
	t.mu.Lock()
	r.began = time.Now()
	t.mu.Unlock()
	return r
}

// start begins a turn.
func (t *Scheduler) start() *takenTurn {
	r := &takenTurn{time.Now()}
	t.running = append(t.running, r)
	return r
}

// end ends a turn, unless that was done because it took too long, and begins those
// that can begin.
func (t *Scheduler) end(r *takenTurn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stop(r)
	t.begin()
}

func (t *Scheduler) stop(r *takenTurn) {
	i := slices.Index(t.running, r)
	if i < 0 {
		return
	}
	t.running = slices.Delete(t.running, i, i+1)
	crowded := t.many()
	if t.crowded.Load() != crowded {
		t.crowded.Store(crowded)
	}
	if t.worked += time.Since(r.began); t.worked >= stint {
		if crowded && !t.resting && time.Since(time.Unix(0, t.small.Load())) < recently {
			t.resting = true
			time.AfterFunc(min(t.worked, longTurn), t.resume)
		}
		t.worked = 0
	}
}

// endLate ends the turns that have taken too long.
func (t *Scheduler) endLate() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range slices.Clone(t.running) {
		if time.Since(r.began) >= longTurn {
			t.stop(r)
		}
	}
	if t.begin(); len(t.waiting) > 0 {
		t.late.Reset(t.patience())
	} else {
		t.late = nil
	}
}

// patience is how long the oldest turn may go on.
func (t *Scheduler) patience() time.Duration {
	left := longTurn
	for _, r := range t.running {
		left = min(left, longTurn-time.Since(r.began))
	}
	return max(left, 0)
}

// resume is called when the scheduler has rested.
func (t *Scheduler) resume() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.resting = false
	t.begin()
}

func (t *Scheduler) begin() {
	for len(t.waiting) > 0 && !t.resting && len(t.running) < t.limit() {
		t.waiting[0] <- t.start()
		t.waiting[0] = nil
		t.waiting = t.waiting[1:]
	}
}

// many reports whether many wait.
func (t *Scheduler) many() bool { return len(t.waiting) > manyWaiting*t.processors }

// limit is how many turns there are at a time.
func (t *Scheduler) limit() int {
	if t.many() {
		return max(1, t.processors/2)
	}
	return t.processors
}

// noteSmall counts a request that was answered without waiting for a turn.
func (t *Scheduler) noteSmall() {
	if t.crowded.Load() {
		t.small.Store(time.Now().UnixNano())
	}
}

// Turn is the turn of a request, as request.Turns. Only its handler uses it.
type Turn struct {
	Scheduler *Scheduler // nil has nobody wait

	running *takenTurn // nil as long as there is none
	taken   bool       // there was one
}

// Take waits for a turn, if the request has none.
func (t *Turn) Take() {
	if t.running == nil && t.Scheduler != nil {
		t.running, t.taken = t.Scheduler.take(), true
	}
}

// End ends the turn that the request has.
func (t *Turn) End() {
	if t.running != nil {
		t.Scheduler.end(t.running)
		t.running = nil
	}
}

// Finish is called when the request has been answered.
func (t *Turn) Finish() {
	if t.End(); !t.taken && t.Scheduler != nil {
		t.Scheduler.noteSmall()
	}
}
