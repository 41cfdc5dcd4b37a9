package metrics

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// durations are histograms of seconds, or of whole numbers, for what happens often in a
// request: a series is a few numbers next to each other, and observing adds to
// two of them.
type durations struct {
	desc    *prometheus.Desc
	buckets []float64
	unit    float64 // how many of what a sum has are one: seconds are kept as nanoseconds

	mu     sync.Mutex
	series map[string]*duration // by labels
}

type duration struct {
	of     *durations
	labels []string
	sum    atomic.Int64
	counts []atomic.Uint64 // of each bucket, and of what is above all
}

func newDurations(r *Registry, name, help string, buckets []float64, labels ...string) *durations {
	d := &durations{desc: prometheus.NewDesc(name, help, labels, nil), buckets: buckets, unit: 1, series: map[string]*duration{}}
	if strings.Contains(name, "_seconds") {
		d.unit = 1e9
	}
	r.add(d, d.reset)
	return d
}

func (d *durations) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.series)
}

// with returns the series with values of the labels.
func (d *durations) with(labels []string) *duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := strings.Join(labels, "\x00")
	s := d.series[key]
	if s == nil {
		s = &duration{of: d, labels: labels, counts: make([]atomic.Uint64, len(d.buckets)+1)}
		d.series[key] = s
	}
	return s
}

// Observe implements observer.
func (s *duration) Observe(value float64) {
	i := 0
	for i < len(s.of.buckets) && value > s.of.buckets[i] {
		i++
	}
	s.sum.Add(int64(value * s.of.unit))
	s.counts[i].Add(1)
}

// Describe implements prometheus.Collector.
func (d *durations) Describe(to chan<- *prometheus.Desc) { to <- d.desc }

// Collect implements prometheus.Collector.
func (d *durations) Collect(to chan<- prometheus.Metric) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.series {
		var count uint64
		buckets := make(map[float64]uint64, len(d.buckets))
		for i, limit := range d.buckets {
			count += s.counts[i].Load()
			buckets[limit] = count
		}
		count += s.counts[len(d.buckets)].Load()
		to <- prometheus.MustNewConstHistogram(d.desc, count, float64(s.sum.Load())/d.unit, buckets, s.labels...)
	}
}
