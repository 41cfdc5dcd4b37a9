package turns

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A turn is over when it is done, and when it takes too long.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := &Scheduler{processors: 1}
		begin := time.Now()
		turns.end(turns.take())
		stuck := turns.take()
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("a free turn was waited for: %v", waited)
		}
		done := turns.take()
		if waited := time.Since(begin); waited != longTurn {
			t.Errorf("one that is stuck was waited for: %v", waited)
		}
		turns.end(stuck) // changes nothing: its turn has been over
		if len(turns.running) != 1 {
			t.Error("somebody else's turn was ended")
		}
		turns.end(done)
		if len(turns.running) != 0 {
			t.Errorf("%d turns are left", len(turns.running))
		}
	})
}

// With many who wait, half of the processors are left to others, and all get their
// turn, one after the other.
func TestManyTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processors, all = 4, 100
		turns := &Scheduler{processors: processors}
		order, most, active := make(chan int, all), 0, 0
		var mu sync.Mutex // of most and active
		first := []*takenTurn{turns.take(), turns.take(), turns.take(), turns.take()}
		for i := range all {
			go func() {
				own := turns.take()
				mu.Lock()
				active++
				if i < all/2 {
					most = max(most, active)
				}
				mu.Unlock()
				order <- i
				time.Sleep(time.Millisecond)
				mu.Lock()
				active--
				mu.Unlock()
				turns.end(own)
			}()
			synctest.Wait()
		}
		for _, r := range first {
			turns.end(r)
		}
		for i := range all {
			if got := <-order; got/processors > i/processors+1 || got/processors < i/processors-1 {
				t.Errorf("number %d had its turn as number %d", got, i)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if most != processors/2 {
			t.Errorf("%d had a turn at a time", most)
		}
		mu.Unlock()
		time.Sleep(longTurn)
		mu.Lock()
		turns.mu.Lock()
		defer turns.mu.Unlock()
		if len(turns.running) != 0 || len(turns.waiting) != 0 {
			t.Errorf("%d turns and %d who wait are left", len(turns.running), len(turns.waiting))
		}
	})
}

// TestRest: as long as many wait and there are small requests, large answers take
// half of the time that there is.
func TestRest(t *testing.T) {
	for _, test := range []struct {
		name  string
		small bool
		want  time.Duration
	}{{"alone", false, 20 * time.Millisecond}, {"with small ones", true, 35 * time.Millisecond}} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				turns := &Scheduler{processors: 1}
				begin := time.Now()
				var all sync.WaitGroup
				for range 20 {
					all.Go(func() {
						own := turns.take()
						time.Sleep(stint)
						turns.end(own)
						if test.small {
							turns.noteSmall()
						}
					})
				}
				all.Wait()
				if took := time.Since(begin); took != test.want {
					t.Errorf("it took %v, not %v", took, test.want)
				}
			})
		})
	}
}
