package main

import (
	"errors"
	"fmt"
	"time"

	library "github.com/apikeel/kelson"
	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/flow"
	"github.com/apikeel/kelson/serverflags"
	"github.com/spf13/pflag"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
)

// flowFlags are the flags of flow control.
type flowFlags struct{ flow.Config }

func (f *flowFlags) bind(fs *pflag.FlagSet) {
	bindOpposite(fs, &f.Off, "enable-priority-and-fairness", "let requests wait by priority, and share what there is fairly, as flow schemas say")
	fs.IntVar(&f.MaxReading, "max-requests-inflight", 400, "`requests` that only read, at a time; with priority and fairness the sum of both counts")
	fs.IntVar(&f.MaxWriting, "max-mutating-requests-inflight", 200, "`requests` that write, at a time")
}

func (f *flowFlags) apply(s *setup) {
	s.refuse(checkInFlight, negative("max-requests-inflight", f.MaxReading), negative("max-mutating-requests-inflight", f.MaxWriting))
	s.refuse(checkFairness, f.served(s.config.RuntimeConfig))
	if !f.Off && f.MaxReading == 0 && f.MaxWriting == 0 {
		s.refuse(lateFairness, errors.New("invalid configuration: MaxRequestsInFlight=0 and MaxMutatingRequestsInFlight=0; they must add up to something positive"))
	}
	// In a Config zero is the default, and a negative value no limit or, with priority
	// and fairness, no seats.
	for _, limit := range []*int{&f.MaxReading, &f.MaxWriting} {
		if *limit == 0 {
			*limit = -1
		}
	}
	f.RequestTimeout = s.config.RequestTimeout
	s.config.Flow = f.Config
}

// memoryFlags are the flags of the memory that the server may use.
type memoryFlags struct{ limit string }

func (f *memoryFlags) bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.limit, "memory-limit", "", "`bytes` of memory that the server may use (512Mi, 4G), or the share of what there is (50%); what is stored beyond that is read from the store when it is asked for, and requests that hold much wait (default what the control group or the machine has)")
}

func (f *memoryFlags) apply(s *setup) {
	limit, err := budget.Parse(f.limit)
	if err != nil {
		s.refuse(checkInFlight, fmt.Errorf("--memory-limit: %w", err))
		return
	}
	s.config.Memory = budget.New(limit)
}

// negative returns an error for a negative value.
func negative[T int | time.Duration](flag string, value T) error {
	if value < 0 {
		return fmt.Errorf("--%s can not be negative value", flag)
	}
	return nil
}

// served returns an error if the API of flow control is disabled by --runtime-config
// while priority and fairness is on. The first setting about it counts.
func (f *flowFlags) served(runtime map[string]string) error {
	for _, key := range []string{flowcontrolv1.SchemeGroupVersion.String(), "api/ga", "api/all"} {
		switch value := runtime[key]; {
		case f.Off || value == "true":
			return nil
		case value == "false":
			return fmt.Errorf("--runtime-config=%s=false conflicts with --enable-priority-and-fairness=true", key)
		}
	}
	return nil
}

// lifeFlags are the flags of startup, shutdown and debugging.
type lifeFlags struct {
	library.Server
	debug   controlplane.Debug
	tracing string
}

func (f *lifeFlags) bind(fs *pflag.FlagSet) {
	bindOpposite(fs, &f.debug.NoProfiling, "profiling", "serve profiles of the server below /debug/pprof/")
	fs.BoolVar(&f.debug.Contention, "contention-profiling", false, "profile who waits for locks, if there are profiles at all")
	fs.StringVar(&f.debug.Socket, "debug-socket-path", "", "`file` for a socket, for this user only, on which the profiles are served too")
	fs.BoolVar(&f.debug.Logs, "enable-logs-handler", false, "serve the files in /var/log below /logs")
	m := &f.debug.Metrics
	fs.StringSliceVar(&m.Disabled, "disabled-metrics", nil, "`names` of metrics that are not shown")
	fs.StringVar(&m.ShowHidden, "show-hidden-metrics-for-version", "", "`version` before this one: metrics that were hidden since are shown")
	fs.StringToStringVar(&m.Labels, "allow-metric-labels", nil, "`values` of a label of a metric that are shown, the others are counted together: metric,label=value,value")
	fs.StringVar(&m.LabelsFile, "allow-metric-labels-manifest", "", "YAML `file` with such values: \"metric,label\": value,value")
	fs.StringVar(&f.tracing, "tracing-config-file", "", "`file` with a TracingConfiguration: which requests are traced, and who gets the traces")
	serverflags.Life(fs, &f.Server)
}

func (f *lifeFlags) apply(s *setup) {
	s.refuse(checkShutdown, negative("shutdown-delay-duration", f.Shutdown.Delay))
	if f.LivezGrace < 0 {
		s.refuse(checkLivez, errors.New("--livez-grace-period can not be a negative value"))
	}
	if f.Shutdown.WatchGrace < 0 {
		s.refuse(checkShutdown, errors.New("shutdown-watch-termination-grace-period, if provided, can not be a negative value"))
	}
	s.refuse(checkMetrics, f.debug.Metrics.Complete(s.gates.Version().Binary.WithPatch(0).SubtractMinor(1).String()))
	if s.kube {
		f.checkFile(s)
	}
	s.config.LivezGrace, s.config.Shutdown, s.config.Debug, s.config.TracingFile = f.LivezGrace, f.Shutdown, f.debug, f.tracing
	s.config.Debug.Flags = serverflags.Shown(s.flags)
}
