package clock

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var at []time.Duration
		for range Every(ctx, 3*time.Second) {
			at = append(at, time.Since(begin))
			if len(at) == 1 {
				time.Sleep(4 * time.Second) // of the test's clock: over the second tick
			}
		}
		// The second tick comes late, the third in time.
		if len(at) != 3 || at[0] != 3*time.Second || at[1] != 7*time.Second || at[2] != 9*time.Second {
			t.Errorf("ticks at %v", at)
		}
		if now := time.Since(begin); now != 10*time.Second {
			t.Errorf("ended after %v", now)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		n := 0
		for range Every(t.Context(), time.Second) {
			if n++; n == 2 {
				break
			}
		}
		if n != 2 {
			t.Errorf("%d ticks", n)
		}
	})
}

// TestBackgroundEndsWithItsContext: whoever waits for what runs waits for a call that is
// under way, and for nothing else.
func TestBackgroundEndsWithItsContext(t *testing.T) {
	for name, end := range map[string]time.Duration{"at rest": 7 * time.Second, "during a call": 5500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), end)
				defer cancel()
				begin := time.Now()
				var running sync.WaitGroup
				var at []time.Duration
				Background(ctx, &running, 2*time.Second, func() {
					at = append(at, time.Since(begin))
					time.Sleep(time.Second) // of the test's clock
				})
				running.Wait()
				if len(at) != 2 || at[0] != 2*time.Second || at[1] != 5*time.Second {
					t.Errorf("got calls at %v, want them at 2s and 5s", at)
				}
				want := max(end, 6*time.Second)
				if got := time.Since(begin); got != want {
					t.Errorf("waited until %v, want %v", got, want)
				}
			})
		})
	}
}
