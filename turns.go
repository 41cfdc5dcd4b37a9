package kelson

import (
	"runtime"
	"sync"
	"time"
)

// longTurn is how long a turn lasts at most. A client that reads slowly, or not
// at all, loses its turn: it costs no processor time meanwhile.
const longTurn = 5 * time.Millisecond

// turns let large answers be written a few at a time, piece by piece. Writing is
// mostly encryption, and the goroutines of a connection pass their time slice on
// to each other: with dozens of large answers under way a small one would wait for
// as many slices, more than once.
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
