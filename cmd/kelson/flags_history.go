package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/apikeel/kelson/controlplane"
)

// retainFlags are the flags of the history that is kept for 'kelson history' and its
// companions.
type retainFlags struct {
	age   time.Duration
	bytes string
}

func (f *retainFlags) bind(fs *pflag.FlagSet) {
	fs.DurationVar(&f.age, "history", 0, "how `long` the embedded store keeps every version of every object for 'kelson history', 'get --at', 'blame', 'diff' and 'undo' (24h); other stores keep what they keep (default as long as watches need it, 5m)")
	fs.StringVar(&f.bytes, "history-bytes", "", "`bytes` of such versions that are kept at most (512Mi, 4G), the oldest go first (default 1Gi)")
}

func (f *retainFlags) apply(s *setup) {
	if f.age < 0 {
		s.refuse(checkInFlight, fmt.Errorf("--history=%v cannot be negative", f.age))
	}
	if f.age > 0 && s.config.Storage != "" && s.config.Storage != controlplane.StorageEngine || f.age > 0 && (len(s.config.Etcd.Endpoints) > 0 || s.config.Postgres.DSN != "") {
		s.log.Warn("--history has no effect: only the embedded store keeps versions for it; this store keeps them as long as it is configured to")
	}
	s.config.History = f.age
	if f.bytes == "" {
		return
	}
	limit, err := resource.ParseQuantity(f.bytes)
	if err != nil || limit.Value() <= 0 {
		s.refuse(checkInFlight, fmt.Errorf("--history-bytes=%q is not a number of bytes, such as 512Mi", f.bytes))
	}
	s.config.HistoryBytes = limit.Value()
}
