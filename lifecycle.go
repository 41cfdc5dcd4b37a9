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

// Signals are what happens in the life of a server, each once. The order is this
// one, except that the delay and the hooks go on at the same time, and that with
// Shutdown.SendRetryAfter requests are drained before the server stops
// listening.
type Signals struct {
	// MuxAndDiscoveryComplete: the post-start hooks are done, so that a path that
	// nobody knows does not exist.
	MuxAndDiscoveryComplete Signal
	// HasBeenReady: /readyz was asked, and has said yes.
	HasBeenReady Signal
	// ShutdownInitiated: the server is to end, and not ready any longer.
	ShutdownInitiated Signal
	// AfterShutdownDelayDuration: whoever sends requests should know that by now.
	AfterShutdownDelayDuration Signal
	// PreShutdownHooksStopped: the pre-shutdown hooks are done.
	PreShutdownHooksStopped Signal
	// NotAcceptingNewRequest: both of these. New requests are refused.
	NotAcceptingNewRequest Signal
	// HTTPServerStoppedListening: there are no new connections.
	HTTPServerStoppedListening Signal
	// InFlightRequestsDrained: those that there were have been answered, or given
	// up.
	InFlightRequestsDrained Signal
}

// Signal is something that happens once.
type Signal struct {
	name string
	once sync.Once
	ch   chan struct{}
}

// Name is what it is called.
func (s *Signal) Name() string { return s.name }

// Happened is closed when it has.
func (s *Signal) Happened() <-chan struct{} { return s.ch }

// HasHappened reports whether it has.
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

// Signals returns what happens to the server, once it is prepared.
func (s *Server) Signals() *Signals { return s.signals }

// signal tells that something has happened.
func (s *Server) signal(what *Signal) {
	what.once.Do(func() {
		message := "lifecycle"
		if s.signals.ShutdownInitiated.HasHappened() || what == &s.signals.ShutdownInitiated {
			message = "[graceful-termination] shutdown event" // what operators of Kubernetes look for
		}
		level := slog.LevelInfo
		if what == &s.signals.MuxAndDiscoveryComplete || what == &s.signals.ShutdownInitiated {
			level = LevelNotice
		}
		s.Logger.Log(context.Background(), level, message, "name", what.name, "server", s.Name)
		close(what.ch)
	})
}

// Shutdown says how a server ends. The zero value is the quickest way in which
// no request is lost.
type Shutdown struct {
	// Delay is how long the server goes on as before when it has been told to
	// end, but for not being ready: --shutdown-delay-duration.
	Delay time.Duration
	// SendRetryAfter keeps the server listening until its requests are answered;
	// new ones are told to come back: --shutdown-send-retry-after.
	SendRetryAfter bool
	// WatchGrace is how long it takes to end all watches, a few at a time, so that
	// their clients do not fall upon other servers all at once; 0 ends them at
	// once: --shutdown-watch-termination-grace-period.
	WatchGrace time.Duration
	// Timeout bounds how long is waited for requests, and for hooks; it defaults
	// to DefaultShutdownTimeout.
	Timeout time.Duration
}

const (
	// watchesPerSecond is how many watches are ended a second, at least.
	watchesPerSecond = 200
	// afterDrain is how long connections have to close when requests are answered.
	afterDrain = 2 * time.Second
)

// refuseNew answers requests that come when the server is about to end. Whoever
// wants to know how it is still gets an answer, and so does the server itself.
func (s *Server) refuseNew() stage {
	return stage{begin: func(x *exchange) bool {
		if !s.refusing.Load() || alwaysAnswered(x.r) {
			return true
		}
		s.refused.Add(1)
		s.forgetRequest(x) // it is not one that the end waits for
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

// endLater ends a watch when it is its turn, once watches have to end.
func (s *Server) endLater(end func()) {
	n := s.ended.Add(1)
	if delay := time.Duration(n-1) * time.Duration(s.endEvery.Load()); delay > 0 {
		time.AfterFunc(min(delay, s.Shutdown.WatchGrace), end)
		return
	}
	end()
}

// endWatches ends long-running requests. Watches are ended a few at a time if
// there is time for that.
func (s *Server) endWatches() {
	if grace := s.Shutdown.WatchGrace; grace > 0 {
		perSecond := max(watchesPerSecond, float64(s.watching.Load())/grace.Seconds())
		s.endEvery.Store(int64(float64(time.Second) / perSecond))
	}
	s.end(errStopping)
}

// notFound answers for a path that nobody knows, at least by now.
func (s *Server) notFound(x *exchange) {
	// A server that does not listen is used as a handler, and has no start that
	// could be over.
	if s.listener == nil || s.signals.MuxAndDiscoveryComplete.HasHappened() {
		http.NotFound(x.w, x.r)
		return
	}
	err := apierrors.NewServiceUnavailable("the request has been made before all known HTTP paths have been installed, please try again")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 5}
	writeError(x.w, x.r, err)
}
