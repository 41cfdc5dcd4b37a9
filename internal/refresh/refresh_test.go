package refresh

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apikeel/kelson/request"
)

// shared counts its fetches, each of which takes a second and has the error that is set.
func shared(t *testing.T, fetches *int, err *error) *Shared {
	t.Helper()
	return &Shared{
		Fetch: func(ctx context.Context) error {
			*fetches++
			select {
			case <-time.After(time.Second):
				return *err
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		Timeout: 30 * time.Second, Retry: 10 * time.Second, Again: time.Second, Life: t.Context(), Now: time.Now,
	}
}

// TestOneFetchAtATime: callers that come during a fetch share it, one that leaves does not
// end it, and the pause after a failure counts from its end.
func TestOneFetchAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fetches, fault := 0, errors.New("down")
		s := shared(t, &fetches, &fault)
		ctx, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := s.Wait(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("who left: got %v, want its own end", err)
			}
		})
		synctest.Wait()
		for range 8 {
			wg.Go(func() {
				if err := s.Wait(t.Context()); err != fault {
					t.Errorf("who shares: got %v, want %v", err, fault)
				}
			})
		}
		synctest.Wait()
		leave()
		wg.Wait()
		time.Sleep(9900 * time.Millisecond) // of the fake clock: nearly Retry after the end of the fetch
		if err := s.Wait(t.Context()); err != fault || fetches != 1 {
			t.Errorf("in the pause: got %v after %d fetches, want %v at once after 1", err, fetches, fault)
		}
		time.Sleep(200 * time.Millisecond)
		fault = nil
		if err := s.Wait(t.Context()); err != nil || fetches != 2 {
			t.Errorf("after the pause: got %v after %d fetches, want none after 2", err, fetches)
		}
		ended := time.Now()
		if err := s.Wait(t.Context()); err != nil || fetches != 3 || time.Since(ended) != s.Again+time.Second {
			t.Errorf("just after a success: got %v after %d fetches and %v, want none after 3, the last one not at once", err, fetches, time.Since(ended))
		}
		ended = time.Now()
		if err := s.Force(t.Context()); err != nil || fetches != 4 || time.Since(ended) != time.Second {
			t.Errorf("by force: got %v after %d fetches and %v, want none after 4, the last one at once", err, fetches, time.Since(ended))
		}
	})
}

// TestWaitersAreBounded: one too many hears at once that it should try again, and who left
// makes room.
func TestWaitersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fetches, fault := 0, error(nil)
		s := shared(t, &fetches, &fault)
		ctx, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range MaxWaiting {
			wg.Go(func() { _ = s.Wait(ctx) })
		}
		synctest.Wait()
		if err := s.Wait(t.Context()); !errors.Is(err, request.ErrBusy) {
			t.Errorf("got %v, want %v", err, request.ErrBusy)
		}
		leave()
		wg.Wait()
		if err := s.Wait(t.Context()); err != nil || fetches != 1 {
			t.Errorf("when others have left: got %v after %d fetches, want none after 1", err, fetches)
		}
	})
}

// TestFetchThatPanicsIsAnError: it runs on a goroutine of its own.
func TestFetchThatPanicsIsAnError(t *testing.T) {
	s := &Shared{Fetch: func(context.Context) error { panic("oops") }, Timeout: time.Minute, Life: t.Context(), Now: time.Now}
	if err := s.Wait(t.Context()); err == nil || err.Error() != "panic: oops" {
		t.Errorf("got %v, want the panic as an error", err)
	}
}
