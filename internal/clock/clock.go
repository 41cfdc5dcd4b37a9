// Package clock is for what is done again and again.
package clock

import (
	"context"
	"iter"
	"sync"
	"time"
)

// Every ticks after each period until ctx ends. What is done at a tick may take longer
// than a period: the ticks that it misses are left out.
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

// Background calls f again and again until ctx ends, each time a period after the last
// call has returned. It has a goroutine only while f runs. running is held until ctx
// has ended and no call is under way.
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
			running.Done() // the end has found the timer stopped
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
