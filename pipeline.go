package kelson

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
)

// pipeline returns the stages of a request, top to bottom. Before the first stage and after
// the last, run (stage.go) recovers from panics.
func (s *Server) pipeline() []stage {
	return slices.DeleteFunc([]stage{
		s.auditID(),      // Audit-Id header
		s.requestInfo(),  // verb, group, resource and name, from method and path
		s.measure(),      // request metrics
		s.account(),      // what clients cost
		s.logged(),       // request log
		s.hsts(),         // Strict-Transport-Security
		s.cacheControl(), // Cache-Control: no-cache, private
		s.goaway(),       // closes some HTTP/2 connections, to spread clients over servers
		s.refuseNew(),    // refuses new requests during shutdown
		s.refuseQuery(),  // refuses queries that cannot be parsed
		s.deadline(),     // request timeout
		s.cors(),         // cross-origin requests of browsers
		s.authenticate(), // the user
		s.traced(),       // OpenTelemetry trace
		s.audit(),        // audit log
		s.holdMemory(),   // memory of connections, watches and others that last
		s.impersonate(),  // Impersonate headers
		s.middleware(),   // Server.Middleware
		s.flowControl(),  // priority and fairness
		s.authorize(),    // the Authorizer
		s.accountLong(),  // watches that are open, and whose they are
	}, func(st stage) bool { return st.begin == nil && st.around == nil }) // nothing to do
}

// auditID is the stage that sets the audit ID, which the client may choose.
func (s *Server) auditID() stage {
	return stage{begin: func(x *exchange) bool {
		var id string
		if ids := x.r.Header["Audit-Id"]; len(ids) > 0 {
			id = ids[0]
		}
		if id == "" {
			id = uuid.NewString()
		}
		x.AuditID = id[:min(len(id), request.MaxAuditID)]
		x.setHeader("Audit-Id", id) // untruncated, as the client sent it
		s.beginRecord(x)
		return true
	}}
}

func (s *Server) requestInfo() stage { return stage{begin: (*exchange).parse} }

// parse determines verb, resource and query of the request, or answers 500.
func (x *exchange) parse() bool {
	info, err := request.Parse(x.r)
	if errors.Is(err, request.ErrTooManyParameters) {
		x.queryErr, err = err, nil
	}
	if err != nil {
		x.forget()
		internalError(x.w, x.r, fmt.Errorf("failed to create RequestInfo: %w", err))
		return false
	}
	x.Info = info
	return true
}

// refuseQuery is the stage that answers 400 to a request whose query cannot be parsed. It comes
// before authentication, so that such a request costs little, and after what counts requests.
func (s *Server) refuseQuery() stage {
	return stage{begin: func(x *exchange) bool {
		if x.queryErr != nil {
			x.refuseBad(x.queryErr.Error())
		}
		return x.queryErr == nil
	}}
}

// refuseBad answers 400 before the audit stage.
func (x *exchange) refuseBad(why string) {
	refused := apierrors.NewBadRequest(why)
	x.refuse(refused.Error())
	writeError(x.w, x.r, refused)
}

func (s *Server) cacheControl() stage {
	return stage{begin: func(x *exchange) bool {
		x.setHeader("Cache-Control", "no-cache, private")
		return true
	}}
}

// deadline is the stage that bounds a request by the server's timeout and by the parameter
// timeout. The context of handlers ends; a handler that ignores it runs on, but can no longer
// read or write.
func (s *Server) deadline() stage {
	return stage{
		begin: func(x *exchange) bool {
			switch {
			case x.Verb == request.Watch:
				s.watching.Add(1)
				x.endWith(s.ending, s.endLater)
				return true
			case x.LongRunning():
				x.endWith(s.ending, nil)
				return true
			}
			return s.setTimeout(x)
		},
		end: func(x *exchange, cause any) {
			if x.Verb == request.Watch {
				s.watching.Add(-1)
			}
			if cause == nil && x.status == 0 && x.late() {
				x.timeOut()
			}
		},
	}
}

// setTimeout sets the deadline of a request that is not long-running. It answers a request
// whose parameter timeout is invalid or zero.
func (s *Server) setTimeout(x *exchange) bool {
	timeout := s.RequestTimeout
	if text := x.Query.Get("timeout"); text != "" {
		asked, err := time.ParseDuration(text)
		if err != nil {
			x.refuseBad("invalid timeout specified in the request URL - " + err.Error())
			return false
		}
		if asked > 0 && asked < timeout {
			timeout = asked
		}
	}
	x.setDeadline(x.Arrived().Add(timeout))
	if timeout != s.RequestTimeout && x.late() {
		x.timeOut()
		return false
	}
	return true
}

// authenticate is the stage that determines the user.
func (s *Server) authenticate() stage {
	return stage{metric: metrics.Authentication, begin: func(x *exchange) bool {
		x.mark = time.Now()
		if user, ok := loopbackUser(x.r.Context()); ok {
			x.User, x.loopback = *user, true
			return true
		}
		return s.identify(x)
	}}
}

// identify authenticates a request, or answers 401.
func (s *Server) identify(x *exchange) bool {
	user, ok, err := s.Authenticate(x.r)
	took := time.Since(x.mark)
	x.Spent(request.Authentication, took)
	if s.Metrics != nil {
		s.Metrics.Authenticated(user.Name, ok, err, took)
		if ok && x.r.TLS != nil && len(x.r.TLS.PeerCertificates) > 0 {
			s.Metrics.Certificate(x.r.TLS.PeerCertificates[0])
		}
	}
	if errors.Is(err, request.ErrBusy) {
		x.refuse(authAttempt(x.r))
		writeError(x.w, x.r, apierrors.NewTooManyRequests(err.Error(), 1))
		return false
	}
	if !ok || err != nil {
		// A client that has gone is not an authentication failure, and its connection may
		// have other requests.
		if gone := x.r.Context().Err() != nil; !gone {
			if err != nil {
				s.strangers.Log(x.r.Context(), s.Logger, slog.LevelWarn, "Unable to authenticate the request",
					"error", err, "remote", x.r.RemoteAddr, "audit", x.LoggedID())
			}
			x.disconnect()
		}
		x.refuse(authAttempt(x.r))
		writeError(x.w, x.r, apierrors.NewUnauthorized("Unauthorized"))
		return false
	}
	x.User = user
	if x.isStranger() {
		x.disconnect()
	}
	s.Strip(x.r.Header)
	return true
}

// isStranger reports whether nobody knows the user of the request.
func (x *exchange) isStranger() bool {
	return x.User.Name == "system:anonymous" || slices.Contains(x.User.Groups, "system:unauthenticated")
}

// middleware is the stage of Server.Middleware; loopback requests skip it.
func (s *Server) middleware() stage {
	if s.Middleware == nil {
		return stage{}
	}
	return stage{around: func(x *exchange, next func(x *exchange)) {
		x.CanContinue = false // the middleware may want to see the end of the request
		if _, own := loopbackUser(x.r.Context()); own {
			next(x)
			return
		}
		s.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			x.w, x.r, x.mark = w, r, time.Now()
			next(x)
		})).ServeHTTP(x.w, x.r)
	}}
}

// dropCredentials removes credentials and front-proxy headers, so that handlers and backends
// do not see them.
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
