package kelson

import (
	"net/http"
	"strconv"
	"time"

	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
)

// flowControl passes on what the server has room for. Others wait for their
// turn, and are told to come back if that takes too long.
func (s *Server) flowControl(next handler) handler {
	if s.Flow == nil {
		return next
	}
	return func(x *exchange) {
		if s.Middleware != nil {
			x.mark = time.Now()
		}
		span := x.step("priorityandfairness")
		in := s.Flow.Enter(x.r.Context(), &x.Request, x.r.URL.RawQuery, &x.entry)
		span.End()
		x.entry.Headers(x.writer.Header())
		x.Spent(request.Queue, x.entry.Waited)
		if !in {
			x.ended = metrics.Dropped
			x.tooMany(x.entry.RetryAfter)
			return
		}
		defer x.leave()
		if x.Verb == request.Watch {
			x.Hold = &x.entry
		}
		s.passed(x, metrics.FlowControl)
		next(x)
	}
}

// leave gives back what the request holds of the server's capacity.
func (x *exchange) leave() {
	if x.Rest() == nil {
		x.entry.Leave()
	}
}

// tooMany answers a client that should come back in some seconds.
func (x *exchange) tooMany(seconds int) {
	x.w.Header().Set("Retry-After", strconv.Itoa(seconds))
	http.Error(x.w, "Too many requests, please try again later.", http.StatusTooManyRequests)
}
