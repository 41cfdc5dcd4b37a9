// Package manifests reads webhook and policy configurations from a directory of static
// manifests on the server's disk. Start at Config and Directory. Static configurations are
// active from the first request on, cannot be changed through the API, and are the only
// ones that can match webhook and policy configurations themselves.
//
// The directory is polled for changes. If a file is invalid, the last valid state stays
// active.
package manifests

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/filewatch"
	"github.com/apikeel/kelson/internal/clock"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/resource"
)

// Suffix is the required suffix of the names of all objects in manifests.
const Suffix = ".static.k8s.io"

// Metrics. Reloads counts reloads and ReloadTime is the time of the last, with the labels
// status, plugin, apiserver_id_hash. ConfigInfo identifies the active manifests by the
// labels plugin, apiserver_id_hash, hash.
const (
	Reloads    = "apiserver_manifest_admission_config_controller_automatic_reloads_total"
	ReloadTime = "apiserver_manifest_admission_config_controller_automatic_reload_last_timestamp_seconds"
	ConfigInfo = "apiserver_manifest_admission_config_controller_last_config_info"
)

// Config configures a Directory.
type Config struct {
	// Plugin that uses the manifests. Required.
	Plugin string
	// Path of the directory. Required.
	Path string
	// Kinds that are allowed in manifests, by their names. Required.
	Kinds map[string]*resource.Definition
	// Interval of polling; 0 is that of filewatch.
	Interval time.Duration
	// Server is the identity of the server, for metrics.
	Server  string
	Metrics measure.Sink
	Logger  *slog.Logger
}

// CheckPath validates the path of a directory.
func CheckPath(path string) error {
	at := field.NewPath("staticManifestsDir")
	if !filepath.IsAbs(path) {
		return field.Invalid(at, path, "must be an absolute file path")
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return field.Invalid(at, path, fmt.Sprintf("unable to read: %v", err))
	case !info.IsDir():
		return field.Invalid(at, path, "must be a directory")
	}
	return nil
}

// Directory is a directory of manifests.
type Directory struct {
	cfg     Config
	current atomic.Pointer[admission.Manifests]
	// seen and hash are of the last read; only Watch uses them.
	seen listing
	hash string
}

// Open reads a directory for the first time.
func Open(cfg Config) (*Directory, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Interval == 0 {
		cfg.Interval = filewatch.DefaultInterval
	}
	if cfg.Server != "" {
		cfg.Server = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(cfg.Server)))
	}
	d := &Directory{cfg: cfg}
	var err error
	if d.seen, err = list(cfg.Path); err != nil {
		return nil, err
	}
	set, hash, err := d.load()
	if err != nil {
		return nil, err
	}
	d.use(set, hash)
	return d, nil
}

// Current returns the active manifests.
func (d *Directory) Current() *admission.Manifests { return d.current.Load() }

func (d *Directory) use(set *admission.Manifests, hash string) {
	d.current.Store(set)
	d.hash = hash
	measure.SeriesOf(d.cfg.Metrics, ConfigInfo, d.cfg.Plugin, d.cfg.Server, hash).Observe(1)
	d.measure("success")
	d.cfg.Logger.Info("admission manifests are used", "plugin", d.cfg.Plugin, "directory", d.cfg.Path, "objects", len(set.Objects))
}

func (d *Directory) measure(status string) {
	measure.Count(d.cfg.Metrics, Reloads, status, d.cfg.Plugin, d.cfg.Server)
	measure.SeriesOf(d.cfg.Metrics, ReloadTime, status, d.cfg.Plugin, d.cfg.Server).Observe(float64(time.Now().UnixNano()) / 1e9)
}

// Watch polls the directory until ctx ends.
func (d *Directory) Watch(ctx context.Context) {
	for range clock.Every(ctx, d.cfg.Interval) {
		d.refresh()
	}
}

// refresh reads the manifests again if they may have changed.
func (d *Directory) refresh() {
	now, err := list(d.cfg.Path)
	if err == nil && now.same(d.seen) {
		return
	}
	var set *admission.Manifests
	var hash string
	if err == nil {
		set, hash, err = d.load()
	}
	switch {
	case err != nil:
		// The same error is logged once, until something changes.
		if d.seen.failed == err.Error() && now.equal(d.seen) {
			return
		}
		now.failed = err.Error()
		d.measure("failure")
		d.cfg.Logger.Error("admission manifests cannot be used", "plugin", d.cfg.Plugin, "directory", d.cfg.Path, "error", err)
	case hash != d.hash:
		d.use(set, hash)
	}
	d.seen = now
}

// listing is the names, sizes and times of the files of a directory.
type listing struct {
	files  string
	newest time.Time
	at     time.Time
	failed string // error of the last load
}

// mtimeGranularity is how old a file must be for its modification time to show every change.
const mtimeGranularity = 2 * time.Second

// list reads the file times. It is called before the contents are read, so that a change in
// between is noticed at the next poll.
func list(path string) (listing, error) {
	l := listing{at: time.Now()}
	names, err := manifestFiles(path)
	if err != nil {
		return l, err
	}
	for _, name := range names {
		info, err := os.Stat(filepath.Join(path, name))
		if err != nil {
			return l, fmt.Errorf("failed to read file %q: %w", filepath.Join(path, name), err)
		}
		l.files += fmt.Sprintf("%s\x00%d\x00%d\x00", name, info.Size(), info.ModTime().UnixNano())
		if info.ModTime().After(l.newest) {
			l.newest = info.ModTime()
		}
	}
	return l, nil
}

func (l listing) equal(other listing) bool { return l.files == other.files }

// same reports whether nothing can have changed since an earlier listing.
func (l listing) same(earlier listing) bool {
	return l.equal(earlier) && earlier.at.Sub(earlier.newest) > mtimeGranularity
}
