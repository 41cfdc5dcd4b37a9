// Package clock runs something periodically. Start at Every and Background.
package clock

import (
	"context"
	"iter"
	"sync"
	"time"
)

// Every ticks after each period until ctx ends. Ticks that come while the loop body
// runs are dropped.
func Every(ctx context.Context, period time.Duration) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				if !yield(now) {
					return
				}
			}
		}
	}
}

// Background calls f repeatedly until ctx ends, each time one period after the last
// call has returned. It has a goroutine only while f runs. running is done when ctx has
// ended and no call is in progress.
func Background(ctx context.Context, running *sync.WaitGroup, period time.Duration, f func()) {
	running.Add(1)
	var mu sync.Mutex // guards timer
	var timer *time.Timer
	mu.Lock()
	timer = time.AfterFunc(period, func() {
		if ctx.Err() == nil {
			f()
		}
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() != nil {
			running.Done() // the stop function found the timer stopped already
			return
		}
		timer.Reset(period)
	})
	mu.Unlock()
	context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if timer.Stop() {
			running.Done()
		}
	})
}
