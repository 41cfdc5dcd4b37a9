package replicas

import (
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/testsize"
)

const (
	// lag is how late events come to the server that lags.
	lag = 40 * time.Millisecond
	// stayAtServer is how long a watcher that moves stays at a server.
	stayAtServer = 250 * time.Millisecond
)

// TestMovingWatches has clients that watch, and resume their watches at another server all
// the time, one of which lags behind the others: no event is lost, repeated or out of order.
func TestMovingWatches(t *testing.T) {
	watchers, writers, wanted := testsize.Pick(6, 12, 90), testsize.Pick(2, 4, 12), testsize.Pick(500, 5_000, 1_000_000)
	f := newFleet(t)
	for _, link := range f.links[1] {
		link.delay(lag)
	}
	l := newLoad(f, "moving")
	for i := range writers {
		l.work(i, l.generate)
	}
	for i := range watchers {
		l.follow(i, i%2 == 1, stayAtServer)
	}
	seen := func() (events, moves int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, w := range l.watchers {
			events += len(w.events)
			moves += w.moves
		}
		return events, moves
	}
	began := time.Now()
	for deadline := began.Add(4 * startTimeout); ; pause(100 * time.Millisecond) {
		if events, _ := seen(); events >= wanted {
			break
		}
		if time.Now().After(deadline) {
			break
		}
	}
	l.stop()
	f.heal()
	l.check(false)
	events, moves := seen()
	t.Logf("%d events in %d watches of %d clients in %v", events, moves, len(l.watchers), time.Since(began).Round(time.Second))
	if events < wanted || moves < 3*watchers {
		t.Errorf("%d events in %d watches, want at least %d in %d", events, moves, wanted, 3*watchers)
	}
}
