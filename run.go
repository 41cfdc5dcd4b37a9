package kelson

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/internal/textlog"
	"github.com/apikeel/kelson/request"
)

// errStopping is the cause with which long-running requests are cancelled.
var errStopping = errors.New("the server is shutting down")

// ErrReplaced is the cause with which the context of Run is cancelled when another process
// takes over and waits for this one: Shutdown.Delay does not count then.
var ErrReplaced = errors.New("another process takes over")

// lastBytes is how long shutdown waits, after the last request, for buffered bytes to reach
// clients.
const lastBytes = 250 * time.Millisecond

// Run listens, unless Listen was called, and serves until ctx ends or a post-start hook
// fails; only the latter is an error. The shutdown sequence is:
//
//	ctx ends → not ready → pre-shutdown hooks, which may still use the API, and
//	Shutdown.Delay, after half of which connections are closed → no new requests, no new connections → watches end → other
//	requests finish → what hooks started ends → Close
//
// Each step has a timeout; with nothing to wait for, all of them take milliseconds. Close is
// called in any case. A server runs once. Signals shows the progress.
func (s *Server) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.Listen(); err != nil {
		return err
	}
	if !s.ListenWhenReady {
		defer s.listener.Close() // in case Serve is never called
	}
	base, endBase := context.WithCancel(context.WithoutCancel(ctx))
	defer endBase()
	server := s.httpServer(base)

	failed := make(chan error, len(s.hooks)+1)
	var listening sync.WaitGroup
	listening.Go(func() {
		if s.ListenWhenReady {
			select {
			case <-s.signals.MuxAndDiscoveryComplete.Happened():
			case <-s.signals.ShutdownInitiated.Happened():
				return
			}
			if err := s.bind(); err != nil {
				failed <- err
				return
			}
			s.notice("Serving securely on " + s.listener.Addr().String())
		}
		defer s.listener.Close() // Serve does not, if the shutdown has begun
		if err := server.ServeTLS(s.listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("serving on %s: %w", s.listener.Addr(), err)
		}
		s.notice("Stopped listening on " + s.listener.Addr().String())
		s.signal(&s.signals.HTTPServerStoppedListening)
	})
	if !s.ListenWhenReady {
		s.notice("Serving securely on " + s.listener.Addr().String())
	}

	if s.Now != nil {
		base = request.WithClock(base, s.Now)
	}
	hooks, endHooks := context.WithCancel(base)
	defer endHooks()
	var running sync.WaitGroup
	var starting atomic.Int64
	starting.Store(int64(len(s.hooks)))
	running.Go(func() { s.shown.Watch(hooks, s.Logger) })
	for _, hook := range s.hooks {
		running.Go(func() {
			if err := runHook(hooks, hook.Hook); err != nil && hooks.Err() == nil {
				failed <- fmt.Errorf("post-start hook %q failed: %w", hook.Name, err)
				return
			}
			hook.done.Store(true)
			if starting.Add(-1) == 0 {
				s.signal(&s.signals.MuxAndDiscoveryComplete)
			}
		})
	}

	delay, replaced := s.Shutdown.Delay, false
	select {
	case <-ctx.Done():
		replaced = errors.Is(context.Cause(ctx), ErrReplaced)
	case err = <-failed:
		delay = 0
	}
	if replaced {
		delay = 0
	}

	s.signal(&s.signals.ShutdownInitiated)
	err = errors.Join(err, s.prepareEnd(base, delay, replaced))
	err = errors.Join(err, s.drain(base, server))
	s.signal(&s.signals.InFlightRequestsDrained)
	listening.Wait() // short: the listener is closed
	endHooks()
	err = errors.Join(err, s.bounded(base, func(ctx context.Context) error { return wait(ctx, &running) }))
	endBase() // cancels requests that were given up
	s.Logger.Info("stopped", "server", s.Name)
	return err
}

// notice logs a line that operators of kube-apiserver look for, in its words.
func (s *Server) notice(text string) {
	s.Logger.Log(textlog.Plain(context.Background()), LevelNotice, text)
}

// bounded runs a step of the shutdown with a timeout.
func (s *Server) bounded(ctx context.Context, step func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.Shutdown.Timeout)
	defer cancel()
	return step(ctx)
}

// prepareEnd runs the pre-shutdown hooks, and concurrently waits for delay. By the half of it
// load balancers are expected to have noticed that the server is not ready: clients are
// told to open new connections then, which lead to other servers. A server that is replaced,
// or shares its port, refuses nothing: its clients are told to open new connections, and the
// process that replaces it listens already.
func (s *Server) prepareEnd(ctx context.Context, delay time.Duration, replaced bool) error {
	var delaying sync.WaitGroup
	delaying.Go(func() {
		time.Sleep(delay / 2)
		s.parting.Store(delay > 0)
		time.Sleep(delay - delay/2)
		s.signal(&s.signals.AfterShutdownDelayDuration)
	})
	err := s.bounded(ctx, s.runStopHooks)
	s.signal(&s.signals.PreShutdownHooksStopped)
	delaying.Wait()
	s.refusing.Store(!replaced && !s.ListenWhenReady)
	s.signal(&s.signals.NotAcceptingNewRequest)
	return err
}

func (s *Server) runStopHooks(ctx context.Context) (err error) {
	for _, hook := range s.stopHooks {
		if hookErr := runHook(ctx, hook); hookErr != nil {
			err = errors.Join(err, fmt.Errorf("pre-shutdown hook %q failed: %w", hook.Name, hookErr))
		}
	}
	return err
}

func (s *Server) close() (err error) {
	if s.Audit != nil {
		err = s.bounded(context.Background(), s.Audit.Close)
	}
	for link := s; link != nil; link = link.Delegate {
		for _, close := range link.Close {
			err = errors.Join(err, close())
		}
	}
	return err
}

// drain ends long-running requests, waits for the others, and closes the connections.
func (s *Server) drain(ctx context.Context, server *http.Server) error {
	s.endWatches()
	timeout := s.Shutdown.Timeout + s.Shutdown.WatchGrace
	if s.Shutdown.SendRetryAfter {
		s.awaitRequests(ctx, timeout)
		s.signal(&s.signals.InFlightRequestsDrained)
		s.linger()
		timeout = afterDrain
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	shut := make(chan error, 1)
	go func() { shut <- server.Shutdown(ctx) }()

	// http.Server.Shutdown waits for connections, also for new ones without a request
	// and for clients that are slow to close. Only requests matter here.
	var enough <-chan time.Time
	if s.inFlight.Load() == 0 {
		enough = time.After(lastBytes)
	}
	for {
		select {
		case err := <-shut:
			if err == nil {
				return nil
			}
			left := s.inFlight.Load()
			s.Logger.Warn("requests are cut off: they did not finish in time", "count", left)
			return server.Close()
		case <-s.drained:
			enough = time.After(lastBytes)
		case <-enough:
			if s.inFlight.Load() == 0 {
				return server.Close()
			}
			enough = nil
		}
	}
}

// linger keeps refusing requests as long as new ones come: clients on open connections do not
// know yet that the server stops.
func (s *Server) linger() {
	tick := time.NewTicker(lastBytes)
	defer tick.Stop()
	for range afterDrain / lastBytes {
		before := s.refused.Load()
		<-tick.C
		if s.refused.Load() == before {
			return
		}
	}
}

// awaitRequests waits until the requests that were in flight when refusing began have ended.
func (s *Server) awaitRequests(ctx context.Context, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for s.inFlight.Load() > 0 {
		select {
		case <-s.drained:
		case <-ctx.Done():
			return
		}
	}
}

// runHook runs a hook; a panic becomes an error.
func runHook(ctx context.Context, hook Hook) error {
	err := protect.Call(func() error { return hook.Run(ctx) })
	var p *protect.Panic
	if errors.As(err, &p) {
		err = fmt.Errorf("%w\n%s", p, p.Stack)
	}
	return err
}

// wait waits for the goroutines of post-start hooks.
func wait(ctx context.Context, hooks *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		hooks.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.New("post-start hooks did not end with the server")
	}
}
