package serverflags

import (
	"github.com/spf13/pflag"

	"github.com/apikeel/kelson/audit"
)

// Audit adds the flags of auditing. The defaults are the current values of c: see
// audit.DefaultConfig.
func Audit(fs *pflag.FlagSet, c *audit.Config) {
	fs.StringVar(&c.PolicyFile, "audit-policy-file", "", "`file` that says which requests are audited, and how much of them")

	l := &c.Log
	fs.StringVar(&l.Path, "audit-log-path", "", "`file` for what is audited, a JSON object a line; - is the standard output")
	fs.IntVar(&l.MaxSize, "audit-log-maxsize", l.MaxSize, "`megabytes` after which a new file is begun; 0 is never")
	fs.IntVar(&l.MaxAge, "audit-log-maxage", l.MaxAge, "`days` after which old files are removed; 0 is never")
	fs.IntVar(&l.MaxBackups, "audit-log-maxbackup", l.MaxBackups, "`number` of old files that are kept; 0 is all")
	fs.BoolVar(&l.Compress, "audit-log-compress", false, "compress old files with gzip")
	fs.StringVar(&l.Format, "audit-log-format", l.Format, "`format` of the file: json, or legacy for a line of text")
	fs.StringVar(&l.Version, "audit-log-version", l.Version, "`version` of the events in it")
	auditBackend(fs, "audit-log-", &l.Batch, &l.Truncate)

	w := &c.Webhook
	fs.StringVar(&w.ConfigFile, "audit-webhook-config-file", "", "kubeconfig `file` of a service that gets what is audited")
	fs.DurationVar(&w.InitialBackoff, "audit-webhook-initial-backoff", w.InitialBackoff, "how long to wait before the first time that it is tried again")
	fs.DurationVar(&w.InitialBackoff, "audit-webhook-batch-initial-backoff", w.InitialBackoff, "like --audit-webhook-initial-backoff")
	_ = fs.MarkDeprecated("audit-webhook-batch-initial-backoff", "use --audit-webhook-initial-backoff instead")
	fs.StringVar(&w.Version, "audit-webhook-version", w.Version, "`version` of the events that it gets")
	auditBackend(fs, "audit-webhook-", &w.Batch, &w.Truncate)
}

// auditBackend adds the flags that the log and the webhook both have.
func auditBackend(fs *pflag.FlagSet, prefix string, b *audit.BatchConfig, t *audit.TruncateConfig) {
	fs.StringVar(&b.Mode, prefix+"mode", b.Mode, "whether requests wait for events to be written: batch, blocking or blocking-strict")
	fs.IntVar(&b.BufferSize, prefix+"batch-buffer-size", b.BufferSize, "`events` that wait at most in mode batch; more are dropped")
	fs.IntVar(&b.MaxSize, prefix+"batch-max-size", b.MaxSize, "`events` in a batch")
	fs.DurationVar(&b.MaxWait, prefix+"batch-max-wait", b.MaxWait, "how long a batch waits to become full")
	fs.BoolVar(&b.ThrottleEnable, prefix+"batch-throttle-enable", b.ThrottleEnable, "bound the number of batches a second")
	fs.Float32Var(&b.ThrottleQPS, prefix+"batch-throttle-qps", b.ThrottleQPS, "`batches` a second")
	fs.IntVar(&b.ThrottleBurst, prefix+"batch-throttle-burst", b.ThrottleBurst, "`batches` at once after a while without any")
	fs.BoolVar(&t.Enabled, prefix+"truncate-enabled", t.Enabled, "bound the size of events and batches")
	fs.Int64Var(&t.MaxBatchSize, prefix+"truncate-max-batch-size", t.MaxBatchSize, "`bytes` of a batch")
	fs.Int64Var(&t.MaxEventSize, prefix+"truncate-max-event-size", t.MaxEventSize, "`bytes` of an event, beyond which it loses its bodies")
}
