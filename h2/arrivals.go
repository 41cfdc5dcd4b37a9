package h2

import (
	"runtime"
	"slices"
	"sync"
	"time"
)

// arrivalTime is how long a request counts as one that arrives, or up to twice as long, while
// others wait: one that takes longer waits for something itself and uses no CPU.
const arrivalTime = 100 * time.Millisecond

// arrivals bounds how many requests of all connections arrive at a time: they have been read, and
// neither answered nor said to have arrived (Arrival). Connections that have more wait in line,
// and take turns. Without it each of many connections could have as many goroutines that are
// ready to run as it has streams, and every other request would wait behind all of them.
type arrivals struct {
	most int

	mu      sync.Mutex
	round   uint64        // advances every arrivalTime while connections wait; never 0
	counts  [2]int        // arriving requests that entered in this round, and in the one before
	waiting []chan uint64 // each receives the round in which it enters
	timer   *time.Timer   // runs while connections wait
}

// enter waits until there is room for a request, or for done. It returns what leave is to be
// called with, or 0 if the request is not to be served.
func (a *arrivals) enter(done <-chan struct{}) (entered uint64) {
	a.mu.Lock()
	if len(a.waiting) == 0 && a.hasRoom() {
		entered = a.count()
		a.mu.Unlock()
		return entered
	}
	come := make(chan uint64, 1)
	a.waiting = append(a.waiting, come)
	if a.timer == nil {
		a.timer = time.AfterFunc(arrivalTime, a.nextRound)
	}
	a.mu.Unlock()
	select {
	case entered = <-come:
		// Goroutines that the network has woken run first: Go's scheduler hardly looks at them
		// as long as others wake each other, as those that leave and enter do.
		runtime.Gosched()
		return entered
	case <-done:
	}
	a.mu.Lock()
	if i := slices.Index(a.waiting, come); i >= 0 {
		a.waiting = slices.Delete(a.waiting, i, i+1)
		a.mu.Unlock()
		return 0
	}
	a.mu.Unlock()
	a.leave(<-come)
	return 0
}

// leave is called when a request has arrived, with what enter has returned.
func (a *arrivals) leave(entered uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if age := a.round - entered; age < uint64(len(a.counts)) {
		a.counts[age]--
		a.admit()
	}
}

func (a *arrivals) hasRoom() bool { return a.counts[0]+a.counts[1] < a.most }

func (a *arrivals) count() (entered uint64) {
	if a.round == 0 {
		a.round = 1
	}
	a.counts[0]++
	return a.round
}

// admit lets in those that wait, as far as there is room.
func (a *arrivals) admit() {
	n := 0
	for ; n < len(a.waiting) && a.hasRoom(); n++ {
		a.waiting[n] <- a.count()
		a.waiting[n] = nil
	}
	a.waiting = a.waiting[n:]
}

// nextRound forgets the requests that entered before the last round.
func (a *arrivals) nextRound() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.round++
	a.counts = [2]int{0, a.counts[0]}
	a.admit()
	if len(a.waiting) > 0 {
		a.timer.Reset(arrivalTime)
	} else {
		a.timer = nil
	}
}
