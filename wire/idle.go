package wire

import (
	"sync"
	"time"
)

// How long encodings, chunks of lists among them, and values are kept that nobody reads; twice
// that at most. An encoding is made again from the value within some microseconds, so that making
// all of them again every idleEncodings costs little; a value is read again from storage. While
// objects are converted, which may take a webhook seconds for a list, all encodings stay for
// idleConverted: those of a list must not go before it is written.
const (
	idleEncodings = 3 * time.Second
	idleConverted = 30 * time.Second
	idleValues    = 30 * time.Second
	// sweepRest is how many times longer than a sweep took the next one waits at least.
	sweepRest = 100
)

// idleTimer runs a function that drops what was not used for a while. It runs only while
// something is kept: the function starts the timer again if there is enough left. The zero
// value is ready for use.
type idleTimer struct {
	mu      sync.Mutex
	timer   *time.Timer // nil while it does not run
	stopped bool
}

// start has drop run after a while, unless it is about to anyway.
func (t *idleTimer) start(after time.Duration, drop func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil || t.stopped {
		return
	}
	t.timer = time.AfterFunc(after, func() {
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
