package kelson

import (
	"net/http"
	"time"

	"github.com/apikeel/kelson/metrics"
)

// measure counts requests, and how long they take.
func (s *Server) measure(next handler) handler {
	if s.Metrics == nil {
		return next
	}
	return func(x *exchange) {
		if x.LongRunning() {
			x.measured = s.Metrics.Begin(x.r, &x.Request)
		}
		x.ended, x.broken = metrics.Refused, true
		defer s.count(x)
		next(x)
		x.broken = false
	}
}

// count counts a request that has ended, or is broken off by a panic.
func (s *Server) count(x *exchange) {
	if x.Rest() != nil {
		return
	}
	if x.measured != nil {
		defer x.measured()
	}
	status := x.status
	switch {
	case x.broken && status == 0:
		status = http.StatusInternalServerError
	case x.broken:
		x.ended = metrics.Aborted // in the midst of the answer
	case status == 0:
		status = http.StatusOK
	}
	s.Metrics.End(x.r, &x.Request, x.ended, x.own, status, x.written, x.entry.Waited)
}

// passed notes how long a stage had the request, which goes on to the next one.
func (s *Server) passed(x *exchange, stage metrics.Stage) {
	if s.Metrics == nil {
		return
	}
	now := time.Now()
	s.Metrics.Passed(stage, now.Sub(x.mark))
	x.mark = now
}
