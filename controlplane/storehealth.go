package controlplane

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// askInterval is how often a store that other servers share is asked whether it is
	// there, so that a health check knows for how long it has been silent.
	askInterval = 500 * time.Millisecond
	// leastWait is how long a health check waits for an answer at least: a store that
	// is back is found.
	leastWait = 200 * time.Millisecond
)

// storeHealth answers health checks about a store. A check fails when the store has not
// answered for its timeout, whoever asked: a request to a store that has been silent for
// most of that time need not wait for all of it again.
type storeHealth struct {
	revision func(ctx context.Context) (int64, error)

	mu sync.Mutex
	// answered is when the last request began that was answered; zero unless run keeps
	// it up to date.
	answered time.Time
}

// run asks the store regularly until ctx ends.
func (h *storeHealth) run(ctx context.Context) {
	h.note(time.Now())
	for ctx.Err() == nil {
		h.ask(ctx, askInterval)
		select {
		case <-ctx.Done():
		case <-time.After(askInterval):
		}
	}
	h.note(time.Time{})
}

// check returns an error if the store does not answer.
func (h *storeHealth) check(ctx context.Context, timeout time.Duration) error {
	h.mu.Lock()
	answered := h.answered
	h.mu.Unlock()
	wait := timeout
	if !answered.IsZero() {
		// A tenth of the time is for the answer to the check itself.
		wait = min(max(timeout*9/10-time.Since(answered), leastWait), timeout)
	}
	if err := h.ask(ctx, wait); err != nil {
		return fmt.Errorf("error getting data from etcd: %w", err)
	}
	return nil
}

func (h *storeHealth) ask(ctx context.Context, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	began := time.Now()
	_, err := h.revision(ctx)
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		if !h.answered.IsZero() && began.After(h.answered) {
			h.answered = began
		}
	}
	return err
}

func (h *storeHealth) note(answered time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answered = answered
}
