package kelson

import (
	"runtime"
	"sync"
	"time"
)

// longTurn is how long a turn lasts at most. A client that reads slowly, or not
// at all, loses its turn: it costs no processor time meanwhile.
const longTurn = 5 * time.Millisecond

// turns let large answers be made and written a few at a time, piece by piece: with
// dozens of them under way a small one would wait for as many time slices, more
// than once.
type turns struct{ free chan struct{} }

// newTurns lets as many answers be written at a time as there are processors.
func newTurns() *turns { return &turns{make(chan struct{}, runtime.GOMAXPROCS(0))} }

// take waits for a turn, which ends when done is called, or takes too long.
func (t *turns) take() (done func()) {
	t.free <- struct{}{}
	// Whoever has been waiting for a processor meanwhile goes first.
	runtime.Gosched()
	var once sync.Once
	end := func() { once.Do(func() { <-t.free }) }
	timer := time.AfterFunc(longTurn, end)
	return func() {
		timer.Stop()
		end()
	}
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
