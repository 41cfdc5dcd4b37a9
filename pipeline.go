package kelson

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
)

// pipeline is the way of a request through the server, top to bottom.
func (s *Server) pipeline() handler {
	return through(
		s.recoverPanic, // a broken handler costs one request, not the server
		s.auditID,      // every answer can be traced
		s.requestInfo,  // what is asked for, as far as path and method tell
		s.measure,      // what it costs
		s.logged,       // what operators want to see of it
		s.hsts,         // browsers come back over TLS
		s.cacheControl, // nobody on the way keeps answers
		s.goaway,       // clients spread over servers
		s.refuseNew,    // the end of the server is not the end of requests
		s.deadline,     // no request lasts for ever
		s.cors,         // whose pages may ask
		s.authenticate, // who asks
		s.traced,       // where the time goes
		s.audit,        // what is written down of it
		s.impersonate,  // in whose name
		s.middleware,   // what else whoever runs the server wants to happen
		s.flowControl,  // when it is their turn
		s.authorize,    // whether they may
	)(s.route)
}

// A handler answers a request. A stage makes one from the next: it passes
// requests on, or answers them itself.
type (
	handler func(x *exchange)
	stage   func(next handler) handler
)

// through joins stages, the first of which sees a request first.
func through(stages ...stage) stage {
	return func(h handler) handler {
		for i := len(stages) - 1; i >= 0; i-- {
			h = stages[i](h)
		}
		return h
	}
}

func (s *Server) recoverPanic(next handler) handler {
	return func(x *exchange) {
		defer func() {
			if cause := recover(); cause != nil {
				s.panicked(x, cause)
			}
		}()
		next(x)
	}
}

func (s *Server) panicked(x *exchange, cause any) {
	if cause != http.ErrAbortHandler {
		s.Logger.Error("request caused a panic", "method", x.r.Method, "uri", x.r.RequestURI,
			"audit", x.LoggedID(), "panic", cause, "stack", string(protect.Stack(cause)))
		if x.status == 0 {
			http.Error(x.w, "This request caused apiserver to panic. Look in the logs for details.", http.StatusInternalServerError)
			return
		}
	}
	// Half an answer must not look like a whole one: net/http breaks the stream or
	// connection off.
	panic(http.ErrAbortHandler)
}

// goOn is what is left of a request whose stages have returned: the rest of the
// answer, and what they do at its end, the last one first.
func (s *Server) goOn(x *exchange) {
	defer s.forgetRequest(x)
	defer x.finish()
	defer func() {
		cause := recover()
		x.GoOn(nil)
		x.broken = cause != nil
		if s.Flow != nil {
			x.leave()
		}
		x.endRecord(cause)
		if x.lifetime.span.Recording() {
			x.endTrace()
		}
		s.watched(x)
		s.log(x)
		if s.Metrics != nil {
			s.count(x)
		}
		if cause != nil {
			s.panicked(x, cause)
		}
	}()
	x.Rest()()
}

// watched counts a watch that has ended.
func (s *Server) watched(x *exchange) {
	if x.Rest() == nil {
		s.watching.Add(-1)
	}
}

func (s *Server) auditID(next handler) handler {
	return func(x *exchange) {
		var id string
		if ids := x.r.Header["Audit-Id"]; len(ids) > 0 {
			id = ids[0]
		}
		if id == "" {
			id = uuid.NewString()
		}
		x.AuditID = id[:min(len(id), request.MaxAuditID)]
		x.setHeader("Audit-Id", id) // whole, as the client has sent it
		s.beginRecord(x)
		next(x)
	}
}

func (s *Server) requestInfo(next handler) handler {
	return func(x *exchange) {
		if x.parse() {
			next(x)
		}
	}
}

// parse reads what is asked for, or answers that it cannot. It is not part of
// the stage, which is on the stack of a watch as long as that lasts.
func (x *exchange) parse() bool {
	info, err := request.Parse(x.r)
	if err != nil {
		x.forget()
		internalError(x.w, x.r, fmt.Errorf("failed to create RequestInfo: %w", err))
		return false
	}
	x.Info = info
	return true
}

func (s *Server) cacheControl(next handler) handler {
	return func(x *exchange) {
		x.setHeader("Cache-Control", "no-cache, private")
		next(x)
	}
}

// deadline bounds a request by the server's time-out and the one that it asks
// for. Handlers see the end of their context; nothing is taken away from one
// that does not look, except that it can no longer read or write.
func (s *Server) deadline(next handler) handler {
	return func(x *exchange) {
		if x.Verb == request.Watch {
			s.watching.Add(1)
			defer s.watched(x)
			x.endWith(s.ending, s.endLater)
			next(x)
			return
		}
		if x.LongRunning() {
			x.endWith(s.ending, nil)
			next(x)
			return
		}
		timeout := s.RequestTimeout
		if text, _ := request.Param(x.r.URL.RawQuery, "timeout"); text != "" {
			asked, err := time.ParseDuration(text)
			if err != nil {
				refused := apierrors.NewBadRequest("invalid timeout specified in the request URL - " + err.Error())
				x.refuse(refused.Error())
				writeError(x.w, x.r, refused)
				return
			}
			if asked > 0 && asked < timeout {
				timeout = asked
			}
		}
		x.setDeadline(x.Arrived().Add(timeout))
		if timeout == s.RequestTimeout || !x.late() {
			next(x)
		}
		if x.status == 0 && x.late() {
			x.ended = metrics.TimedOut
			x.writeTimeout()
		}
	}
}

func (s *Server) authenticate(next handler) handler {
	return func(x *exchange) {
		x.mark = time.Now()
		if user, ok := loopbackUser(x.r.Context()); ok {
			x.User, x.own = *user, true
			s.passed(x, metrics.Authentication)
			next(x)
			return
		}
		if s.identify(x) {
			next(x)
		}
	}
}

// identify finds out who asks, or answers that it is not known.
func (s *Server) identify(x *exchange) bool {
	user, ok, err := s.Authenticate(x.r)
	took := time.Since(x.mark)
	x.Spent(request.Authentication, took)
	if s.Metrics != nil {
		s.Metrics.Authenticated(user.Name, ok, err, took)
		s.Metrics.Passed(metrics.Authentication, took)
		x.mark = x.mark.Add(took)
		if ok && x.r.TLS != nil && len(x.r.TLS.PeerCertificates) > 0 {
			s.Metrics.Certificate(x.r.TLS.PeerCertificates[0])
		}
	}
	if !ok || err != nil {
		if err != nil && x.r.Context().Err() == nil { // a client that has gone is no failure
			s.strangers.Log(x.r.Context(), s.Logger, slog.LevelWarn, "Unable to authenticate the request",
				"error", err, "remote", x.r.RemoteAddr, "audit", x.LoggedID())
		}
		x.disconnect()
		x.refuse(attempted(x.r))
		writeError(x.w, x.r, apierrors.NewUnauthorized("Unauthorized"))
		return false
	}
	x.User = user
	if user.Name == "system:anonymous" || slices.Contains(user.Groups, "system:unauthenticated") {
		x.disconnect()
	} else {
		introduce(x.r.Context())
	}
	s.Strip(x.r.Header)
	return true
}

// middleware sends requests from outside through the server's Middleware.
func (s *Server) middleware(next handler) handler {
	if s.Middleware == nil {
		return next
	}
	return func(x *exchange) {
		x.CanGoOn = false // it may want to see the end
		if _, own := loopbackUser(x.r.Context()); own {
			next(x)
			return
		}
		s.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			x.w, x.r = w, r
			next(x)
		})).ServeHTTP(x.w, x.r)
	}
}

// dropCredentials removes what proved who asks, and what only a trusted proxy
// may say: nobody further on should see either.
func dropCredentials(h http.Header) {
	for name := range h {
		switch name {
		case "Authorization", "X-Remote-User", "X-Remote-Uid", "X-Remote-Group":
			delete(h, name)
		default:
			if len(name) > 15 && name[0] == 'X' && strings.HasPrefix(name, "X-Remote-Extra-") {
				delete(h, name)
			}
		}
	}
}
