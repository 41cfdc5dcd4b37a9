package logwatch

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// slowHandler handles a record when somebody takes it.
type slowHandler struct {
	slog.Handler
	take chan struct{}
}

func (h slowHandler) Handle(context.Context, slog.Record) error {
	h.take <- struct{}{}
	return nil
}

func (slowHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h slowHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h slowHandler) WithGroup(string) slog.Handler { return h }

// TestLogWatch: logging is blocked if no record is taken for long, and not if some
// are, however many wait.
func TestLogWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := slowHandler{take: make(chan struct{})}
		log := New(slog.New(slow))
		if log != New(log) {
			t.Error("it is watched twice")
		}
		want := func(blocked bool) {
			t.Helper()
			synctest.Wait()
			if err := Check(log)(t.Context()); (err != nil) != blocked {
				t.Errorf("blocked is %v, not %v", err, blocked)
			}
		}
		want(false)
		for range 3 {
			go log.With("a", 1).WithGroup("g").Info("hello", "b", 2)
		}
		time.Sleep(blockedFor - time.Second)
		want(false)
		time.Sleep(time.Second)
		want(true)
		<-slow.take
		want(false)
		time.Sleep(blockedFor - time.Second)
		<-slow.take
		time.Sleep(time.Second)
		want(false)
		time.Sleep(blockedFor)
		want(true)
		<-slow.take
		time.Sleep(2 * blockedFor)
		want(false)
	})
}
