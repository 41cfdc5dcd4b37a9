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
	// longTurn is the longest duration of a turn. A client that reads slowly, or not at
	// all, loses its turn: it uses no CPU meanwhile.
	longTurn = 5 * time.Millisecond
	// manyWaiting is the number of waiting requests per processor above which large
	// responses leave half of the processors to others.
	manyWaiting = 3
	// stint is how long large responses are worked on, while many wait, before they
	// rest as long, if there are small requests: their clients need CPU too, and on a
	// busy machine a small request waits for time slices on its way in and out.
	stint = time.Millisecond
	// recently is how long after a small request more of them are expected.
	recently = time.Second
)

// Scheduler gives turns to requests with large responses.
type Scheduler struct {
	processors int
	// crowded is set while many requests wait; small is the time of the last small
	// request meanwhile, in Unix nanoseconds.
	crowded atomic.Bool
	small   atomic.Int64

	mu      sync.Mutex
	running []*takenTurn
	waiting []chan *takenTurn // each receives its turn
	late    *time.Timer       // ends turns that take longer than longTurn, while requests wait
	worked  time.Duration     // CPU time since the last rest
	resting bool
}

// takenTurn is the turn of a request.
type takenTurn struct{ began time.Time }

// New returns a scheduler with one turn per processor.
func New() *Scheduler { return &Scheduler{processors: runtime.GOMAXPROCS(0)} }

// take waits for a turn. It lasts until end is called, or for longTurn if others wait.
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
	// Goroutines that have been waiting for a processor run first.
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

// end ends a turn, unless endLate did, and starts the next ones.
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

// endLate ends the turns that have taken longer than longTurn.
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

// patience is the remaining time of the oldest turn.
func (t *Scheduler) patience() time.Duration {
	left := longTurn
	for _, r := range t.running {
		left = min(left, longTurn-time.Since(r.began))
	}
	return max(left, 0)
}

// resume ends a rest.
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

// many reports whether many requests wait.
func (t *Scheduler) many() bool { return len(t.waiting) > manyWaiting*t.processors }

// limit is the number of turns at a time.
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

// Turn is the turn of a request, a request.Turns. Only the goroutine that serves the
// request uses it.
type Turn struct {
	Scheduler *Scheduler // nil: no request waits

	running *takenTurn // nil unless it has a turn
	taken   bool       // it has had a turn
	waited  time.Duration
}

// Take waits for a turn, if the request has none.
func (t *Turn) Take() {
	if t.running == nil && t.Scheduler != nil {
		began := time.Now()
		t.running, t.taken = t.Scheduler.take(), true
		t.waited += t.running.began.Sub(began)
	}
}

// Waited is how long the request has waited for turns.
func (t *Turn) Waited() time.Duration { return t.waited }

// End ends the turn of the request.
func (t *Turn) End() {
	if t.running != nil {
		t.Scheduler.end(t.running)
		t.running = nil
	}
}

// Finish must be called when the request has been answered.
func (t *Turn) Finish() {
	if t.End(); !t.taken && t.Scheduler != nil {
		t.Scheduler.noteSmall()
	}
}
