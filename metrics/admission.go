package metrics

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// maxNamed bounds the series of a metric. Names of policies and webhooks are from
// whoever may make some; when there are too many, the rest is counted together.
const maxNamed = 5000

// Admission are the metrics of admission.
type Admission struct {
	families map[string]*family
	// resets counts how often the metrics have been emptied.
	resets atomic.Int64
}

// family is one metric.
type family struct {
	of    *Admission
	with  func(labels ...string) observer
	mu    sync.Mutex
	named map[string]bool // the labels of its series
}

// observer is a series of any type.
type observer interface{ Observe(float64) }

// NewAdmission registers the metrics of admission.
func NewAdmission(r *Registry) *Admission {
	m := &Admission{families: map[string]*family{}}
	const conditions = "identified by name of resource containing the match condition and broken out for each kind containing matchConditions (webhook or policy), operation and admission type (validate or admit)."
	whole := "broken out for each operation and API resource and "
	seconds := []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5}
	check := []float64{0.0000005, 0.001, 0.01, 0.1, 1}
	calls, condition := []string{"name", "type", "operation", "rejected"}, []string{"name", "kind", "type", "operation"}
	validating, mutating := []string{"policy", "policy_binding", "error_type", "enforcement_action"}, []string{"policy", "policy_binding", "error_type"}

	steps := newDurations(r, "apiserver_admission_step_admission_duration_seconds", "[STABLE] Admission sub-step latency histogram in seconds, "+whole+"step type (validate or admit).", seconds, "type", "operation", "rejected")
	summary := prometheus.NewSummaryVec(prometheus.SummaryOpts{Name: "apiserver_admission_step_admission_duration_seconds_summary", Help: "[ALPHA] Admission sub-step latency summary in seconds, " + whole + "step type (validate or admit)."}, []string{"type", "operation", "rejected"})
	r.add(summary, summary.Reset)
	m.family("step_admission_duration_seconds", func(labels ...string) observer {
		return two{steps.with(labels), summary.WithLabelValues(labels...)}
	})
	histogram := func(metric string, prefix, help string, buckets []float64, labels ...string) {
		v := newDurations(r, prefix+metric, help, buckets, labels...)
		m.family(metric, func(labels ...string) observer { return v.with(labels) })
	}
	counter := func(metric string, prefix, help string, labels ...string) {
		v := r.Counters(prefix+metric, help, labels...)
		m.family(metric, func(labels ...string) observer { return count{v.WithLabelValues(labels...)} })
	}
	const prefix = "apiserver_admission_"
	histogram("controller_admission_duration_seconds", prefix, "[STABLE] Admission controller latency histogram in seconds, identified by name and "+whole+"type (validate or admit).", seconds, calls...)
	histogram("webhook_admission_duration_seconds", prefix, "[STABLE] Admission webhook latency histogram in seconds, identified by name and "+whole+"type (validate or admit).", append(seconds, 10, 25), calls...)
	counter("webhook_request_total", prefix, "[ALPHA] Admission webhook request total, identified by name and broken out for each admission type (validating or admit) and operation. Additional labels specify whether the request was rejected or not and an HTTP status code. Codes greater than 600 are truncated to 600, to keep the metrics cardinality bounded.",
		"name", "type", "operation", "code", "rejected")
	counter("webhook_rejection_count", prefix, "[ALPHA] Admission webhook rejection count, identified by name and broken out for each admission type (validating or admit) and operation. Additional labels specify an error type (calling_webhook_error or apiserver_internal_error if an error occurred; no_error otherwise) and optionally a non-zero rejection code if the webhook rejects the request with an HTTP status code (honored by the apiserver when the code is greater or equal to 400). Codes greater than 600 are truncated to 600, to keep the metrics cardinality bounded.",
		"name", "type", "operation", "error_type", "rejection_code")
	counter("webhook_fail_open_count", prefix, "[ALPHA] Admission webhook fail open count, identified by name and broken out for each admission type (validating or admit).", "name", "type")
	histogram("match_condition_evaluation_seconds", prefix, "[ALPHA] Admission match condition evaluation time in seconds, identified by name and broken out for each kind containing matchConditions (webhook or policy), operation and type (validate or admit).",
		[]float64{0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25}, condition...)
	counter("match_condition_evaluation_errors_total", prefix, "[ALPHA] Admission match condition evaluation errors count, "+conditions, condition...)
	counter("match_condition_exclusions_total", prefix, "[ALPHA] Admission match condition evaluation exclusions count, "+conditions, condition...)
	counter("validating_admission_policy_check_total", "apiserver_", "[BETA] Validation admission policy check total, labeled by policy and further identified by binding and enforcement action taken.", validating...)
	histogram("validating_admission_policy_check_duration_seconds", "apiserver_", "[BETA] Validation admission latency for individual validation expressions in seconds, labeled by policy and further including binding and enforcement action taken.", check, validating...)
	counter("mutating_admission_policy_check_total", "apiserver_", "[ALPHA] Mutation admission policy check total, labeled by policy and further identified by binding.", mutating...)
	histogram("mutating_admission_policy_check_duration_seconds", "apiserver_", "[ALPHA] Mutation admission latency for individual mutation expressions in seconds, labeled by policy and binding.", check, mutating...)
	r.resets = append(r.resets, func() {
		for _, f := range m.families {
			f.forget()
		}
		m.resets.Add(1)
	})
	return m
}

func (m *Admission) family(metric string, with func(labels ...string) observer) {
	m.families[metric] = &family{of: m, with: with, named: map[string]bool{}}
}

// Series implements strings.
func (m *Admission) Series(metric string, labels ...string) interface{ Observe(value float64) } {
	return &lateSeries{family: m.families[metric], labels: labels}
}

// lateSeries finds its series when there is something to observe, and keeps it
// until the metrics are emptied.
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
}

// count is a counter that grows by what is observed.
type count struct{ prometheus.Counter }

// Observe implements observer.
func (c count) Observe(v float64) { c.Add(v) }

// two is one thing that is measured in two ways.
type two [2]observer

// Observe implements observer.
func (t two) Observe(v float64) {
	t[0].Observe(v)
	t[1].Observe(v)
}
