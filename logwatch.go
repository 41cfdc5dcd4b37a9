package kelson

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

// logWatch is a slog.Handler that notices if nobody takes what is logged: who writes
// a record waits then, and requests with it.
type logWatch struct {
	slog.Handler
	*logProgress
}

// logProgress is what all loggers of a server have in common.
type logProgress struct {
	mu      sync.Mutex
	writing int       // records
	since   time.Time // the last one was written, or the first of these begun
}

// watchLogs returns a logger that writes what log writes, in lines of bounded length:
// clients choose much of what is in them.
func watchLogs(log *slog.Logger) *slog.Logger {
	if _, ok := log.Handler().(logWatch); ok {
		return log
	}
	return slog.New(logWatch{boundedlog.New(log.Handler()), &logProgress{}})
}

// Handle implements slog.Handler.
func (w logWatch) Handle(ctx context.Context, r slog.Record) error {
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
func (w logWatch) WithAttrs(attrs []slog.Attr) slog.Handler {
	return logWatch{w.Handler.WithAttrs(attrs), w.logProgress}
}

// WithGroup implements slog.Handler.
func (w logWatch) WithGroup(name string) slog.Handler {
	return logWatch{w.Handler.WithGroup(name), w.logProgress}
}

// check is the health check.
func (p *logProgress) check(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writing > 0 && time.Since(p.since) >= blockedFor {
		return errors.New("logging blocked")
	}
	return nil
}
