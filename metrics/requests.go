package metrics

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/apikeel/kelson/request"
)

// Requests counts requests, and measures how long they take.
type Requests struct {
	Access
	known func(i *request.Info) bool

	total, terminations *prometheus.CounterVec
	duration, sli       *prometheus.HistogramVec
	sizes, bodies       *prometheus.HistogramVec
	running             *prometheus.GaugeVec

	mu     sync.RWMutex
	series map[key]*series
}

// key is what the series of a request are found by: their labels.
type key struct {
	verb, dryRun, group, version, resource, subresource, scope, component string

	code int
}

// series are those of requests with the same labels.
type series struct {
	total         prometheus.Counter
	terminated    prometheus.Counter // nil unless the server has refused
	duration, sli prometheus.Observer
	size          prometheus.Observer // nil unless something is read
	body          prometheus.Observer // nil unless something is written
}

// NewRequests registers the metrics of requests. known reports whether there is
// such a resource, or path; others are counted together.
func NewRequests(r *Registry, known func(i *request.Info) bool) *Requests {
	seconds := []float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60}
	what := []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}
	with := func(labels ...string) []string { return append(labels, what...) }
	m := &Requests{
		Access: newAccess(r), known: known, series: map[key]*series{},
		total: r.Counters("apiserver_request_total", "[STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
			with("dry_run", "code")...),
		terminations: r.Counters("apiserver_request_terminations_total", "[ALPHA] Number of requests which apiserver terminated in self-defense.", with("code")...),
		duration: r.Histograms("apiserver_request_duration_seconds", "[STABLE] Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.",
			append([]float64{0.005, 0.025}, seconds...), with("dry_run")...),
		sli: r.Histograms("apiserver_request_sli_duration_seconds", "[ALPHA] Response latency distribution (not counting webhook duration and priority & fairness queue wait times) in seconds for each verb, group, version, resource, subresource, scope and component.",
			seconds, what...),
		sizes: r.Histograms("apiserver_response_sizes", "[STABLE] Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.",
			prometheus.ExponentialBuckets(1000, 10, 7), what...),
		bodies: r.Histograms("apiserver_request_body_size_bytes", "[ALPHA] Apiserver request body size in bytes broken out by resource and verb.",
			prometheus.LinearBuckets(50000, 100000, 31), "resource", "group", "verb"),
		running: r.gauges("apiserver_longrunning_requests", "[STABLE] Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component. Not all requests are tracked this way.",
			what...),
	}
	r.resets = append(r.resets, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		clear(m.series)
	})
	return m
}

// Begin counts a long-running request until what it returns is called.
func (m *Requests) Begin(h *http.Request, r *request.Request) (end func()) {
	gauge := m.running.WithLabelValues(m.key(h, r).labels()...)
	gauge.Inc()
	return gauge.Dec
}

// End counts a request that was answered with so many bytes, and has waited for
// its turn. With self it is the server that has asked.
func (m *Requests) End(h *http.Request, r *request.Request, self bool, status int, bytes int64, waited time.Duration) {
	k := m.key(h, r)
	k.code = code(status)
	took := time.Since(r.Arrived())
	s := m.find(k)
	s.total.Inc()
	s.duration.Observe(took.Seconds())
	s.sli.Observe((took - waited).Seconds())
	if s.size != nil {
		s.size.Observe(float64(bytes))
	}
	if s.body != nil && h.ContentLength >= 0 {
		s.body.Observe(float64(h.ContentLength))
	}
	if s.terminated != nil {
		s.terminated.Inc()
	}
	if self {
		m.self.WithLabelValues(k.verb, k.group, k.resource, k.subresource).Inc()
	}
}

func (m *Requests) find(k key) *series {
	m.mu.RLock()
	s := m.series[k]
	m.mu.RUnlock()
	if s != nil {
		return s
	}
	writes := map[string]string{
		"POST": request.Create, "PUT": request.Update, "PATCH": request.Patch, "APPLY": request.Patch, "DELETE": request.Delete, "DELETECOLLECTION": request.DeleteCollection,
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	labels, status := k.labels(), strconv.Itoa(k.code)
	s = &series{
		total:    m.total.WithLabelValues(append([]string{k.dryRun, status}, labels...)...),
		duration: m.duration.WithLabelValues(append([]string{k.dryRun}, labels...)...),
		sli:      m.sli.WithLabelValues(labels...),
	}
	if k.verb == "GET" || k.verb == "LIST" {
		s.size = m.sizes.WithLabelValues(labels...)
	}
	if k.code == http.StatusTooManyRequests || k.code == http.StatusGatewayTimeout {
		s.terminated = m.terminations.WithLabelValues(append([]string{status}, labels...)...)
	}
	if verb := writes[k.verb]; verb != "" && k.resource != "" {
		s.body = m.bodies.WithLabelValues(k.resource, k.group, verb)
	}
	m.series[k] = s
	return s
}

func (k key) labels() []string {
	return []string{k.verb, k.group, k.version, k.resource, k.subresource, k.scope, k.component}
}

// key returns the labels of a request.
func (m *Requests) key(h *http.Request, r *request.Request) key {
	k := key{verb: verb(h, &r.Info), dryRun: dryRun(h)}
	switch {
	case !m.known(&r.Info):
	case r.IsResource:
		k.group, k.version, k.resource, k.subresource = r.Group, r.Version, r.Resource, r.Subresource
		k.scope, k.component = scope(&r.Info), "apiserver"
	default:
		k.subresource = r.Path
	}
	return k
}

// verb is how a request is called here: mostly by its method.
func verb(h *http.Request, i *request.Info) string {
	if !i.IsResource {
		switch h.Method {
		case http.MethodGet, http.MethodHead:
			return http.MethodGet
		case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
			return h.Method
		}
		return "other"
	}
	switch i.Subresource {
	case "attach", "exec", "portforward", "proxy":
		return "CONNECT"
	}
	switch i.Verb {
	case request.Get:
		return "GET"
	case request.List:
		return "LIST"
	case request.Watch:
		return "WATCH"
	case request.Create:
		return "POST"
	case request.Update:
		return "PUT"
	case request.Patch:
		if h.Header.Get("Content-Type") == "application/apply-patch+yaml" {
			return "APPLY"
		}
		return "PATCH"
	case request.Delete:
		return "DELETE"
	case request.DeleteCollection:
		return "DELETECOLLECTION"
	}
	return "other"
}

func scope(i *request.Info) string {
	switch {
	case i.Name != "" || i.Verb == request.Create:
		return "resource"
	case i.Namespace != "":
		return "namespace"
	}
	return "cluster"
}

func dryRun(h *http.Request) string {
	if !strings.Contains(h.URL.RawQuery, "dryRun") {
		return ""
	}
	switch value, _ := request.Param(h.URL.RawQuery, "dryRun"); value {
	case "", "All":
		return value
	}
	return "invalid"
}

// code is a status that there is.
func code(status int) int {
	if http.StatusText(status) == "" {
		return http.StatusInternalServerError
	}
	return status
}
