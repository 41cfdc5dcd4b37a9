package boundedlog

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// LimitBurst is how many lines a Limit writes at once, and LimitRate how many a
	// second for ever.
	LimitBurst = 100
	LimitRate  = 10
)

// A Limit bounds how often a line is written that anybody on the network can cause.
// Lines over the limit are counted, and the next one that is written says how many
// they were. The zero value is ready.
type Limit struct {
	mu         sync.Mutex
	used       int       // tokens that are not there, at most LimitBurst
	last       time.Time // when tokens were given back last
	suppressed int
}

// Log writes a line, unless there have been too many.
func (l *Limit) Log(ctx context.Context, logger *slog.Logger, level slog.Level, message string, args ...any) {
	if !logger.Enabled(ctx, level) {
		return
	}
	suppressed, ok := l.take(time.Now())
	if !ok {
		return
	}
	if suppressed > 0 {
		args = append(args, "suppressed", suppressed)
	}
	logger.Log(ctx, level, message, args...)
}

func (l *Limit) take(now time.Time) (suppressed int, ok bool) {
	const period = time.Second / LimitRate
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last.IsZero() {
		l.last = now
	}
	returned := now.Sub(l.last) / period
	l.last = l.last.Add(returned * period)
	l.used = int(max(time.Duration(l.used)-returned, 0))
	if l.used >= LimitBurst {
		l.suppressed++
		return 0, false
	}
	l.used++
	suppressed, l.suppressed = l.suppressed, 0
	return suppressed, true
}
