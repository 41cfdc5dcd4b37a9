// Package metrics counts what the server does, under the names that dashboards
// for kube-apiserver know. It has no globals: a Registry belongs to a server.
//
// Clients cannot make series: what they invent (methods, paths, resources) is
// counted together.
package metrics

import (
	"io"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Registry has the metrics of a server.
type Registry struct {
	*prometheus.Registry
	resets []func()
}

// New returns a registry with what is known of every process.
func New() *Registry {
	r := &Registry{Registry: prometheus.NewRegistry()}
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Handler serves the metrics. With reset, DELETE starts the counts anew.
func (r *Registry) Handler(reset bool) http.Handler {
	show := promhttp.HandlerFor(r, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	if !reset {
		return show
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodDelete {
			show.ServeHTTP(w, req)
			return
		}
		for _, reset := range r.resets {
			reset()
		}
		_, _ = io.WriteString(w, "metrics reset\n")
	})
}

func (r *Registry) counters(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.add(v, v.Reset)
	return v
}

func (r *Registry) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	r.MustRegister(v) // what is under way stays so
	return v
}

// Histograms registers histograms that DELETE empties.
func (r *Registry) Histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	r.add(v, v.Reset)
	return v
}

func (r *Registry) add(c prometheus.Collector, reset func()) {
	r.MustRegister(c)
	r.resets = append(r.resets, reset)
}
