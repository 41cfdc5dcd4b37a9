package metrics

import (
	"iter"
	"maps"
	"math"
	"slices"
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

// described is the definition of a metric. It never changes, so that servers of a process
// can share it.
type described struct {
	kind    kind
	name    string
	help    string
	buckets []float64 // of a histogram
	labels  []string
}

func (d *described) desc() *prometheus.Desc { return prometheus.NewDesc(d.name, d.help, d.labels, nil) }

// values of type T by the values of labels. Most metrics of most servers have a series or
// two, and a map for them would be larger than they are: there is one only for more.
type values[T any] struct {
	*described
	mu   sync.RWMutex
	few  []keyed[T]    // the series, at most maxFew
	many map[string]*T // the series, if there are more; nil else
}

// keyed is a series, and the values of its labels.
type keyed[T any] struct {
	key    string
	series *T
}

// maxFew is how many series are found without a map.
const maxFew = 6

// get returns the series with a key, nil if there is none. The lock is held.
func (v *values[T]) get(key []byte) *T {
	if v.many != nil {
		return v.many[string(key)]
	}
	for i := range v.few {
		if v.few[i].key == string(key) {
			return v.few[i].series
		}
	}
	return nil
}

// put adds a series. The lock is held.
func (v *values[T]) put(key string, s *T) {
	if v.many == nil && len(v.few) == maxFew {
		v.many = make(map[string]*T, maxFew+1)
		for _, k := range v.few {
			v.many[k.key] = k.series
		}
		v.few = nil
	}
	if v.many != nil {
		v.many[key] = s
		return
	}
	v.few = append(v.few, keyed[T]{key, s})
}

// all returns the series by their keys. The lock is held.
func (v *values[T]) all() iter.Seq2[string, *T] {
	if v.many != nil {
		return maps.All(v.many)
	}
	return func(yield func(string, *T) bool) {
		for _, k := range v.few {
			if !yield(k.key, k.series) {
				return
			}
		}
	}
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
	s := v.get(key)
	v.mu.RUnlock()
	if s != nil {
		return s
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if s := v.get(key); s != nil {
		return s
	}
	s = create()
	v.put(string(key), s)
	return s
}

// bounded returns the label values of a series, with another first one if there are
// maxNamed series already.
func (v *values[T]) bounded(labels []string) []string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if len(v.many) < maxNamed || v.many[strings.Join(labels, separator)] != nil {
		return labels
	}
	labels = slices.Clone(labels)
	labels[0] = "other"
	return labels
}

// reset removes all series.
func (v *values[T]) reset() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.few, v.many = nil, nil
}

// each calls f for every series, with the values of its labels.
func (v *values[T]) each(f func(desc *prometheus.Desc, s *T, labels []string)) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if len(v.few)+len(v.many) == 0 {
		return
	}
	desc := v.desc()
	for key, s := range v.all() {
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
	isOther := func(key string) bool {
		rest, ok := strings.CutPrefix(key, same)
		return ok && !strings.Contains(rest, separator)
	}
	g.few = slices.DeleteFunc(g.few, func(k keyed[Gauge]) bool { return isOther(k.key) })
	maps.DeleteFunc(g.many, func(key string, _ *Gauge) bool { return isOther(key) })
}

// forget removes the series with this value of a label.
func (g *Gauges) forget(label int, value string) {
	has := func(key string) bool { return strings.Split(key, separator)[label] == value }
	g.mu.Lock()
	defer g.mu.Unlock()
	g.few = slices.DeleteFunc(g.few, func(k keyed[Gauge]) bool { return has(k.key) })
	maps.DeleteFunc(g.many, func(key string, _ *Gauge) bool { return has(key) })
}

// reset implements own: what is under way stays so.
func (g *Gauges) reset() {}

func (g *Gauges) collect(to chan<- prometheus.Metric) {
	g.each(func(desc *prometheus.Desc, s *Gauge, labels []string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, s.n.load(), labels...)
	})
}

// Histograms are histograms by label values.
type Histograms struct {
	values[Histogram]
	native bool // whether histograms have their native form too
}

// Histogram is one of Histograms. It keeps its first values as they are, and has buckets
// from then on: most series of a server that does little have few values, and buckets take
// several hundred bytes.
type Histogram struct {
	of  *Histograms
	mu  sync.Mutex
	sum float64
	all *buckets // nil while all values are in few
	n   int      // how many there are in few
	few [7]float64
}

// buckets are the counts of a histogram.
type buckets struct {
	counts []uint64 // the last is for values above all limits
	native sparse   // counted if Histograms.native
}

// WithLabelValues returns the histogram with these values of the labels.
func (h *Histograms) WithLabelValues(labels ...string) *Histogram {
	return h.find(labels, func() *Histogram { return &Histogram{of: h} })
}

// Observe counts a value.
func (h *Histogram) Observe(value float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sum += value
	if h.all == nil {
		if h.n < len(h.few) {
			h.few[h.n] = value
			h.n++
			return
		}
		h.all = h.count()
	}
	h.of.count(h.all, value)
}

// count returns buckets of the values in few.
func (h *Histogram) count() *buckets {
	b := &buckets{counts: make([]uint64, len(h.of.buckets)+1)}
	for _, value := range h.few[:h.n] {
		h.of.count(b, value)
	}
	return b
}

// count counts a value in its bucket.
func (h *Histograms) count(b *buckets, value float64) {
	i := 0
	for i < len(h.buckets) && value > h.buckets[i] {
		i++
	}
	b.counts[i]++
	if h.native {
		b.native.observe(value)
	}
}

// metric returns the histogram as it is now.
func (h *Histogram) metric(desc *prometheus.Desc, labels []string) prometheus.Metric {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.all
	if b == nil {
		b = h.count()
	}
	var count uint64
	upTo := make(map[float64]uint64, len(h.of.buckets))
	for i, limit := range h.of.buckets {
		count += b.counts[i]
		upTo[limit] = count
	}
	count += b.counts[len(h.of.buckets)]
	metric := prometheus.MustNewConstHistogram(desc, count, h.sum, upTo, labels...)
	if h.of.native {
		metric = b.native.metric(metric, h.sum, labels)
	}
	return metric
}

func (h *Histograms) collect(to chan<- prometheus.Metric) {
	h.each(func(desc *prometheus.Desc, s *Histogram, labels []string) { to <- s.metric(desc, labels) })
}
