// Package logwatch notices when nobody takes what a server logs: whoever writes a
// record waits then, and requests with it. Start at New and Check.
package logwatch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/apikeel/kelson/internal/boundedlog"
)

// blockedFor is how long a record may take to be written until logging is said to be
// blocked.
const blockedFor = 2 * time.Minute

// handler is a slog.Handler that notes when records are written.
type handler struct {
	slog.Handler
	*progress
}

// progress is what all loggers of a server have in common.
type progress struct {
	mu      sync.Mutex
	writing int       // records
	since   time.Time // the last one was written, or the first of these begun
}

// New returns a logger that writes what log writes, in lines of bounded length:
// clients choose much of what is in them.
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

// Check returns the health check of a logger that New has made.
func Check(log *slog.Logger) func(context.Context) error { return log.Handler().(handler).check }

func (p *progress) check(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writing > 0 && time.Since(p.since) >= blockedFor {
		return errors.New("logging blocked")
	}
	return nil
}
