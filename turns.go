package kelson

import (
	"runtime"
	"sync"
	"time"
)

const (
	// longTurn is how long a turn lasts at most. A client that reads slowly, or not
	// at all, loses its turn: it costs no processor time meanwhile.
	longTurn = 5 * time.Millisecond
	// manyWaiting is how many for each processor wait for a turn when there are so
	// many large answers that they leave half of the processors to others.
	manyWaiting = 3
)

// turns let large answers be made and written a few at a time, piece by piece: with
// dozens of them under way a small one would wait for as many time slices, more
// than once.
type turns struct {
	processors int

	mu      sync.Mutex
	taken   int
	waiting []chan struct{} // is closed when the turn has come
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
	end := func() { once.Do(t.end) }
	timer := time.AfterFunc(longTurn, end)
	return func() {
		timer.Stop()
		end()
	}
}

// end ends a turn, and begins those that can begin.
func (t *turns) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken--
	for len(t.waiting) > 0 && t.taken < t.limit() {
		close(t.waiting[0])
		t.waiting[0] = nil
		t.waiting = t.waiting[1:]
		t.taken++
	}
}

// limit is how many turns there are at a time.
func (t *turns) limit() int {
	if len(t.waiting) > manyWaiting*t.processors {
		return max(1, t.processors/2)
	}
	return t.processors
}

// turn is the turn of a request. Only its handler uses it.
type turn struct {
	turns *turns
	done  func() // nil as long as there is none
}

// Take implements request.Turns.
func (t *turn) Take() {
	if t.done == nil && t.turns != nil {
		t.done = t.turns.take()
	}
}

// End implements request.Turns.
func (t *turn) End() {
	if t.done != nil {
		t.done()
		t.done = nil
	}
}
