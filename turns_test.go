package kelson

import (
	"testing"
	"testing/synctest"
	"time"
)

// A turn is over when it is done, and when it takes too long.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := &turns{make(chan struct{}, 1)}
		begin := time.Now()
		turns.take()()
		stuck := turns.take()
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("a free turn was waited for: %v", waited)
		}
		done := turns.take()
		if waited := time.Since(begin); waited != longTurn {
			t.Errorf("one that is stuck was waited for: %v", waited)
		}
		stuck() // changes nothing: its turn has been over
		if len(turns.free) != 1 {
			t.Error("somebody else's turn was ended")
		}
		done()
	})
}
