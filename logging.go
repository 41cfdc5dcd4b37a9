package kelson

import (
	"log/slog"
	"time"

	"github.com/apikeel/kelson/metrics"
)

const (
	// LevelRequests is the level at which there is a line for each request.
	LevelRequests = slog.LevelInfo - 2
	// slowRequest is what a request takes that operators should know of.
	slowRequest = 500 * time.Millisecond
)

// logged writes a line for each request if operators want to know so much, or
// else for those that were slow.
func (s *Server) logged(next handler) handler {
	return func(x *exchange) {
		next(x)
		s.log(x)
	}
}

// log is not part of the stage, which is on the stack of a watch as long as that
// lasts.
func (s *Server) log(x *exchange) {
	if x.Rest() != nil {
		return
	}
	took := time.Since(x.Arrived())
	ctx := x.lifetime.parent
	message, level := "HTTP", LevelRequests
	if took > slowRequest && !x.LongRunning() {
		message, level = "slow request", slog.LevelInfo
	}
	if !s.Logger.Enabled(ctx, level) {
		return
	}
	// Those that kube-apiserver's line has, in its order, and then some more.
	line := []slog.Attr{
		slog.String("verb", metrics.Verb(x.r, &x.Info)), slog.String("URI", x.r.RequestURI), slog.Duration("latency", took),
		slog.String("userAgent", x.r.UserAgent()), slog.String("contentType", x.r.Header.Get("Content-Type")),
		slog.String("audit-ID", x.AuditID), slog.String("srcIP", x.r.RemoteAddr),
	}
	if d, ok := x.entry.Describe(); ok {
		line = append(line, slog.String("apf_pl", d.Level), slog.String("apf_fs", d.Schema), slog.Int("apf_iseats", d.Seats), slog.Int("apf_fseats", d.FinalSeats),
			slog.Duration("apf_additionalLatency", d.After), slog.Duration("apf_execution_time", d.Worked))
	}
	line = append(line, slog.Int("resp", x.status), slog.String("user", x.User.Name), slog.Int64("bytes", x.written))
	if x.entry.Waited > 0 {
		line = append(line, slog.Duration("queued", x.entry.Waited))
	}
	if webhooks := x.Webhooks(); webhooks > 0 {
		line = append(line, slog.Duration("webhooks", webhooks))
	}
	s.Logger.LogAttrs(ctx, level, message, line...)
}
