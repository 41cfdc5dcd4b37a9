// Package clock is for what is done again and again.
package clock

import (
	"context"
	"iter"
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
