package metrics

import (
	"slices"
	"strings"
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
	all map[string]*family
	// resets counts how often the metrics were reset.
	resets atomic.Int64
}

var _ measure.Sink = (*Families)(nil)

// kind is the type of a metric.
type kind uint8

const (
	counter kind = iota
	gauge
	histogram
	info // a gauge; of series that differ only in the last label, the newest is exposed
	late // a counter that is not exposed before it is observed, even if it has no labels
)

// described is the definition of a metric.
type described struct {
	kind    kind
	name    string
	help    string
	buckets []float64
	labels  []string
}

// family is a registered metric.
type family struct {
	of   *Families
	with func(labels ...string) observer
	// always: its only series is exposed even if nothing was observed.
	always bool
	mu     sync.Mutex
	named  map[string]bool // joined labels of its series
}

// observer is a series of any type.
type observer = measure.Series

// NewFamilies registers the metrics. Those without labels are exposed from the start,
// unless they are late.
func NewFamilies(r *Registry) *Families {
	m := &Families{all: map[string]*family{}}
	for _, d := range allFamilies() {
		f := &family{of: m, with: r.described(d), always: len(d.labels) == 0 && d.kind != late}
		m.all[d.name] = f
	}
	m.begin()
	r.resets = append(r.resets, func() {
		m.begin()
		m.resets.Add(1)
	})
	return m
}

// allFamilies are the definitions of the metrics, which all servers of a process share.
var allFamilies = sync.OnceValue(func() []described {
	return slices.Concat(partFamilies(), encryptionFamilies(), configFamilies(), admissionFamilies())
})

// begin creates the series that are exposed before anything is observed.
func (m *Families) begin() {
	for _, f := range m.all {
		f.forget()
	}
	evaluated, exempt := m.all[measure.PodSecurityEvaluations], m.all[measure.PodSecurityExemptions]
	for _, operation := range []string{"create", "update"} {
		evaluated.find([]string{"allow", "privileged", "latest", "enforce", operation, "pod", ""}).Observe(0)
		exempt.find([]string{operation, "pod", ""}).Observe(0)
		exempt.find([]string{operation, "controller", ""}).Observe(0)
	}
}

// described registers a metric, and returns the function that finds its series.
func (r *Registry) described(d described) func(labels ...string) observer {
	switch d.kind {
	case counter, late:
		v := r.Counters(d.name, d.help, d.labels...)
		return func(labels ...string) observer { return v.WithLabelValues(labels...) }
	case gauge:
		v := r.gauges(d.name, d.help, d.labels...)
		return func(labels ...string) observer { return v.WithLabelValues(labels...) }
	case info:
		v := r.gauges(d.name, d.help, d.labels...)
		return func(labels ...string) observer {
			v.forgetOthers(labels)
			return v.WithLabelValues(labels...)
		}
	}
	v := r.Histograms(d.name, d.help, d.buckets, d.labels...)
	find := func(labels ...string) observer { return v.WithLabelValues(labels...) }
	if d.name == stepDuration {
		summary := prometheus.NewSummaryVec(prometheus.SummaryOpts{Name: d.name + "_summary",
			Help: "[ALPHA] Admission sub-step latency summary in seconds, broken out for each operation and API resource and step type (validate or admit)."}, d.labels)
		r.add(summary, summary.Reset)
		find = func(labels ...string) observer {
			return two{v.WithLabelValues(labels...), summary.WithLabelValues(labels...)}
		}
	}
	return find
}

// Series implements measure.Sink.
func (m *Families) Series(metric string, labels ...string) measure.Series {
	f := m.all[metric]
	if f == nil {
		panic("there is no metric " + metric)
	}
	return &lateSeries{family: f, labels: labels}
}

// lateSeries finds its series with the first observation, and caches it until the
// metrics are reset.
type lateSeries struct {
	family *family
	labels []string
	kept   atomic.Pointer[keptSeries]
}

type keptSeries struct {
	observer
	resets int64
}

// Observe implements observer.
func (s *lateSeries) Observe(v float64) {
	resets := s.family.of.resets.Load()
	k := s.kept.Load()
	if k == nil || k.resets != resets {
		k = &keptSeries{s.family.find(s.labels), resets}
		s.kept.Store(k)
	}
	k.Observe(v)
}

func (f *family) find(labels []string) observer {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := strings.Join(labels, "\x00")
	switch {
	case f.named[key]:
	case len(f.named) < maxNamed:
		if f.named == nil {
			f.named = map[string]bool{}
		}
		f.named[key] = true
	default:
		labels = slices.Clone(labels)
		labels[0] = "other"
	}
	return f.with(labels...)
}

func (f *family) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.named)
	if f.always {
		f.with()
	}
}

// two observes the same value in two series.
type two [2]observer

// Observe implements observer.
func (t two) Observe(v float64) {
	t[0].Observe(v)
	t[1].Observe(v)
}
