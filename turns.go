package kelson

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
	// many large answers that they leave half of the processors to others.
	manyWaiting = 3
	// stint is how long so many are worked on until they rest for as long, if there
	// are small requests: their clients, too, need processors, and on a machine that
	// is never idle a small request waits for time slices on its way in and out.
	stint = time.Millisecond
	// recently is for how long a small request is taken as a sign of more.
	recently = time.Second
)

// turns let large answers be made and written a few at a time, piece by piece: with
// dozens of them under way a small one would wait for as many time slices, more
// than once.
type turns struct {
	processors int
	// crowded tells whether many wait; small is when the last small request came
	// while they did, in nanoseconds since 1970.
	crowded atomic.Bool
	small   atomic.Int64

	mu      sync.Mutex
	running []*takenTurn
	waiting []chan *takenTurn // gets the turn
	late    *time.Timer       // ends turns that take too long, while somebody waits
	worked  time.Duration     // since the last rest
	resting bool
}

// takenTurn is a turn that somebody has.
type takenTurn struct{ began time.Time }

// newTurns lets as many answers be worked on at a time as there are processors.
func newTurns() *turns { return &turns{processors: runtime.GOMAXPROCS(0)} }

// take waits for a turn, which lasts until end is called, or for longTurn if others
// wait.
func (t *turns) take() (r *takenTurn) {
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
func (t *turns) start() *takenTurn {
	r := &takenTurn{time.Now()}
	t.running = append(t.running, r)
	return r
}

// end ends a turn, unless that was done because it took too long, and begins those
// that can begin.
func (t *turns) end(r *takenTurn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stop(r)
	t.begin()
}

func (t *turns) stop(r *takenTurn) {
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
			time.AfterFunc(min(t.worked, longTurn), t.goOn)
		}
		t.worked = 0
	}
}

// endLate ends the turns that have taken too long.
func (t *turns) endLate() {
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
func (t *turns) patience() time.Duration {
	left := longTurn
	for _, r := range t.running {
		left = min(left, longTurn-time.Since(r.began))
	}
	return max(left, 0)
}

// goOn is called when it has been rested.
func (t *turns) goOn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.resting = false
	t.begin()
}

func (t *turns) begin() {
	for len(t.waiting) > 0 && !t.resting && len(t.running) < t.limit() {
		t.waiting[0] <- t.start()
		t.waiting[0] = nil
		t.waiting = t.waiting[1:]
	}
}

// many reports whether many wait.
func (t *turns) many() bool { return len(t.waiting) > manyWaiting*t.processors }

// limit is how many turns there are at a time.
func (t *turns) limit() int {
	if t.many() {
		return max(1, t.processors/2)
	}
	return t.processors
}

// came notes a request that needed no turn.
func (t *turns) came() {
	if t.crowded.Load() {
		t.small.Store(time.Now().UnixNano())
	}
}

// turn is the turn of a request. Only its handler uses it.
type turn struct {
	turns   *turns
	running *takenTurn // nil as long as there is none
	taken   bool       // there was one
}

// Take implements request.Turns.
func (t *turn) Take() {
	if t.running == nil && t.turns != nil {
		t.running, t.taken = t.turns.take(), true
	}
}

// End implements request.Turns.
func (t *turn) End() {
	if t.running != nil {
		t.turns.end(t.running)
		t.running = nil
	}
}
