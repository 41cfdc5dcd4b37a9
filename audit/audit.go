// Package audit writes the audit log: a policy decides which requests are audited and
// in how much detail, and backends write the events to a file or send them to a
// webhook. Start at New and Log; Record is the audit of one request. Except in the mode
// blocking-strict, a failing backend never makes a request fail.
//
// # The way of an event
//
//	Log.Record → Record.Begin (policy) → RequestReceived → the request is served
//	→ ResponseStarted, if it is long-running → ResponseComplete or Panic
//	each: Event → JSON, once → truncate → batch queue, or directly → log, webhook
//
// The batch queue is bounded; events that do not fit are dropped, counted and logged.
// Names and defaults in Config are those of kube-apiserver's flags.
package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/egress"
	"github.com/apikeel/kelson/metrics/servercert"
)

// GroupVersion is the only version in which events are written.
const GroupVersion = "audit.k8s.io/v1"

// Modes of a backend.
const (
	// ModeBatch queues events and sends them in batches; requests do not wait.
	ModeBatch = "batch"
	// ModeBlocking makes a request wait until its events are written.
	ModeBlocking = "blocking"
	// ModeBlockingStrict is ModeBlocking, and refuses a request whose RequestReceived
	// event cannot be written.
	ModeBlockingStrict = "blocking-strict"
)

// Formats of the log.
const (
	FormatJSON   = "json"
	FormatLegacy = "legacy" // one line of text for each event
)

// Config says what is audited, and where events go. Start from DefaultConfig.
type Config struct {
	PolicyFile string // --audit-policy-file
	Log        LogConfig
	Webhook    WebhookConfig

	// Out is where the log goes if Path is "-"; nil is standard output.
	Out io.Writer
	// Logger gets lost events and mistakes in the policy; nil discards them.
	Logger *slog.Logger
}

// LogConfig describes the log file. Its flags begin with --audit-log-.
type LogConfig struct {
	Path string // empty: no log; "-": standard output
	// The file is rotated at MaxSize megabytes, never if that is 0. Rotated files are
	// removed after MaxAge days, and when there are more than MaxBackups; 0 is no
	// limit.
	MaxSize, MaxAge, MaxBackups int
	Compress                    bool
	Format                      string
	Version                     string
	Batch                       BatchConfig
	Truncate                    TruncateConfig
}

// WebhookConfig describes the webhook that events are sent to. Its flags begin with
// --audit-webhook-.
type WebhookConfig struct {
	ConfigFile     string // a kubeconfig; empty: no webhook
	InitialBackoff time.Duration
	Version        string
	Batch          BatchConfig
	Truncate       TruncateConfig
	Dial           egress.Dial // connects to the webhook; nil dials directly
	// Certificates counts deprecated server certificates; nil does not.
	Certificates *servercert.Counter
}

// BatchConfig configures the batch queue. All fields but Mode (--audit-…-mode) are for
// ModeBatch; their flags begin with --audit-…-batch-.
type BatchConfig struct {
	Mode           string
	BufferSize     int // capacity of the queue in events; more are dropped
	MaxSize        int // events in one batch
	MaxWait        time.Duration
	ThrottleEnable bool
	ThrottleQPS    float32 // batches per second
	ThrottleBurst  int
}

// TruncateConfig limits the size of events and batches, in bytes. Its flags begin with
// --audit-…-truncate-.
type TruncateConfig struct {
	Enabled      bool
	MaxBatchSize int64
	MaxEventSize int64
}

// DefaultConfig returns the defaults of the flags.
func DefaultConfig() Config {
	truncate := TruncateConfig{MaxBatchSize: 10 << 20, MaxEventSize: 100 << 10}
	return Config{
		Log: LogConfig{
			MaxSize: 100, MaxAge: 366, MaxBackups: 100, Format: FormatJSON, Version: GroupVersion, Truncate: truncate,
			Batch: BatchConfig{Mode: ModeBlocking, BufferSize: 10000, MaxSize: 1},
		},
		Webhook: WebhookConfig{
			InitialBackoff: 10 * time.Second, Version: GroupVersion, Truncate: truncate,
			Batch: BatchConfig{
				Mode: ModeBatch, BufferSize: 10000, MaxSize: 400, MaxWait: 30 * time.Second,
				ThrottleEnable: true, ThrottleQPS: 10, ThrottleBurst: 15,
			},
		},
	}
}

// Validate checks the parts of a Config that are in use.
func (c *Config) Validate() error {
	var errs []error
	if l := &c.Log; l.Path != "" {
		errs = append(errs, l.Batch.validate(logName), l.Truncate.validate(logName), validVersion(l.Version))
		if l.Format != FormatJSON && l.Format != FormatLegacy {
			errs = append(errs, fmt.Errorf("invalid audit log format %s, allowed formats are %q", l.Format, FormatLegacy+","+FormatJSON))
		}
		for _, n := range []struct {
			flag  string
			value int
		}{{"maxage", l.MaxAge}, {"maxbackup", l.MaxBackups}, {"maxsize", l.MaxSize}} {
			if n.value < 0 {
				errs = append(errs, fmt.Errorf("--audit-log-%s %d can't be a negative number", n.flag, n.value))
			}
		}
	}
	if w := &c.Webhook; w.ConfigFile != "" {
		errs = append(errs, w.Batch.validate(webhookName), w.Truncate.validate(webhookName), validVersion(w.Version))
	}
	return errors.Join(errs...)
}

func (b *BatchConfig) validate(name string) error {
	modes := []string{ModeBatch, ModeBlocking, ModeBlockingStrict}
	switch {
	case b.Mode == ModeBlocking || b.Mode == ModeBlockingStrict:
	case b.Mode != ModeBatch:
		return fmt.Errorf("invalid audit %s mode %s, allowed modes are %q", name, b.Mode, strings.Join(modes, ","))
	case b.BufferSize <= 0:
		return fmt.Errorf("invalid audit batch %s buffer size %v, must be a positive number", name, b.BufferSize)
	case b.MaxSize <= 0:
		return fmt.Errorf("invalid audit batch %s max batch size %v, must be a positive number", name, b.MaxSize)
	case b.ThrottleEnable && b.ThrottleQPS <= 0:
		return fmt.Errorf("invalid audit batch %s throttle QPS %v, must be a positive number", name, b.ThrottleQPS)
	case b.ThrottleEnable && b.ThrottleBurst <= 0:
		return fmt.Errorf("invalid audit batch %s throttle burst %v, must be a positive number", name, b.ThrottleBurst)
	}
	return nil
}

func (t *TruncateConfig) validate(name string) error {
	switch {
	case t.MaxEventSize <= 0:
		return fmt.Errorf("invalid audit truncate %s max event size %v, must be a positive number", name, t.MaxEventSize)
	case t.MaxBatchSize < t.MaxEventSize:
		return fmt.Errorf("invalid audit truncate %s max batch size %v, must be greater than max event size (%v)", name, t.MaxBatchSize, t.MaxEventSize)
	}
	return nil
}

func validVersion(version string) error {
	gv, err := schema.ParseGroupVersion(version)
	if err == nil && gv.String() != GroupVersion {
		err = fmt.Errorf("invalid group version, allowed versions are [%q]", GroupVersion)
	}
	return err
}

// Log is the audit log of a server.
type Log struct {
	policy   *Policy
	backends []*backend
	logger   *slog.Logger
	// waits: requests wait until a webhook has their events.
	waits bool

	events, rejected atomic.Int64
	levels           map[Level]*atomic.Int64
}

// New opens the backends. Without a policy or without a backend nothing is audited, and
// Log is nil.
func New(c Config) (*Log, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	l := &Log{logger: c.Logger, levels: map[Level]*atomic.Int64{}}
	for _, level := range levels() {
		l.levels[level] = new(atomic.Int64)
	}
	if l.logger == nil {
		l.logger = slog.New(slog.DiscardHandler)
	}
	if c.PolicyFile == "" {
		if c.Log.Path != "" || c.Webhook.ConfigFile != "" {
			l.logger.Warn("no audit policy file is given: nothing will be audited")
		}
		return nil, nil
	}
	var err error
	if l.policy, err = LoadPolicy(c.PolicyFile, l.logger); err != nil {
		return nil, fmt.Errorf("loading audit policy file: %w", err)
	}
	if err := l.open(&c); err != nil {
		return nil, errors.Join(err, l.Close(context.Background()))
	}
	if len(l.backends) == 0 {
		return nil, nil
	}
	return l, nil
}

func (l *Log) open(c *Config) error {
	if c.Log.Path != "" {
		out := c.Out
		if out == nil {
			out = os.Stdout
		}
		send, finish, err := openLog(&c.Log, out, l.logger)
		if err != nil {
			return err
		}
		l.backends = append(l.backends, newBackend(logName, c.Log.Batch, c.Log.Truncate, 1, send, finish, l.logger))
	}
	if c.Webhook.ConfigFile != "" {
		send, finish, err := openWebhook(&c.Webhook)
		if err != nil {
			return fmt.Errorf("initializing audit webhook: %w", err)
		}
		l.waits = c.Webhook.Batch.Mode != ModeBatch
		l.backends = append(l.backends, newBackend(webhookName, c.Webhook.Batch, c.Webhook.Truncate, maxSends, send, finish, l.logger))
	}
	return nil
}

// put passes an event, which must not change any more, to the backends. It returns
// false if a strict backend failed.
func (l *Log) put(event *Event) bool {
	l.events.Add(1)
	body, err := event.encode()
	if err != nil {
		l.logger.Error("audit event cannot be encoded", "audit", event.AuditID, "error", err)
		return true
	}
	ok := true
	for _, b := range l.backends {
		ok = b.put(entry{event, body}) && ok
	}
	return ok
}

// Close sends the queued events, until ctx ends, and closes the backends. Later events
// are dropped.
func (l *Log) Close(ctx context.Context) error {
	var errs []error
	for _, b := range l.backends {
		errs = append(errs, b.close(ctx))
	}
	return errors.Join(errs...)
}

// Stats are counters since the start.
type Stats struct {
	// Events is the number of events generated, for all backends together.
	Events int64
	// Levels counts requests by their level in the policy.
	Levels map[Level]int64
	// Dropped counts lost events by backend.
	Dropped map[string]int64
	// Rejected counts requests that were refused because they could not be audited.
	Rejected int64
}

// Stats returns the counters.
func (l *Log) Stats() Stats {
	s := Stats{Events: l.events.Load(), Rejected: l.rejected.Load(), Levels: map[Level]int64{}, Dropped: map[string]int64{}}
	for level, count := range l.levels {
		s.Levels[level] = count.Load()
	}
	for _, b := range l.backends {
		s.Dropped[b.name] = b.dropped.Load()
	}
	return s
}
