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

// Controller declares a controller: its names and how it is started.
type Controller struct {
	// Name selects it in --controllers: garbage-collector-controller. Alias is the
	// older name: garbagecollector.
	Name, Alias string
	// Account is the service account in kube-system that it makes requests as.
	Account string
	// Start starts the controller. Its goroutines end with the context of env.
	Start func(env *Env) Observer
}

// Observer is a running controller.
type Observer interface {
	// Observe is called with the changes of the feed. It must not block, and is
	// called by one goroutine at a time.
	Observe(changes []Change)
}

// Starter is an Observer whose Synced is called once, after Observe has seen the
// initial state of all objects.
type Starter interface{ Synced() }

// Env is what a running controller works with.
type Env struct {
	*Client
	Feed Feed
	Log  *slog.Logger
	// Now returns the current time; tests replace it.
	Now func() time.Time

	remotes *remotes
	ctx     context.Context
	running *group
	onStart func(func(context.Context))
	onJump  func(func())
	measure QueueMetrics
}

// group is a WaitGroup that starts no goroutines after wait was called.
type group struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

// Go runs f in a goroutine, unless wait was called before.
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

// Kind returns a resource of this server, nil if it is disabled.
func (e *Env) Kind(apiVersion, kind string) *Kind {
	k, _ := e.Feed.Find(apiVersion, kind)
	return k
}

// Manager runs controllers.
type Manager struct {
	// Controllers that can run. Enabled selects which of them do, by name: "*" for
	// all, a minus before a name to exclude it. Nil runs all.
	Controllers []Controller
	Enabled     []string
	Feed        Feed
	// Client returns a client that makes requests as a user.
	Client func(user request.User) *Client
	// Elect, if set, runs the controllers only while this server holds the lease.
	Elect *Election
	// Logger for operators.
	Logger *slog.Logger
	// Now returns the current time; nil is time.Now.
	Now func() time.Time
	// Jumps, if set, registers f to be called whenever Now has jumped, as tests
	// make it do, until stop is called.
	Jumps func(f func()) (stop func())
	// Busy, if set, reports whether clients are being answered. Reading what there is at the
	// start gives way to them, once the start does not wait for it.
	Busy func() bool
	// Queues returns the metrics of the queues of a controller; nil means none.
	Queues func(controller string) QueueMetrics
}

// Enabled returns the controllers that the words of --controllers select. A
// controller that is not mentioned is off unless "*" is among the words; nil selects
// all, "-*" none.
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

// maxAwaited is how many objects a start waits for.
const maxAwaited = 20_000

// The feed's reading at the start pauses while clients are answered: it looks every
// pauseStep whether they are, and pauses for maxPause in all, so that the controllers of a
// server that is never idle start, too.
const (
	pauseStep = 5 * time.Millisecond
	maxPause  = 10 * time.Second
)

// restartAfter is the delay before controllers are restarted after an error.
const restartAfter = 100 * time.Millisecond

// Run runs the controllers until ctx ends, and returns when all of them have ended. It
// calls ready once: when the queues are empty after the start, when another server holds
// the lease, or when the feed has told of maxAwaited objects, since to tell of all of them
// may take minutes.
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
		m.Logger.Warn("controllers failed and are restarted", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(restartAfter):
		}
	}
	return nil
}

// run starts the controllers on a full state of the feed, and runs them until ctx ends
// or the feed loses its place in the history.
func (m *Manager) run(ctx context.Context, on []Controller, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	var running group
	defer running.wait()
	defer cancel()
	now := m.Now
	if now == nil {
		now = time.Now
	}
	var onJump []func()
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
			ctx: ctx, running: &running, onStart: func(wait func(context.Context)) { queues = append(queues, wait) }, onJump: func(f func()) { onJump = append(onJump, f) },
		}
	}
	feed := newRemotes(env("aggregation", "generic-garbage-collector"), m.Feed)
	for _, c := range on {
		e := env(c.Name, c.Account)
		e.Feed, e.remotes = feed, feed
		observers = append(observers, c.Start(e))
	}
	if m.Jumps != nil {
		jumped := func() {
			for _, f := range onJump {
				f()
			}
		}
		defer m.Jumps(jumped)()
		jumped() // the clock may have jumped since the first of them started
	}
	told, paused, synced := 0, time.Duration(0), false
	err := feed.Follow(ctx, func(changes []Change) {
		synced = synced || len(changes) == 0
		if told += len(changes); told >= maxAwaited && !synced {
			ready()
			for ; m.Busy != nil && m.Busy() && paused < maxPause && ctx.Err() == nil; paused += pauseStep {
				time.Sleep(pauseStep)
			}
		}
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

// account returns the user of a controller. It is in system:masters, so that every
// request is authorized; audit events show the service account.
func account(name string) request.User {
	return request.User{
		Name:   "system:serviceaccount:kube-system:" + name,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated", "system:masters"},
	}
}
