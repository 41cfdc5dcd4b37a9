package main

import (
	"errors"

	library "github.com/apikeel/kelson"
	"github.com/apikeel/kelson/flow"
	"github.com/spf13/pflag"
)

// flowFlags say how many requests are worked on at a time.
type flowFlags struct{ flow.Config }

func (f *flowFlags) bind(fs *pflag.FlagSet) {
	bindOpposite(fs, &f.Off, "enable-priority-and-fairness", "let requests wait by priority, and share what there is fairly, as flow schemas say")
	fs.IntVar(&f.MaxReading, "max-requests-inflight", 400, "`requests` that only read, at a time; with priority and fairness the sum of both counts")
	fs.IntVar(&f.MaxWriting, "max-mutating-requests-inflight", 200, "`requests` that write, at a time")
}

func (f *flowFlags) apply(s *setup) error {
	switch {
	case f.MaxReading < 0:
		return errors.New("--max-requests-inflight can not be negative value")
	case f.MaxWriting < 0:
		return errors.New("--max-mutating-requests-inflight can not be negative value")
	case !f.Off && f.MaxReading+f.MaxWriting == 0:
		return errors.New("--max-requests-inflight and --max-mutating-requests-inflight cannot both be 0 with --enable-priority-and-fairness")
	}
	// In a Config zero is the default, and less is no limit.
	for _, limit := range []*int{&f.MaxReading, &f.MaxWriting} {
		if f.Off && *limit == 0 {
			*limit = -1
		}
	}
	f.RequestTimeout = s.config.RequestTimeout
	s.config.Flow = f.Config
	return nil
}

// lifeFlags say how the server starts and ends, and what it shows of itself.
type lifeFlags struct {
	library.Server
	noProfiling bool
}

func (f *lifeFlags) bind(fs *pflag.FlagSet) {
	bindOpposite(fs, &f.noProfiling, "profiling", "serve profiles of the server below /debug/pprof/")
	fs.DurationVar(&f.LivezGrace, "livez-grace-period", 0, "how long /livez does not ask whether the server has started")
	fs.DurationVar(&f.Shutdown.Delay, "shutdown-delay-duration", 0, "how long the server goes on when it is told to stop, but for not being ready")
	fs.BoolVar(&f.Shutdown.SendRetryAfter, "shutdown-send-retry-after", false, "tell new requests to come back while the last ones are answered")
	fs.DurationVar(&f.Shutdown.WatchGrace, "shutdown-watch-termination-grace-period", 0, "how long it takes to end all watches, a few at a time")
}

func (f *lifeFlags) apply(s *setup) error {
	switch {
	case f.LivezGrace < 0:
		return errors.New("--livez-grace-period can not be a negative value")
	case f.Shutdown.Delay < 0:
		return errors.New("--shutdown-delay-duration can not be negative value")
	case f.Shutdown.WatchGrace < 0:
		return errors.New("--shutdown-watch-termination-grace-period, if provided, can not be a negative value")
	}
	s.config.LivezGrace, s.config.Shutdown, s.config.NoProfiling = f.LivezGrace, f.Shutdown, f.noProfiling
	return nil
}
