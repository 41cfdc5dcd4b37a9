// Package metrics exposes the metrics of the server, under the names of kube-apiserver.
// Start at Registry and Requests. It has no globals: a Registry belongs to a server.
// Clients cannot create series: unknown methods, paths and resources share one
// (cardinality is bounded).
package metrics

import (
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// Registry holds the metrics of a server.
type Registry struct {
	*prometheus.Registry
	// NativeHistograms has histograms that are registered later show native buckets too.
	NativeHistograms bool

	began  time.Time
	alone  bool // without the process and Go metrics
	view   view
	first  sync.Once
	resets []func()

	mu  sync.Mutex
	own []own // Counters, Gauges and Histograms

	samplers []func() // called before each scrape
}

// own is a metric of our own.
type own interface {
	collect(to chan<- prometheus.Metric)
	// reset is called when the metrics are reset.
	reset()
}

// ownSeries is the prometheus.Collector of Counters, Gauges and Histograms. It describes
// nothing: their descriptions are created with a scrape.
type ownSeries struct{ *Registry }

// Describe implements prometheus.Collector.
func (ownSeries) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s ownSeries) Collect(to chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.own {
		c.collect(to)
	}
}

// New returns a registry with the process and Go metrics only.
func New() *Registry {
	all := prometheus.NewRegistry()
	r := &Registry{Registry: all, began: time.Now()}
	r.view = newView(r)
	all.MustRegister(ownSeries{r})
	return r
}

// NewAlone returns an empty registry.
func NewAlone() *Registry {
	r := New()
	r.alone = true
	return r
}

// MustRegister registers collectors, and counts their metrics by stability.
func (r *Registry) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		r.Registry.MustRegister(c)
		if !r.alone {
			r.view.registered(c)
		}
	}
}

// Gather implements prometheus.Gatherer.
func (r *Registry) Gather() ([]*dto.MetricFamily, error) {
	for _, sample := range r.samplers {
		sample()
	}
	return r.Registry.Gather()
}

// beforeScrape has a function called before each scrape. It must be called before the
// first one.
func (r *Registry) beforeScrape(f func()) { r.samplers = append(r.samplers, f) }

// RegisterLater registers collectors before the first scrape.
func (r *Registry) RegisterLater(collectors func() []prometheus.Collector) {
	var once sync.Once
	r.beforeScrape(func() { once.Do(func() { r.MustRegister(collectors()...) }) })
}

// process registers the process and Go metrics, with the first scrape.
func (r *Registry) process() {
	if r.alone {
		return
	}
	r.Registry.MustRegister(collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsAll)), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

// Handler serves the metrics. With reset, DELETE resets them.
func (r *Registry) Handler(reset bool) http.Handler {
	all := promhttp.HandlerFor(&r.view, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, ProcessStartTime: r.began})
	show := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.first.Do(r.process)
		all.ServeHTTP(w, req)
	})
	if !reset {
		return show
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodDelete {
			show.ServeHTTP(w, req)
			return
		}
		r.mu.Lock()
		all, resets := slices.Clone(r.own), slices.Clone(r.resets)
		r.mu.Unlock()
		for _, metric := range all {
			metric.reset()
		}
		for _, reset := range resets {
			reset()
		}
		_, _ = io.WriteString(w, "metrics reset\n")
	})
}

// Counters registers a counter that DELETE resets.
func (r *Registry) Counters(name, help string, labels ...string) *Counters {
	return r.counters(&described{counter, name, help, nil, labels})
}

func (r *Registry) counters(d *described) *Counters {
	v := &Counters{values[Counter]{described: d}}
	r.addOwn(v, d.help)
	return v
}

// gauges registers gauges, which DELETE leaves alone: what is under way stays so.
func (r *Registry) gauges(name, help string, labels ...string) *Gauges {
	return r.gaugesOf(&described{gauge, name, help, nil, labels})
}

func (r *Registry) gaugesOf(d *described) *Gauges {
	v := &Gauges{values[Gauge]{described: d}}
	r.addOwn(v, d.help)
	return v
}

// Histograms registers a histogram that DELETE resets.
func (r *Registry) Histograms(name, help string, buckets []float64, labels ...string) *Histograms {
	return r.histograms(&described{histogram, name, help, buckets, labels})
}

func (r *Registry) histograms(d *described) *Histograms {
	v := &Histograms{values[Histogram]{described: d}, r.NativeHistograms}
	r.addOwn(v, d.help)
	return v
}

func (r *Registry) addOwn(c own, help string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.own = append(r.own, c)
	if !r.alone {
		r.view.count(help)
	}
}

func (r *Registry) add(c prometheus.Collector, reset func()) {
	r.MustRegister(c)
	r.onReset(reset)
}

// onReset has a function called when the metrics are reset, after all series were
// removed.
func (r *Registry) onReset(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resets = append(r.resets, f)
}

// byLabel caches series by one label with few values.
type byLabel[T any] struct {
	series sync.Map
	find   func(label string) T
}

// remember returns a byLabel that is cleared when the metrics are reset. It must be
// called after they are registered.
func remember[T any](r *Registry, find func(label string) T) *byLabel[T] {
	k := &byLabel[T]{find: find}
	r.onReset(k.series.Clear)
	return k
}

func (k *byLabel[T]) of(label string) T {
	if v, ok := k.series.Load(label); ok {
		return v.(T)
	}
	v := k.find(label)
	k.series.Store(label, v)
	return v
}
