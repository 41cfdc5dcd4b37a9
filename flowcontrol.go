package kelson

import (
	"net/http"
	"strconv"

	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
)

// flowControl is the stage of priority and fairness: requests without a free seat wait in a
// queue, and are answered 429 if that takes too long.
func (s *Server) flowControl() stage {
	if s.Flow == nil {
		return stage{}
	}
	return stage{
		metric: metrics.FlowControl,
		begin: func(x *exchange) bool {
			span := x.step("priorityandfairness")
			x.entry.Client = &x.writer
			admitted := s.Flow.Enter(x.r.Context(), &x.Request, &x.entry)
			span.End()
			x.entry.Headers(x.writer.Header())
			x.Spent(request.Queue, x.entry.Waited)
			if !admitted {
				x.ended = metrics.Dropped
				x.tooMany(x.entry.RetryAfter)
				return false
			}
			x.EndArrival()
			x.Hold = &x.entry
			return true
		},
		end: func(x *exchange, _ any) { x.entry.Leave() },
	}
}

// tooMany answers 429 with Retry-After in seconds.
func (x *exchange) tooMany(seconds int) {
	x.w.Header().Set("Retry-After", strconv.Itoa(seconds))
	http.Error(x.w, "Too many requests, please try again later.", http.StatusTooManyRequests)
}
