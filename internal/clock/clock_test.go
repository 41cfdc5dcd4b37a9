package clock

import (
	"context"
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
