package boundedlog

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// LimitBurst is the number of lines that a Limit allows at once, LimitRate the
	// number per second in the long run.
	LimitBurst = 100
	LimitRate  = 10
)

// Limit is a rate limit for a log line that anybody on the network can cause. Lines
// over the limit are counted, and the next one that is written says how many were
// dropped. The zero value is ready to use.
type Limit struct {
	mu         sync.Mutex
	used       int       // tokens in use, at most LimitBurst
	last       time.Time // when tokens were last returned
	suppressed int
}

// Log writes a line, unless the rate limit is exceeded.
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
