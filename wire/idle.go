package wire

import (
	"sync"
	"time"
)

// idleFor is how long encodings and values are kept that nobody reads; twice that at most.
const idleFor = 30 * time.Second

// idleTimer runs a function that drops what was not used for idleFor. It runs only while
// something is kept: the function starts the timer again if there is enough left. The zero
// value is ready for use.
type idleTimer struct {
	mu      sync.Mutex
	timer   *time.Timer // nil while it does not run
	stopped bool
}

// start has drop run after idleFor, unless it is about to anyway.
func (t *idleTimer) start(drop func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil || t.stopped {
		return
	}
	t.timer = time.AfterFunc(idleFor, func() {
		t.mu.Lock()
		t.timer = nil
		t.mu.Unlock()
		drop()
	})
}

// stop ends the timer for good.
func (t *idleTimer) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	if t.timer != nil {
		t.timer.Stop()
	}
}
