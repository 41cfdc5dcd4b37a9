package kelson

import (
	"net/http"
	"strconv"

	"github.com/apikeel/kelson/request"
)

// flowControl passes on what the server has room for. Others wait for their
// turn, and are told to come back if that takes too long.
func (s *Server) flowControl(next handler) handler {
	if s.Flow == nil {
		return next
	}
	return func(x *exchange) {
		span := x.step("priorityandfairness")
		in := s.Flow.Enter(x.r.Context(), &x.Request, x.r.URL.RawQuery, &x.entry)
		span.End()
		x.entry.Headers(x.writer.Header())
		x.Spent(request.Queue, x.entry.Waited)
		if !in {
			x.tooMany(x.entry.RetryAfter)
			return
		}
		defer x.entry.Leave()
		if x.Verb == request.Watch {
			x.Hold = &x.entry
		}
		next(x)
	}
}

// tooMany answers a client that should come back in some seconds.
func (x *exchange) tooMany(seconds int) {
	x.w.Header().Set("Retry-After", strconv.Itoa(seconds))
	http.Error(x.w, "Too many requests, please try again later.", http.StatusTooManyRequests)
}
