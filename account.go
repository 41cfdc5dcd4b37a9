package kelson

import (
	"net/http"
	"time"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/usage"
)

// account is the stage that accounts for what a request has cost, when it has ended.
func (s *Server) account() stage {
	if s.Usage == nil {
		return stage{}
	}
	return stage{
		begin: func(*exchange) bool { return true },
		end: func(x *exchange, cause any) {
			r := x.cost()
			if r.Status = x.status; r.Status == 0 {
				r.Status = http.StatusOK
				if cause != nil {
					r.Status = http.StatusInternalServerError
				}
			}
			s.Usage.Add(&r)
		},
	}
}

// accountLong is the stage that counts long-running requests while they are under way. It
// comes last: the user and the priority level are known, and the request is allowed.
func (s *Server) accountLong() stage {
	if s.Usage == nil {
		return stage{}
	}
	return stage{
		begin: func(x *exchange) bool {
			if x.LongRunning() {
				r := x.client()
				x.long = s.Usage.Begin(&r)
			}
			return true
		},
		end: func(x *exchange, _ any) {
			if x.long != nil {
				x.long.End()
			}
		},
	}
}

// client is who has sent the request, and what for.
func (x *exchange) client() usage.Request {
	r := usage.Request{
		User: x.User.Name, Verb: x.Verb, IsResource: x.IsResource,
		Group: x.Group, Version: x.Version, Resource: x.Resource, Namespace: x.Namespace,
	}
	if agents := x.r.Header["User-Agent"]; len(agents) > 0 {
		r.Agent = agents[0]
	}
	if d, ok := x.entry.Describe(); ok {
		r.Level, r.SeatTime = d.Level, time.Duration(d.Seats)*d.Worked
	}
	return r
}

// cost is what the request has cost until now. Time in which it is known to have waited is
// not counted as work.
func (x *exchange) cost() usage.Request {
	r := x.client()
	r.Took = time.Since(x.Arrived())
	r.Waited = x.entry.Waited
	r.Reads, r.Writes = x.StoreCounts()
	r.HeldByteSeconds = x.HeldByteSeconds()
	r.Deprecation = x.Deprecation
	if x.long != nil {
		r.Begun = true // its bytes are counted as they are sent, and its time is spent waiting
		return r
	}
	r.Bytes, r.BodyBytes = x.written, max(0, x.r.ContentLength)
	r.Busy = r.Took - r.Waited - x.Webhooks() - x.Stored() - x.turn.Waited()
	if x.Verb == request.List {
		o := x.ListOptions()
		r.Unpaged = o.NumberErr == nil && o.PageLimit(false) == 0
	}
	return r
}
