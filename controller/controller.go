package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apikeel/kelson/request"
)

// Controller is one of the controllers, before it runs.
type Controller struct {
	// Name by which it is chosen, garbage-collector-controller, and what it was
	// called before: garbagecollector.
	Name, Alias string
	// Account is the service account in kube-system that it acts as.
	Account string
	// Start begins its work. What it starts ends with the Env.
	Start func(env *Env) Observer
}

// Observer is a running controller.
type Observer interface {
	// Observe gets what the feed tells. It must not block, and is called by one
	// goroutine at a time.
	Observe(changes []Change)
}

// Starter is an Observer that wants to know when it has seen the whole state.
type Starter interface{ Synced() }

// Env is what a running controller has to do with.
type Env struct {
	*Client
	Feed Feed
	Log  *slog.Logger
	// Now tells the time.
	Now func() time.Time

	remotes *remotes
	ctx     context.Context
	running *group
	settle  func(func(context.Context))
	onJump  func(func())
	measure QueueMetrics
}

// group is goroutines that somebody waits for. None is started after that has
// begun.
type group struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

// Go runs f, unless it is too late.
func (g *group) Go(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.wg.Go(f)
	}
}

func (g *group) wait() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.wg.Wait()
}

// Kind returns a resource of which it is known that it is served, nil if it is
// switched off nevertheless.
func (e *Env) Kind(apiVersion, kind string) *Kind {
	k, _ := e.Feed.Find(apiVersion, kind)
	return k
}

// Manager runs controllers.
type Manager struct {
	// Controllers that may run, and Enabled which of them do: names, "*" for all,
	// and with a minus those that do not. Nil is all.
	Controllers []Controller
	Enabled     []string
	Feed        Feed
	// Client returns a client for a user.
	Client func(user request.User) *Client
	// Elect makes controllers run only as long as no other server's do.
	Elect *Election
	// Logger gets what operators want to know.
	Logger *slog.Logger
	// Now tells the time; nil is time.Now.
	Now func() time.Time
	// Jumps, unless it is nil, has f called whenever Now has jumped, until stop is
	// called.
	Jumps func(f func()) (stop func())
	// Queues returns what measures the queues of a controller; nil measures
	// nothing.
	Queues func(controller string) QueueMetrics
}

// Enabled returns which controllers are chosen by words as --controllers has
// them. What is not mentioned is off, unless "*" is; nil is all, and "-*" none.
func Enabled(controllers []Controller, words []string) ([]Controller, error) {
	if words == nil {
		return controllers, nil
	}
	all := false
	chosen := map[string]bool{} // by name; false if it is switched off
	for _, w := range words {
		name, off := strings.CutPrefix(w, "-")
		if name == "*" {
			all = !off
			continue
		}
		at := slices.IndexFunc(controllers, func(c Controller) bool { return c.Name == name || c.Alias == name })
		if at < 0 {
			return nil, fmt.Errorf("%q is not in the list of known controllers", name)
		}
		if _, before := chosen[controllers[at].Name]; !before {
			chosen[controllers[at].Name] = !off
		}
	}
	var on []Controller
	for _, c := range controllers {
		if wanted, named := chosen[c.Name]; wanted || !named && all {
			on = append(on, c)
		}
	}
	return on, nil
}

// restartAfter is the wait before controllers begin anew after an error.
const restartAfter = 100 * time.Millisecond

// Run runs the controllers until ctx ends, and returns when all of them have
// ended. It calls ready once, when they have done what there was to do at the
// start, or others do it.
func (m *Manager) Run(ctx context.Context, ready func()) error {
	on, err := Enabled(m.Controllers, m.Enabled)
	if err != nil {
		return err
	}
	ready = sync.OnceFunc(ready)
	if len(on) == 0 {
		ready()
		<-ctx.Done()
		return nil
	}
	run := func(ctx context.Context) error { return m.run(ctx, on, ready) }
	for ctx.Err() == nil {
		if m.Elect != nil {
			err = m.Elect.lead(ctx, m.Client(account("leader-election")), m.Logger, ready, run)
		} else {
			err = run(ctx)
		}
		if ctx.Err() != nil {
			break
		}
		m.Logger.Warn("controllers begin anew", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(restartAfter):
		}
	}
	return nil
}

// run is one life of the controllers: from a whole state to the end, or to the
// loss of the place in the history.
func (m *Manager) run(ctx context.Context, on []Controller, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	var running group
	defer running.wait()
	defer cancel()
	now := m.Now
	if now == nil {
		now = time.Now
	}
	jumps := m.Jumps
	if jumps == nil {
		jumps = func(func()) func() { return func() {} }
	}
	onJump := func(f func()) { context.AfterFunc(ctx, jumps(f)) }
	var queues []func(context.Context)
	var observers []Observer
	env := func(name, user string) *Env {
		var measure QueueMetrics
		if m.Queues != nil {
			measure = m.Queues(name)
		}
		return &Env{
			measure: measure,
			Client:  m.Client(account(user)), Log: m.Logger.With("controller", name), Now: now,
			ctx: ctx, running: &running, settle: func(wait func(context.Context)) { queues = append(queues, wait) }, onJump: onJump,
		}
	}
	feed := newRemotes(env("aggregation", "generic-garbage-collector"), m.Feed)
	for _, c := range on {
		e := env(c.Name, c.Account)
		e.Feed, e.remotes = feed, feed
		observers = append(observers, c.Start(e))
	}
	err := feed.Follow(ctx, func(changes []Change) {
		for _, o := range observers {
			if s, ok := o.(Starter); ok && len(changes) == 0 {
				s.Synced()
			} else if len(changes) > 0 {
				o.Observe(changes)
			}
		}
		if len(changes) == 0 {
			running.Go(func() {
				for _, wait := range queues {
					wait(ctx)
				}
				if ctx.Err() == nil {
					ready()
				}
			})
		}
	})
	if err == nil && ctx.Err() == nil {
		err = errors.New("the feed has ended")
	}
	return err
}

// account is the user of a controller. It may do everything, as the server may,
// but is seen in the audit as what it is.
func account(name string) request.User {
	return request.User{
		Name:   "system:serviceaccount:kube-system:" + name,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated", "system:masters"},
	}
}
