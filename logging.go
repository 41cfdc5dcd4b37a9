package kelson

import (
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/apikeel/kelson/internal/textlog"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/trace"
	"github.com/apikeel/kelson/trace/timed"
)

const (
	// LevelNotice is the level of the few things that every operator wants to know, also
	// when all is well: which server this is, where it listens, and that it ends.
	LevelNotice = slog.LevelInfo + 2
	// LevelRequests is the level at which there is a line for each request.
	LevelRequests = slog.LevelInfo - 2
	// levelMore is the level at which the lines of requests have more than
	// kube-apiserver's, and all steps of slow requests are told.
	levelMore = slog.LevelDebug
)

// logged writes a line for each request if operators want to know so much, or
// else for those that were slow.
func (s *Server) logged() stage {
	return stage{
		begin: func(*exchange) bool { return true },
		end: func(x *exchange, cause any) {
			if cause == nil { // a panic has a line of its own
				s.log(x)
			}
		},
	}
}

func (s *Server) log(x *exchange) {
	now := time.Now()
	took := now.Sub(x.Arrived())
	ctx := x.lifetime.parent
	message, level := "HTTP", LevelRequests
	if took > request.SlowRequest && !x.LongRunning() {
		if message, level = "slow request", slog.LevelInfo; s.Logger.Enabled(ctx, level) {
			s.logSteps(x, now)
		}
	}
	if !s.Logger.Enabled(ctx, level) {
		return
	}
	// Those that kube-apiserver's line has, in its order, and then some more for
	// those who want to know more.
	line := []slog.Attr{
		slog.String("verb", metrics.Verb(x.r, &x.Info)), slog.String("URI", x.r.RequestURI), slog.Duration("latency", took),
		slog.String("userAgent", x.r.UserAgent()), slog.String("contentType", x.r.Header.Get("Content-Type")),
		slog.String("audit-ID", x.LoggedID()), slog.String("srcIP", x.r.RemoteAddr),
	}
	if d, ok := x.entry.Describe(); ok {
		line = append(line, slog.String("apf_pl", d.Level), slog.String("apf_fs", d.Schema), slog.Int("apf_iseats", d.Seats), slog.Int("apf_fseats", d.FinalSeats),
			slog.Duration("apf_additionalLatency", d.After))
		if x.Verb == request.Watch {
			line = append(line, slog.Duration("apf_init_latency", d.Worked))
		}
		line = append(line, slog.Duration("apf_execution_time", d.Worked))
	}
	if x.status == http.StatusSwitchingProtocols {
		line = append(line, slog.Bool("hijacked", true))
	} else {
		line = append(line, slog.Int("resp", x.status))
	}
	if level == slog.LevelInfo || s.Logger.Enabled(ctx, levelMore) {
		line = append(line, slog.String("user", x.User.Name), slog.Int64("bytes", x.written))
		if x.entry.Waited > 0 {
			line = append(line, slog.Duration("queued", x.entry.Waited))
		}
		if webhooks := x.Webhooks(); webhooks > 0 {
			line = append(line, slog.Duration("webhooks", webhooks))
		}
	}
	s.Logger.LogAttrs(ctx, level, message, line...)
}

// logSteps tells what took the time of a slow request, in the words of Kubernetes'
// servers: operators look for them.
func (s *Server) logSteps(x *exchange, now time.Time) {
	ctx := x.lifetime.parent
	for _, text := range timed.Text(&x.Request, now, func() uint32 { return rand.Uint32() >> 1 }, s.Logger.Enabled(ctx, levelMore), func() []trace.Attribute {
		return timed.Attributes(x.r, &x.Request, metrics.Verb(x.r, &x.Info))
	}) {
		s.Logger.InfoContext(textlog.Plain(ctx), text)
	}
}
