package metrics

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/apikeel/kelson/metrics/measure"
)

// This file registers the metrics of packages that do not import this one.

// maxNamed is the largest number of series of a metric. Names of policies and webhooks
// come from users; series above the limit are merged.
const maxNamed = 5000

// Families holds the metrics of packages that know only their names: those of package
// measure, and of admission.
type Families struct {
	registry *Registry
	first    sync.Once // calls begin before the first scrape
	mu       sync.Mutex
	all      map[*described]family  // those that are registered; guarded by mu
	gauges   map[*described]*Gauges // those of all that are gauges; guarded by mu
	// resets counts how often the metrics were reset.
	resets atomic.Int64
}

var (
	_ measure.Sink      = (*Families)(nil)
	_ measure.Forgetter = (*Families)(nil)
)

// kind is the type of a metric.
type kind uint8

const (
	counter kind = iota
	gauge
	histogram
	info // a gauge; of series that differ only in the last label, the newest is exposed
	late // a counter that is not exposed before it is observed, even if it has no labels
)

// family finds the series of a registered metric.
type family func(labels []string) observer

// observer is a series of any type.
type observer = measure.Series

// NewFamilies returns the metrics. Each is registered when it is first observed, or
// scraped; those without labels are then exposed even if nothing was observed, unless
// they are late.
func NewFamilies(r *Registry) *Families {
	m := &Families{registry: r, all: map[*described]family{}, gauges: map[*described]*Gauges{}}
	r.beforeScrape(func() { m.first.Do(m.begin) })
	r.onReset(func() {
		m.begin()
		m.resets.Add(1)
	})
	return m
}

// allFamilies are the definitions of the metrics by name, which all servers of a process
// share.
var allFamilies = sync.OnceValue(func() map[string]*described {
	all := map[string]*described{}
	for _, d := range slices.Concat(partFamilies(), encryptionFamilies(), configFamilies(), admissionFamilies()) {
		all[d.name] = &d
	}
	return all
})

// begin creates the series that are exposed before anything is observed.
func (m *Families) begin() {
	for _, d := range allFamilies() {
		if f := m.family(d); len(d.labels) == 0 && d.kind != late {
			f(nil)
		}
	}
	for _, operation := range []string{"create", "update"} {
		m.Series(measure.PodSecurityEvaluations, "allow", "privileged", "latest", "enforce", operation, "pod", "").Observe(0)
		m.Series(measure.PodSecurityExemptions, operation, "pod", "").Observe(0)
		m.Series(measure.PodSecurityExemptions, operation, "controller", "").Observe(0)
	}
}

// family returns a metric, and registers it if it is not.
func (m *Families) family(d *described) family {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.all[d]
	if f == nil {
		f, m.gauges[d] = m.registry.described(d)
		m.all[d] = f
	}
	return f
}

// described registers a metric, and returns the function that finds its series. of is nil
// for metrics that are no gauges.
func (r *Registry) described(d *described) (f family, of *Gauges) {
	switch d.kind {
	case counter, late:
		v := r.counters(d)
		return func(labels []string) observer { return v.WithLabelValues(v.bounded(labels)...) }, nil
	case gauge:
		v := r.gaugesOf(d)
		return func(labels []string) observer { return v.WithLabelValues(v.bounded(labels)...) }, v
	case info:
		v := r.gaugesOf(d)
		return func(labels []string) observer {
			v.forgetOthers(labels)
			return v.WithLabelValues(v.bounded(labels)...)
		}, v
	}
	v := r.histograms(d)
	find := func(labels []string) observer { return v.WithLabelValues(v.bounded(labels)...) }
	if d.name == stepDuration {
		summary := prometheus.NewSummaryVec(prometheus.SummaryOpts{Name: d.name + "_summary",
			Help: "[ALPHA] Admission sub-step latency summary in seconds, broken out for each operation and API resource and step type (validate or admit)."}, d.labels)
		r.add(summary, summary.Reset)
		find = func(labels []string) observer {
			labels = v.bounded(labels)
			return two{v.WithLabelValues(labels...), summary.WithLabelValues(labels...)}
		}
	}
	return find, nil
}

// Forget implements measure.Forgetter.
func (m *Families) Forget(metric, label, value string) {
	d := allFamilies()[metric]
	m.mu.Lock()
	of := m.gauges[d]
	m.mu.Unlock()
	if of != nil {
		of.forget(slices.Index(d.labels, label), value)
	}
}

// Series implements measure.Sink.
func (m *Families) Series(metric string, labels ...string) measure.Series {
	d := allFamilies()[metric]
	if d == nil {
		panic("there is no metric " + metric)
	}
	return &lateSeries{of: m, metric: d, labels: labels}
}

// lateSeries finds its series with the first observation, and caches it until the
// metrics are reset.
type lateSeries struct {
	of     *Families
	metric *described
	labels []string
	kept   atomic.Pointer[keptSeries]
}

type keptSeries struct {
	observer
	resets int64
}

// Observe implements observer.
func (s *lateSeries) Observe(v float64) {
	resets := s.of.resets.Load()
	k := s.kept.Load()
	if k == nil || k.resets != resets {
		k = &keptSeries{s.of.family(s.metric)(s.labels), resets}
		s.kept.Store(k)
	}
	k.Observe(v)
}

// two observes the same value in two series.
type two [2]observer

// Observe implements observer.
func (t two) Observe(v float64) {
	t[0].Observe(v)
	t[1].Observe(v)
}
