package metrics

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

// The metrics of a server are counters, gauges and histograms of our own: a series is
// its numbers and its label values, and is converted to Prometheus' types when it is
// scraped. Those of the client library take ten times the memory, which matters where
// many servers are in one process.

// metric is what the series of a metric share: name, help and label names.
type metric struct {
	name, help string
	labels     []string
}

func (m *metric) desc() *prometheus.Desc { return prometheus.NewDesc(m.name, m.help, m.labels, nil) }

// values of type T by the values of labels.
type values[T any] struct {
	metric
	mu     sync.RWMutex
	series map[string]*T
}

// separator separates label values in a key. No text in UTF-8 has this byte.
const separator = "\xff"

// find returns the series with these label values, and creates it on first use. Bytes
// that are not UTF-8, which a client can have in its name, are replaced: Prometheus has
// text only.
func (v *values[T]) find(labels []string, create func() *T) *T {
	if len(labels) != len(v.labels) {
		panic("metrics: " + v.name + " has labels " + strings.Join(v.labels, ", "))
	}
	var room [256]byte
	key := room[:0]
	for i, label := range labels {
		if i > 0 {
			key = append(key, separator...)
		}
		if !utf8.ValidString(label) {
			label = strings.ToValidUTF8(label, string(utf8.RuneError))
		}
		key = append(key, label...)
	}
	v.mu.RLock()
	s := v.series[string(key)]
	v.mu.RUnlock()
	if s != nil {
		return s
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if s := v.series[string(key)]; s != nil {
		return s
	}
	if v.series == nil {
		v.series = map[string]*T{}
	}
	s = create()
	v.series[string(key)] = s
	return s
}

// reset removes all series.
func (v *values[T]) reset() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.series = nil
}

// each calls f for every series, with the values of its labels.
func (v *values[T]) each(f func(desc *prometheus.Desc, s *T, labels []string)) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if len(v.series) == 0 {
		return
	}
	desc := v.desc()
	for key, s := range v.series {
		var labels []string
		if len(v.labels) > 0 {
			labels = strings.Split(key, separator)
		}
		f(desc, s, labels)
	}
}

// number is a float64 with atomic addition.
type number struct{ bits atomic.Uint64 }

func (n *number) load() float64 { return math.Float64frombits(n.bits.Load()) }

func (n *number) add(v float64) {
	for {
		old := n.bits.Load()
		if n.bits.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+v)) {
			return
		}
	}
}

// Counters are numbers that only grow, by the values of labels.
type Counters struct{ values[Counter] }

// Counter is one of Counters.
type Counter struct{ n number }

// WithLabelValues returns the counter with these values of the labels.
func (c *Counters) WithLabelValues(labels ...string) *Counter {
	return c.find(labels, func() *Counter { return new(Counter) })
}

// Inc adds one.
func (c *Counter) Inc() { c.n.add(1) }

// Add adds something that is not negative.
func (c *Counter) Add(v float64) { c.n.add(v) }

// Observe implements measure.Series: the counter grows by what is observed.
func (c *Counter) Observe(v float64) { c.n.add(v) }

func (c *Counters) collect(to chan<- prometheus.Metric) {
	c.each(func(desc *prometheus.Desc, s *Counter, labels []string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, s.n.load(), labels...)
	})
}

// Gauges are numbers that go up and down, by the values of labels.
type Gauges struct{ values[Gauge] }

// Gauge is one of Gauges.
type Gauge struct{ n number }

// WithLabelValues returns the gauge with these values of the labels.
func (g *Gauges) WithLabelValues(labels ...string) *Gauge {
	return g.find(labels, func() *Gauge { return new(Gauge) })
}

// Inc adds one.
func (g *Gauge) Inc() { g.n.add(1) }

// Dec takes one away.
func (g *Gauge) Dec() { g.n.add(-1) }

// Set sets the gauge.
func (g *Gauge) Set(v float64) { g.n.bits.Store(math.Float64bits(v)) }

// Observe implements measure.Series: the gauge is what was last observed.
func (g *Gauge) Observe(v float64) { g.Set(v) }

// forgetOthers removes the series that differ from this one only in the last label.
func (g *Gauges) forgetOthers(labels []string) {
	same := strings.Join(labels[:len(labels)-1], separator) + separator
	g.mu.Lock()
	defer g.mu.Unlock()
	for key := range g.series {
		if rest, ok := strings.CutPrefix(key, same); ok && !strings.Contains(rest, separator) {
			delete(g.series, key)
		}
	}
}

func (g *Gauges) collect(to chan<- prometheus.Metric) {
	g.each(func(desc *prometheus.Desc, s *Gauge, labels []string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, s.n.load(), labels...)
	})
}

// Histograms are histograms by label values.
type Histograms struct {
	values[Histogram]
	buckets []float64
}

// Histogram is one of Histograms.
type Histogram struct {
	of     *Histograms
	sum    number
	counts []atomic.Uint64 // by bucket; the last is for values above all buckets
}

// WithLabelValues returns the histogram with these values of the labels.
func (h *Histograms) WithLabelValues(labels ...string) *Histogram {
	return h.find(labels, func() *Histogram { return &Histogram{of: h, counts: make([]atomic.Uint64, len(h.buckets)+1)} })
}

// Observe counts a value.
func (h *Histogram) Observe(value float64) {
	i := 0
	for i < len(h.of.buckets) && value > h.of.buckets[i] {
		i++
	}
	h.sum.add(value)
	h.counts[i].Add(1)
}

func (h *Histograms) collect(to chan<- prometheus.Metric) {
	h.each(func(desc *prometheus.Desc, s *Histogram, labels []string) {
		var count uint64
		buckets := make(map[float64]uint64, len(h.buckets))
		for i, limit := range h.buckets {
			count += s.counts[i].Load()
			buckets[limit] = count
		}
		count += s.counts[len(h.buckets)].Load()
		to <- prometheus.MustNewConstHistogram(desc, count, s.sum.load(), buckets, labels...)
	})
}
