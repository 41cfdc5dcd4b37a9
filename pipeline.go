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

	"github.com/apikeel/kelson/internal/newcomers"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
)

// pipeline is the way of a request through the server, top to bottom. Before the first
// stage and after the last, run (stage.go) recovers from panics.
func (s *Server) pipeline() []stage {
	return slices.DeleteFunc([]stage{
		s.auditID(),      // every answer can be traced
		s.requestInfo(),  // what is asked for, as far as path and method tell
		s.measure(),      // what it costs
		s.logged(),       // what operators want to see of it
		s.hsts(),         // browsers come back over TLS
		s.cacheControl(), // nobody on the way keeps answers
		s.goaway(),       // clients spread over servers
		s.refuseNew(),    // the end of the server is not the end of requests
		s.deadline(),     // no request lasts for ever
		s.cors(),         // whose pages may ask
		s.authenticate(), // who asks
		s.traced(),       // where the time goes
		s.audit(),        // what is written down of it
		s.impersonate(),  // in whose name
		s.middleware(),   // what else whoever runs the server wants to happen
		s.flowControl(),  // when it is their turn
		s.authorize(),    // whether they may
	}, func(st stage) bool { return st.begin == nil && st.around == nil }) // nothing to do
}

// auditID gives the request its audit ID, which the client may choose.
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
		x.setHeader("Audit-Id", id) // whole, as the client has sent it
		s.beginRecord(x)
		return true
	}}
}

func (s *Server) requestInfo() stage { return stage{begin: (*exchange).parse} }

// parse reads what is asked for, or answers that it cannot.
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

func (s *Server) cacheControl() stage {
	return stage{begin: func(x *exchange) bool {
		x.setHeader("Cache-Control", "no-cache, private")
		return true
	}}
}

// deadline bounds a request by the server's time-out and the one that it asks
// for. Handlers see the end of their context; nothing is taken away from one
// that does not look, except that it can no longer read or write.
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

// setTimeout sets the deadline of a request that is not long-running, or answers one
// whose time-out cannot be read or is over.
func (s *Server) setTimeout(x *exchange) bool {
	timeout := s.RequestTimeout
	if text, _ := request.Param(x.r.URL.RawQuery, "timeout"); text != "" {
		asked, err := time.ParseDuration(text)
		if err != nil {
			refused := apierrors.NewBadRequest("invalid timeout specified in the request URL - " + err.Error())
			x.refuse(refused.Error())
			writeError(x.w, x.r, refused)
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

// authenticate finds out who asks.
func (s *Server) authenticate() stage {
	return stage{metric: metrics.Authentication, begin: func(x *exchange) bool {
		x.mark = time.Now()
		if user, ok := loopbackUser(x.r.Context()); ok {
			x.User, x.own = *user, true
			return true
		}
		return s.identify(x)
	}}
}

// identify finds out who asks, or answers that it is not known.
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
	if !ok || err != nil {
		// If the client has gone, nothing is known of it: that is no failure, and its
		// connection may have other requests.
		if gone := x.r.Context().Err() != nil; !gone {
			if err != nil {
				s.strangers.Log(x.r.Context(), s.Logger, slog.LevelWarn, "Unable to authenticate the request",
					"error", err, "remote", x.r.RemoteAddr, "audit", x.LoggedID())
			}
			x.disconnect()
		}
		x.refuse(attempted(x.r))
		writeError(x.w, x.r, apierrors.NewUnauthorized("Unauthorized"))
		return false
	}
	x.User = user
	if user.Name == "system:anonymous" || slices.Contains(user.Groups, "system:unauthenticated") {
		x.disconnect()
	} else {
		newcomers.Introduce(x.r.Context())
	}
	s.Strip(x.r.Header)
	return true
}

// middleware sends requests from outside through the server's Middleware.
func (s *Server) middleware() stage {
	if s.Middleware == nil {
		return stage{}
	}
	return stage{around: func(x *exchange, next func(x *exchange)) {
		x.CanContinue = false // it may want to see the end
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
