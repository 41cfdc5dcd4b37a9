package controlplane

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A store that falls silent makes the check fail within its timeout, counted from when the
// store last answered; one that is back makes it pass at once.
func TestStoreHealthCountsFromLastAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent atomic.Bool
		h := &storeHealth{revision: func(ctx context.Context) (int64, error) {
			if silent.Load() {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			return 1, nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			h.run(ctx)
		}()
		time.Sleep(time.Minute)
		if err := h.check(t.Context(), 2*time.Second); err != nil {
			t.Errorf("with a store that answers: got %v, want no error", err)
		}

		silent.Store(true)
		cut := time.Now()
		err := h.check(t.Context(), 2*time.Second)
		if took := time.Since(cut); !errors.Is(err, context.DeadlineExceeded) || took >= 2*time.Second {
			t.Errorf("got %v %v after the store fell silent, want a timeout in less than 2s", err, took)
		}
		before := time.Now()
		if err := h.check(t.Context(), 2*time.Second); err == nil || time.Since(before) != leastWait {
			t.Errorf("got %v after %v with a store known to be silent, want an error after %v", err, time.Since(before), leastWait)
		}

		silent.Store(false)
		if err := h.check(t.Context(), 2*time.Second); err != nil {
			t.Errorf("with a store that is back: got %v, want no error", err)
		}
		cancel()
		<-ended
	})
}

// Without a loop that asks, a check has all of its time: nobody knows when the store last
// answered.
func TestStoreHealthAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &storeHealth{revision: func(ctx context.Context) (int64, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}}
		before := time.Now()
		if err := h.check(t.Context(), 3*time.Second); err == nil || time.Since(before) != 3*time.Second {
			t.Errorf("got %v after %v, want an error after 3s", err, time.Since(before))
		}
	})
}
