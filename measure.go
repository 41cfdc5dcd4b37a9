package kelson

import "net/http"

// measure counts requests, and how long they take.
func (s *Server) measure(next handler) handler {
	if s.Metrics == nil {
		return next
	}
	return func(x *exchange) {
		if x.LongRunning() {
			defer s.Metrics.Begin(x.r, &x.Request)()
		}
		status := http.StatusInternalServerError // if there is a panic
		defer func() { s.Metrics.End(x.r, &x.Request, x.own, status, x.written, x.entry.Waited) }()
		next(x)
		if status = x.status; status == 0 {
			status = http.StatusOK
		}
	}
}
