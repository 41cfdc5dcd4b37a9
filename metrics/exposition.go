package metrics

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/internal/configfile"
)

// This file decides which metrics are exposed: disabled and hidden metrics, and allowed
// labels.

// Config configures which metrics are exposed; the flags of kube-apiserver are beside
// the fields.
type Config struct {
	// Disabled are the names of metrics that are not exposed: --disabled-metrics.
	Disabled []string `json:"disabledMetrics,omitempty"`
	// ShowHidden is the previous version, to expose metrics that are hidden since then:
	// --show-hidden-metrics-for-version.
	ShowHidden string `json:"showHiddenMetricsForVersion,omitempty"`
	// Labels are the allowed label values, separated by commas, by "metric,label";
	// other values are merged: --allow-metric-labels.
	Labels map[string]string `json:"allowListMapping,omitempty"`
	// LabelsFile is a YAML file with such a map: --allow-metric-labels-manifest.
	LabelsFile string `json:"allowListMappingManifest,omitempty"`
}

// unexpected replaces label values that are not allowed.
const unexpected = "unexpected"

// Complete reads LabelsFile and validates; before is the previous minor version.
func (c *Config) Complete(before string) error {
	const name, label = `[a-zA-Z_:][a-zA-Z0-9_:]*`, `[a-zA-Z_][a-zA-Z0-9_]*`
	path := field.NewPath("metrics")
	var errs field.ErrorList
	if c.ShowHidden != "" && c.ShowHidden != before {
		errs = append(errs, field.Invalid(path.Child("showHiddenMetricsForVersion"), c.ShowHidden,
			fmt.Sprintf("must be omitted or have the value '%v'; only the previous minor version is allowed", before)))
	}
	whole := "^" + name + "$"
	for _, n := range c.Disabled {
		if !regexp.MustCompile(whole).MatchString(n) {
			errs = append(errs, field.Invalid(path.Child("disabledMetrics"), c.Disabled, fmt.Sprintf("must be fully qualified metric names matching %q, got %q", whole, n)))
			break
		}
	}
	labels := func(path *field.Path, labels map[string]string) *field.Error {
		for key := range labels {
			if !regexp.MustCompile("^" + name + "," + label + "$").MatchString(key) {
				return field.Invalid(path, labels, fmt.Sprintf("must have keys with format `metricName,labelName` where metricName matches %q and labelName matches %q", name, label))
			}
		}
		return nil
	}
	if err := labels(path.Child("allowListMapping"), c.Labels); err != nil {
		errs = append(errs, err)
	}
	if c.LabelsFile != "" {
		path := path.Child("allowListMappingManifest")
		invalid := func(text string) { errs = append(errs, field.Invalid(path, c.LabelsFile, text)) }
		read := map[string]string{}
		if data, err := os.ReadFile(c.LabelsFile); err != nil {
			invalid(fmt.Sprintf("failed to read allow list manifest: %v", err))
		} else if err := yaml.Unmarshal(data, &read); err != nil {
			invalid(fmt.Sprintf("failed to parse allow list manifest: %v", configfile.Unquoted(err)))
		} else if err := labels(path, read); err != nil {
			invalid(fmt.Sprintf("invalid allow list mapping in manifest: [%v]", err))
		}
		if c.Labels != nil {
			errs = append(errs, field.Invalid(path.Root(), c, "cannot specify both allowListMapping and allowListMappingManifest"))
		} else {
			c.Labels = read
		}
	}
	return errs.ToAggregate()
}

// Configure applies a Config. It must be called before the first scrape.
func (r *Registry) Configure(c Config) {
	s := &r.view
	s.disabled, s.hidden, s.labels = map[string]bool{}, c.ShowHidden == "", map[string]map[string][]string{}
	for _, name := range c.Disabled {
		s.disabled[name] = true
	}
	for key, values := range c.Labels {
		metric, label, _ := strings.Cut(key, ",")
		if s.labels[metric] == nil {
			s.labels[metric] = map[string][]string{}
		}
		s.labels[metric][label] = strings.Split(values, ",")
	}
}

// view is the Gatherer that exposes a registry, with metrics about the metrics
// themselves.
type view struct {
	of       prometheus.Gatherer
	disabled map[string]bool
	hidden   bool
	labels   map[string]map[string][]string

	mu     sync.Mutex
	stages map[string]int // number of registered metrics, by stability
}

func newView(of prometheus.Gatherer) view {
	return view{of: of, hidden: true, stages: map[string]int{}}
}

// registered counts the metrics of a collector by the stability that their help begins
// with.
func (s *view) registered(c prometheus.Collector) {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		c.Describe(descs)
	}()
	for d := range descs {
		_, help, _ := strings.Cut(d.String(), `help: "`)
		s.count(help)
	}
}

// count counts a metric by the stage that its help begins with.
func (s *view) count(help string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, help, ok := strings.Cut(help, "["); ok {
		stage, _, _ := strings.Cut(help, "]")
		s.stages[stage]++
	}
}

// Gather implements prometheus.Gatherer.
func (s *view) Gather() ([]*dto.MetricFamily, error) {
	all, err := s.of.Gather()
	old := deprecated(all)
	if !s.hidden {
		all = append(all, old...)
	}
	all = slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return s.disabled[f.GetName()] })
	merged := 0.0
	for _, f := range all {
		merged += restrict(f, s.labels[f.GetName()])
	}
	all = append(all, s.about(len(old), merged)...)
	slices.SortFunc(all, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all, err
}

// about returns the metrics about metrics.
func (s *view) about(hidden int, merged float64) []*dto.MetricFamily {
	if len(s.stages) == 0 {
		return nil
	}
	counter := func(name, help string, value float64) *dto.MetricFamily {
		return &dto.MetricFamily{Name: &name, Help: &help, Type: dto.MetricType_COUNTER.Enum(), Metric: []*dto.Metric{{Counter: &dto.Counter{Value: &value}}}}
	}
	if !s.hidden {
		hidden = 0
	}
	name, help := "registered_metrics_total", "[BETA] The count of registered metrics broken by stability level and deprecation version."
	registered := &dto.MetricFamily{Name: &name, Help: &help, Type: dto.MetricType_COUNTER.Enum()}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stage := range slices.Sorted(maps.Keys(s.stages)) {
		registered.Metric = append(registered.Metric, &dto.Metric{
			Label:   []*dto.LabelPair{pair("deprecated_version", ""), pair("stability_level", stage)},
			Counter: &dto.Counter{Value: new(float64(s.stages[stage]))},
		})
	}
	return []*dto.MetricFamily{
		registered,
		counter("disabled_metrics_total", "[BETA] The count of disabled metrics.", float64(len(s.disabled))),
		counter("hidden_metrics_total", "[BETA] The count of hidden metrics.", float64(hidden)),
		counter("cardinality_enforcement_unexpected_categorizations_total", "[ALPHA] The count of unexpected categorizations during cardinality enforcement.", merged),
	}
}

func pair(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }

// deprecated returns the metrics that are also exposed under an old name.
func deprecated(all []*dto.MetricFamily) (old []*dto.MetricFamily) {
	for _, d := range []struct{ name, of, help string }{
		{"apiserver_storage_objects", "apiserver_resource_objects", "[STABLE] (Deprecated since 1.34.0) [DEPRECATED, consider using apiserver_resource_objects instead] Number of stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1."},
		{"apiserver_cache_list_total", "apiserver_storage_list_total", "[ALPHA] (Deprecated since 1.37.0) Number of LIST requests served from watch cache"},
		{"apiserver_cache_list_fetched_objects_total", "apiserver_storage_list_fetched_objects_total", "[ALPHA] (Deprecated since 1.37.0) Number of objects read from watch cache in the course of serving a LIST request"},
		{"apiserver_cache_list_returned_objects_total", "apiserver_storage_list_returned_objects_total", "[ALPHA] (Deprecated since 1.37.0) Number of objects returned for a LIST request from watch cache"},
	} {
		i := slices.IndexFunc(all, func(f *dto.MetricFamily) bool { return f.GetName() == d.of })
		if i < 0 {
			continue
		}
		f := &dto.MetricFamily{Name: &d.name, Help: &d.help, Type: all[i].Type}
		for _, m := range all[i].Metric {
			f.Metric = append(f.Metric, &dto.Metric{Label: oldLabels(m.Label), Gauge: m.Gauge, Counter: m.Counter})
		}
		old = append(old, f)
	}
	return old
}

// oldLabels returns the labels of an old name: without "storage"; where that label did
// not exist, the group is part of the resource.
func oldLabels(labels []*dto.LabelPair) (out []*dto.LabelPair) {
	if len(labels) == 2 {
		group, resource := labels[0].GetValue(), labels[1].GetValue()
		if group != "" {
			resource += "." + group
		}
		return []*dto.LabelPair{pair("resource", resource)}
	}
	return slices.DeleteFunc(slices.Clone(labels), func(l *dto.LabelPair) bool { return l.GetName() == "storage" })
}

// restrict merges the series whose label values are not allowed, and returns the sum of
// what was merged.
func restrict(f *dto.MetricFamily, allowed map[string][]string) (merged float64) {
	if len(allowed) == 0 {
		return 0
	}
	byLabels := map[string]*dto.Metric{}
	var kept []*dto.Metric
	for _, m := range f.Metric {
		changed := false
		var key strings.Builder
		for _, l := range m.Label {
			if values, ok := allowed[l.GetName()]; ok && !slices.Contains(values, l.GetValue()) {
				l.Value, changed = new(unexpected), true
			}
			key.WriteString(l.GetValue() + "\x00")
		}
		if changed {
			merged += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount()) + float64(m.GetSummary().GetSampleCount())
		}
		if first := byLabels[key.String()]; first != nil {
			add(first, m)
			continue
		}
		byLabels[key.String()] = m
		kept = append(kept, m)
	}
	f.Metric = kept
	return merged
}

// add adds the values of a series to another.
func add(to, m *dto.Metric) {
	switch {
	case to.Counter != nil:
		to.Counter.Value = new(to.Counter.GetValue() + m.GetCounter().GetValue())
	case to.Gauge != nil:
		to.Gauge.Value = new(to.Gauge.GetValue() + m.GetGauge().GetValue())
	case to.Histogram != nil:
		h, more := to.Histogram, m.GetHistogram()
		h.SampleCount, h.SampleSum = new(h.GetSampleCount()+more.GetSampleCount()), new(h.GetSampleSum()+more.GetSampleSum())
		for i, b := range h.Bucket {
			b.CumulativeCount = new(b.GetCumulativeCount() + more.Bucket[i].GetCumulativeCount())
		}
	case to.Summary != nil:
		s, more := to.Summary, m.GetSummary()
		s.SampleCount, s.SampleSum = new(s.GetSampleCount()+more.GetSampleCount()), new(s.GetSampleSum()+more.GetSampleSum())
		s.Quantile = nil // quantiles cannot be added
	}
}
