package kelson

import (
	"net/http"
	"time"

	"github.com/apikeel/kelson/h2"
	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/metrics"
)

// A stage is a step on the way of a request to its handler. pipeline.go has the list
// of them; each is in a file of its name. A stage is made by a method of Server that
// returns nil if the configuration has nothing for it to do.
//
// A request begins the stages one after the other. When it has been answered, the
// stages that it has passed end in reverse. That is also so when the handler panics,
// and when a watch goes on after its handler has returned (request.Continue): run is
// the only place that knows of these ways out.
type stage struct {
	// begin sees a request before the stages after it do. It reports whether the
	// request goes on; if not, it has answered it.
	begin func(x *exchange) bool
	// end is called once for each request for which begin has reported true, when the
	// response is complete or broken off; cause is the value of the panic then. It may
	// be nil.
	end func(x *exchange, cause any)
	// around is instead of begin for a stage that must be on the stack while the rest
	// of the request is served.
	around func(x *exchange, next func(x *exchange))
	// metric is under which name it is counted how long begin has the requests that go
	// on.
	metric metrics.Stage
}

// run has f serve a request, or the rest of one, and ends the stages that it has
// passed, unless a watch goes on without f.
func (s *Server) run(x *exchange, f func(x *exchange)) {
	defer func() {
		if !x.Continues() {
			x.finish()
			s.forgetRequest(x)
		}
	}()
	defer func() {
		cause := recover()
		if x.Continues() && cause == nil {
			x.ResponseWriter.(h2.Continuer).Continue(func() { s.run(x, (*exchange).resume) })
			return
		}
		x.Continue(nil)
		for ; x.passed > 0; x.passed-- {
			if end := s.stages[x.passed-1].end; end != nil {
				end(x, cause)
			}
		}
		if cause != nil {
			s.panicked(x, cause)
		}
	}()
	f(x)
}

// resume serves the rest of a request whose handler has returned.
func (x *exchange) resume() { x.TakeContinuation()() }

// begin sends a request through the stages, and to its handler if all let it pass.
func (s *Server) begin(x *exchange) {
	for x.passed < len(s.stages) {
		stage := &s.stages[x.passed]
		if stage.around != nil {
			x.passed++
			stage.around(x, s.begin)
			return
		}
		if !stage.begin(x) {
			return
		}
		x.passed++
		if stage.metric != metrics.NoStage && s.Metrics != nil {
			now := time.Now()
			s.Metrics.Passed(stage.metric, now.Sub(x.mark))
			x.mark = now
		}
	}
	s.route(x)
}

// panicked answers a request whose handler has panicked. A broken handler costs one
// request, not the server.
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
