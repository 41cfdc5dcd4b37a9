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
	// LevelNotice is for the few lines that every operator wants, also when all is
	// well: which server this is, where it listens, and that it stops.
	LevelNotice = slog.LevelInfo + 2
	// LevelRequests is the level at which each request is logged.
	LevelRequests = slog.LevelInfo - 2
	// levelMore is the level at which request lines have more attributes than those of
	// kube-apiserver, and all steps of slow requests are logged.
	levelMore = slog.LevelDebug
)

// logged is the stage that logs each request at LevelRequests, and otherwise only slow ones.
func (s *Server) logged() stage {
	return stage{
		begin: func(*exchange) bool { return true },
		end: func(x *exchange, cause any) {
			if cause == nil { // a panic is logged separately
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
	// The attributes of kube-apiserver's line, in its order, and further ones at
	// levelMore.
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

// logSteps logs the steps of a slow request in the format of kube-apiserver's traces, which
// operators search for.
func (s *Server) logSteps(x *exchange, now time.Time) {
	ctx := x.lifetime.parent
	for _, text := range timed.Text(&x.Request, now, func() uint32 { return rand.Uint32() >> 1 }, s.Logger.Enabled(ctx, levelMore), func() []trace.Attribute {
		return timed.Attributes(x.r, &x.Request, metrics.Verb(x.r, &x.Info))
	}) {
		s.Logger.InfoContext(textlog.Plain(ctx), text)
	}
}
