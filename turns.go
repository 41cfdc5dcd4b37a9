package kelson

import (
	"runtime"
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
	taken   int
	waiting []chan struct{} // is closed when the turn has come
	worked  time.Duration   // since the last rest
	resting bool
}

// newTurns lets as many answers be worked on at a time as there are processors.
func newTurns() *turns { return &turns{processors: runtime.GOMAXPROCS(0)} }

// take waits for a turn, which ends when done is called, or takes too long.
func (t *turns) take() (done func()) {
	t.mu.Lock()
	if len(t.waiting) == 0 && t.taken < t.processors {
		t.taken++
		t.mu.Unlock()
	} else {
		come := make(chan struct{})
		t.waiting = append(t.waiting, come)
		t.mu.Unlock()
		<-come
	}
	// Whoever has been waiting for a processor meanwhile goes first.
	runtime.Gosched()
	var once sync.Once
	began := time.Now()
	end := func() { once.Do(func() { t.end(time.Since(began)) }) }
	timer := time.AfterFunc(longTurn, end)
	return func() {
		timer.Stop()
		end()
	}
}

// end ends a turn, and begins those that can begin.
func (t *turns) end(took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken--
	crowded := t.many()
	if t.crowded.Load() != crowded {
		t.crowded.Store(crowded)
	}
	if t.worked += took; t.worked >= stint {
		if crowded && !t.resting && time.Since(time.Unix(0, t.small.Load())) < recently {
			t.resting = true
			time.AfterFunc(min(t.worked, longTurn), t.goOn)
		}
		t.worked = 0
	}
	t.begin()
}

// goOn is called when it has been rested.
func (t *turns) goOn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.resting = false
	t.begin()
}

func (t *turns) begin() {
	for len(t.waiting) > 0 && !t.resting && t.taken < t.limit() {
		close(t.waiting[0])
		t.waiting[0] = nil
		t.waiting = t.waiting[1:]
		t.taken++
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
	turns *turns
	done  func() // nil as long as there is none
	taken bool   // there was one
}

// Take implements request.Turns.
func (t *turn) Take() {
	if t.done == nil && t.turns != nil {
		t.done, t.taken = t.turns.take(), true
	}
}

// End implements request.Turns.
func (t *turn) End() {
	if t.done != nil {
		t.done()
		t.done = nil
	}
}
