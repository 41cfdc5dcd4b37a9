// Package logwatch detects that log output is blocked, in which case requests that log
// wait too. Start at New and Check.
package logwatch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/apikeel/kelson/internal/boundedlog"
)

// blockedFor is how long writing a record may take before the health check fails.
const blockedFor = 2 * time.Minute

// handler is a slog.Handler that records when writes begin and end.
type handler struct {
	slog.Handler
	*progress
}

// progress is shared by all loggers derived from one.
type progress struct {
	mu      sync.Mutex
	writing int       // records being written
	since   time.Time // when a record was last finished, or the first of these was begun
}

// New returns a logger that writes to log, with lines of bounded length (boundedlog).
func New(log *slog.Logger) *slog.Logger {
	if _, ok := log.Handler().(handler); ok {
		return log
	}
	return slog.New(handler{boundedlog.New(log.Handler()), &progress{}})
}

// Handle implements slog.Handler.
func (w handler) Handle(ctx context.Context, r slog.Record) error {
	w.mu.Lock()
	if w.writing++; w.writing == 1 {
		w.since = time.Now()
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.writing--
		w.since = time.Now()
		w.mu.Unlock()
	}()
	return w.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (w handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{w.Handler.WithAttrs(attrs), w.progress}
}

// WithGroup implements slog.Handler.
func (w handler) WithGroup(name string) slog.Handler {
	return handler{w.Handler.WithGroup(name), w.progress}
}

// Check returns the health check of a logger that New has returned.
func Check(log *slog.Logger) func(context.Context) error { return log.Handler().(handler).check }

func (p *progress) check(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writing > 0 && time.Since(p.since) >= blockedFor {
		return errors.New("logging blocked")
	}
	return nil
}
