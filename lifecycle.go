package kelson

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Signals are the events in the life of a server, each happening once, in this order; except
// that the shutdown delay and the pre-shutdown hooks run concurrently, and that with
// Shutdown.SendRetryAfter requests are drained before the server stops listening.
type Signals struct {
	// MuxAndDiscoveryComplete: the post-start hooks are done; from now on an unknown
	// path is 404.
	MuxAndDiscoveryComplete Signal
	// HasBeenReady: /readyz, or Ready, has succeeded once.
	HasBeenReady Signal
	// ShutdownInitiated: the server was told to stop, and is no longer ready.
	ShutdownInitiated Signal
	// AfterShutdownDelayDuration: Shutdown.Delay has passed.
	AfterShutdownDelayDuration Signal
	// PreShutdownHooksStopped: the pre-shutdown hooks are done.
	PreShutdownHooksStopped Signal
	// NotAcceptingNewRequest: both of the above. New requests are refused.
	NotAcceptingNewRequest Signal
	// HTTPServerStoppedListening: no new connections are accepted.
	HTTPServerStoppedListening Signal
	// InFlightRequestsDrained: requests in flight have ended or timed out.
	InFlightRequestsDrained Signal
}

// Signal is an event that happens once.
type Signal struct {
	name string
	once sync.Once
	ch   chan struct{}
}

// Name returns the name of the event.
func (s *Signal) Name() string { return s.name }

// Happened returns a channel that is closed when the event has happened.
func (s *Signal) Happened() <-chan struct{} { return s.ch }

// HasHappened reports whether the event has happened.
func (s *Signal) HasHappened() bool {
	select {
	case <-s.ch:
		return true
	default:
		return false
	}
}

func newSignals() *Signals {
	s := &Signals{}
	for name, signal := range map[string]*Signal{
		"MuxAndDiscoveryComplete": &s.MuxAndDiscoveryComplete, "HasBeenReady": &s.HasBeenReady,
		"ShutdownInitiated": &s.ShutdownInitiated, "AfterShutdownDelayDuration": &s.AfterShutdownDelayDuration,
		"PreShutdownHooksStopped": &s.PreShutdownHooksStopped, "NotAcceptingNewRequest": &s.NotAcceptingNewRequest,
		"HTTPServerStoppedListening": &s.HTTPServerStoppedListening, "InFlightRequestsDrained": &s.InFlightRequestsDrained,
	} {
		signal.name, signal.ch = name, make(chan struct{})
	}
	return s
}

// Signals returns the events of the server, once it is prepared.
func (s *Server) Signals() *Signals { return s.signals }

// signal marks an event as happened and logs it.
func (s *Server) signal(what *Signal) {
	what.once.Do(func() {
		message := "lifecycle"
		if s.signals.ShutdownInitiated.HasHappened() || what == &s.signals.ShutdownInitiated {
			message = "[graceful-termination] shutdown event" // the text that operators of kube-apiserver look for
		}
		level := slog.LevelInfo
		if what == &s.signals.MuxAndDiscoveryComplete || what == &s.signals.ShutdownInitiated {
			level = LevelNotice
		}
		s.Logger.Log(context.Background(), level, message, "name", what.name, "server", s.Name)
		close(what.ch)
	})
}

// Shutdown configures the shutdown sequence. The zero value is the fastest one that loses no
// request.
type Shutdown struct {
	// Delay is how long the server keeps serving after it was told to stop, while
	// /readyz fails: --shutdown-delay-duration. In the second half of it, the response to
	// a request is the last of its connection, so that clients move to other servers;
	// it should be twice as long as load balancers take to notice.
	Delay time.Duration
	// SendRetryAfter keeps the server listening until requests in flight are answered;
	// new ones get 429 with Retry-After: --shutdown-send-retry-after.
	SendRetryAfter bool
	// WatchGrace is the time over which watches are ended, a few at a time, so that
	// their clients do not reconnect to other servers all at once; 0 ends all at once:
	// --shutdown-watch-termination-grace-period.
	WatchGrace time.Duration
	// Timeout bounds the wait for requests, and for hooks; it defaults to
	// DefaultShutdownTimeout.
	Timeout time.Duration
}

const (
	// watchesPerSecond is the minimum rate at which watches are ended.
	watchesPerSecond = 200
	// afterDrain is how long connections have to close after the last response.
	afterDrain = 2 * time.Second
)

// refuseNew is the stage that refuses new requests during shutdown, except for health checks
// and requests of the server itself.
func (s *Server) refuseNew() stage {
	return stage{begin: func(x *exchange) bool {
		if !s.refusing.Load() || alwaysAnswered(x.r) {
			return true
		}
		s.refused.Add(1)
		s.forgetRequest(x) // shutdown does not wait for it
		x.forget()
		h := x.w.Header()
		if s.Shutdown.SendRetryAfter {
			h.Set("Connection", "close")
			h.Set("Retry-After", "5")
			http.Error(x.w, "The apiserver is shutting down, please try again later.", http.StatusTooManyRequests)
			return false
		}
		h.Set("Retry-After", "1")
		h.Set("Content-Type", mediaJSON)
		h.Set("X-Content-Type-Options", "nosniff")
		status := apierrors.NewServiceUnavailable("apiserver is shutting down").ErrStatus
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		body, _ := json.Marshal(&status)
		x.w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = x.w.Write(append(body, "\n\n"...))
		return false
	}}
}

func alwaysAnswered(r *http.Request) bool {
	for _, path := range []string{"/readyz", "/livez", "/healthz", "/metrics"} {
		if strings.HasPrefix(r.URL.Path, path) {
			return true
		}
	}
	_, own := loopbackUser(r.Context())
	return own || strings.HasPrefix(r.UserAgent(), "kube-apiserver/")
}

// endLater ends a watch when its turn comes, once watches have to end.
func (s *Server) endLater(end func()) {
	n := s.ended.Add(1)
	if delay := time.Duration(n-1) * time.Duration(s.endEvery.Load()); delay > 0 {
		time.AfterFunc(min(delay, s.Shutdown.WatchGrace), end)
		return
	}
	end()
}

// endWatches ends long-running requests; watches a few at a time if WatchGrace allows.
func (s *Server) endWatches() {
	if grace := s.Shutdown.WatchGrace; grace > 0 {
		perSecond := max(watchesPerSecond, float64(s.watching.Load())/grace.Seconds())
		s.endEvery.Store(int64(float64(time.Second) / perSecond))
	}
	s.end(errStopping)
}

// notFound answers a request for an unknown path.
func (s *Server) notFound(x *exchange) {
	// A server that does not listen is used as an http.Handler, and runs no post-start
	// hooks.
	if !s.ListenWhenReady && s.listener == nil || s.signals.MuxAndDiscoveryComplete.HasHappened() {
		http.NotFound(x.w, x.r)
		return
	}
	err := apierrors.NewServiceUnavailable("the request has been made before all known HTTP paths have been installed, please try again")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 5}
	writeError(x.w, x.r, err)
}
