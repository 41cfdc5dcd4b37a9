package kelson

import (
	"net/http"
	"time"

	"github.com/apikeel/kelson/h2"
	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/metrics"
)

// stage is a step of the pipeline. pipeline.go lists the stages; each is in a file of its
// name, and is made by a method of Server that returns the zero stage if the configuration
// has nothing for it to do.
//
// A request begins the stages one after the other. When it is answered, the stages that it
// has passed end in reverse order. That is also so if the handler panics, and if a watch
// continues after its handler has returned (request.Continue): run is the only place that
// handles these cases.
type stage struct {
	// begin is called before later stages. It returns whether the request continues; if
	// not, it has answered the request.
	begin func(x *exchange) bool
	// end, if set, is called once for each request for which begin has returned true,
	// when the response is complete or aborted; cause is the value of a panic.
	end func(x *exchange, cause any)
	// around replaces begin for a stage that must be on the stack while the rest of the
	// request is served.
	around func(x *exchange, next func(x *exchange))
	// metric is the stage name under which the duration of begin is recorded.
	metric metrics.Stage
}

// run calls f to serve a request, or the rest of one, and ends the stages that it has passed,
// unless a watch continues without f.
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

// begin sends a request through the stages, and to its handler if all of them pass it.
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

// panicked logs and answers a request whose handler has panicked, so that the panic does not
// end the server.
func (s *Server) panicked(x *exchange, cause any) {
	if cause != http.ErrAbortHandler {
		s.Logger.Error("request caused a panic", "method", x.r.Method, "uri", x.r.RequestURI,
			"audit", x.LoggedID(), "panic", cause, "stack", string(protect.Stack(cause)))
		if x.status == 0 {
			http.Error(x.w, "This request caused apiserver to panic. Look in the logs for details.", http.StatusInternalServerError)
			return
		}
	}
	// A partial response must not look complete: net/http resets the stream or closes the
	// connection.
	panic(http.ErrAbortHandler)
}
