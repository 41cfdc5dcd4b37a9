package controlplane

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

func TestPatiently(t *testing.T) {
	broken := errors.New("there is no leader")
	for _, c := range []struct {
		name   string
		works  time.Duration // after which it does
		stops  time.Duration // after which nobody wants it; 0 for never
		want   error
		within time.Duration
	}{
		{"at once", 0, 0, nil, 0},
		{"soon", 3 * time.Second, 0, nil, 3 * time.Second},
		{"never", time.Hour, 0, broken, patience},
		{"too late", time.Hour, 2500 * time.Millisecond, broken, 2500 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, begin := t.Context(), time.Now()
			if c.stops > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.stops)
				defer cancel()
			}
			err := patiently(ctx, "hook", func(context.Context) error {
				if time.Since(begin) < c.works {
					return broken
				}
				return nil
			}, slog.New(slog.DiscardHandler))
			if took := time.Since(begin); !errors.Is(err, c.want) || took != c.within {
				t.Errorf("%s: %v after %v, want %v after %v", c.name, err, took, c.want, c.within)
			}
		})
	}
}
