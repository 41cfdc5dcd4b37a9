package kelson

import (
	"net/http"

	"github.com/apikeel/kelson/metrics"
)

// measure is the stage that counts requests and their durations.
func (s *Server) measure() stage {
	if s.Metrics == nil {
		return stage{}
	}
	return stage{
		begin: func(x *exchange) bool {
			if x.LongRunning() {
				x.measured = s.Metrics.Begin(x.r, &x.Request)
			}
			x.ended = metrics.Refused
			return true
		},
		end: s.count,
	}
}

// count counts a request that has ended, or was aborted by a panic.
func (s *Server) count(x *exchange, cause any) {
	if x.measured != nil {
		defer x.measured()
	}
	status := x.status
	switch {
	case cause != nil && status == 0:
		status = http.StatusInternalServerError
	case cause != nil:
		x.ended = metrics.Aborted // aborted during the response
	case status == 0:
		status = http.StatusOK
	}
	s.Metrics.End(x.r, &x.Request, x.ended, x.loopback, status, x.written, x.entry.Waited)
}
