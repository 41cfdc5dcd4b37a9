package kelson

import (
	"log/slog"
	"time"
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
	took := time.Since(x.Arrived())
	ctx := x.lifetime.parent
	message, level := "HTTP", LevelRequests
	if took > slowRequest && !x.LongRunning() {
		message, level = "slow request", slog.LevelInfo
	}
	if !s.Logger.Enabled(ctx, level) {
		return
	}
	s.Logger.LogAttrs(ctx, level, message,
		slog.String("verb", x.Verb), slog.String("URI", x.r.RequestURI), slog.Duration("latency", took), slog.Duration("queued", x.entry.Waited),
		slog.String("user", x.User.Name), slog.String("userAgent", x.r.UserAgent()), slog.String("audit-ID", x.AuditID), slog.String("srcIP", x.r.RemoteAddr),
		slog.Int64("bytes", x.written), slog.Int("resp", x.status),
	)
}
