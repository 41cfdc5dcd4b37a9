package h2

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestArrivalsTakeTurns: those that wait enter in the order in which they came, as others leave,
// and one that gives up takes nobody's place.
func TestArrivalsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := arrivals{most: 2}
		first, second := a.enter(nil), a.enter(nil)
		var order []int
		var entered []uint64
		gone := make(chan struct{})
		for i := range 4 {
			var done chan struct{}
			if i == 1 {
				done = gone
			}
			go func() {
				if e := a.enter(done); e != 0 {
					order, entered = append(order, i), append(entered, e)
				}
			}()
			synctest.Wait()
		}
		if close(gone); len(order) > 0 {
			t.Errorf("%d requests entered beyond the bound", len(order))
		}
		synctest.Wait()
		for _, e := range []uint64{first, second} {
			a.leave(e)
			synctest.Wait()
		}
		if len(order) != 2 || order[0] != 0 || order[1] != 2 {
			t.Errorf("after two have left, %v entered, want 0 and 2", order)
		}
		for n := 0; n < len(entered); n++ {
			a.leave(entered[n])
			synctest.Wait()
		}
		if len(order) != 3 || a.counts != [2]int{} {
			t.Errorf("%v entered and %v are left, want 3 and none", order, a.counts)
		}
	})
}

// TestArrivalsThatWaitAreForgotten: requests that take long do not keep others out, and count
// for nothing when they have arrived at last.
func TestArrivalsThatWaitAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, waiting = 4, 10
		a := arrivals{most: most}
		var slow []uint64
		for range most {
			slow = append(slow, a.enter(nil))
		}
		began, entered := time.Now(), make(chan uint64, waiting)
		for range waiting {
			go func() { entered <- a.enter(nil) }()
		}
		for n := range waiting {
			slow = append(slow, <-entered)
			if most, waited := time.Duration(n/most+1)*2*arrivalTime, time.Since(began); waited > most {
				t.Errorf("the request %d entered after %v, want %v at most", n, waited, most)
			}
		}
		for _, e := range slow {
			a.leave(e)
		}
		if a.counts != [2]int{} {
			t.Errorf("%v are left when all have left", a.counts)
		}
		if a.enter(nil) == 0 {
			t.Error("no request enters")
		}
	})
}
