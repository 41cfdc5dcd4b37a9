package apiserver

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/apikeel/kelson/internal/clock"
)

// leaveWithin is how long a server that ends tries to take back what says that it
// is there. A store that answers needs milliseconds for that; if it does not, the
// others notice when what is left expires.
const leaveWithin = 5 * time.Second

// renewWithin is how long a renewal may take.
const renewWithin = 10 * time.Second

// presence is something that says that a server is there. It is renewed now and then,
// and taken back at the end.
type presence struct {
	what string // for the log
	log  *slog.Logger

	mu    sync.Mutex      // held by who does something about it
	stay  context.Context // ends with leave
	leave context.CancelFunc
}

func newPresence(what string, log *slog.Logger) *presence {
	p := &presence{what: what, log: log}
	p.stay, p.leave = context.WithCancel(context.Background())
	return p
}

// keep calls renew at once and after each period, until ctx ends or it is taken back.
func (p *presence) keep(ctx context.Context, period time.Duration, renew func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.stay, cancel)()
	nowAndEvery(ctx, period, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		bounded, cancel := context.WithTimeout(ctx, renewWithin)
		defer cancel()
		if err := renew(bounded); err != nil && ctx.Err() == nil {
			p.log.Warn(p.what+" could not be brought up to date", "error", err)
		}
	})
}

// takeBack calls remove, after which nothing is renewed. It does not wait for a store
// that lets a renewal wait.
func (p *presence) takeBack(ctx context.Context, remove func(ctx context.Context) error) {
	p.leave()
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, leaveWithin)
	defer cancel()
	if err := remove(ctx); err != nil {
		p.log.Warn(p.what+" could not be removed", "error", err)
	}
}

// nowAndEvery calls f at once, and then after each period until ctx ends.
func nowAndEvery(ctx context.Context, period time.Duration, f func()) {
	f()
	for range clock.Every(ctx, period) {
		f()
	}
}
