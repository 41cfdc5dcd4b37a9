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

// Requests holds the metrics of requests.
type Requests struct {
	Access
	known func(i *request.Info) bool

	total, terminations *Counters
	aborts              *Counters
	duration, sli       *Histograms
	sizes, bodies       *Histograms
	running             *Gauges

	mu     sync.RWMutex
	series map[key]*series
}

// key has the labels of a request's series.
type key struct {
	verb, dryRun, group, version, resource, subresource, scope, component string

	code  int
	ended End
}

// series are the series of requests with the same labels.
type series struct {
	total         *Counter
	terminated    *Counter // nil unless the server has given up
	duration, sli *Histogram
	size          *Histogram // nil unless something is read
	body          *Histogram // nil unless something is written
}

// End is how a request ended.
type End uint8

// Answered: by its handler. Refused: before it reached one; only flow control counts
// these (Dropped). TimedOut: it took too long. Aborted: the response was broken off.
const (
	Answered End = iota
	Refused
	Dropped
	TimedOut
	Aborted
)

// NewRequests registers the metrics of requests. known reports whether a resource
// exists; the others share a series.
func NewRequests(r *Registry, known func(i *request.Info) bool) *Requests {
	seconds := []float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60}
	what := []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}
	with := func(labels ...string) []string { return append(labels, what...) }
	m := &Requests{
		Access: newAccess(r), known: known, series: map[key]*series{},
		total: r.Counters("apiserver_request_total", "[STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
			with("dry_run", "code")...),
		terminations: r.Counters("apiserver_request_terminations_total", "[ALPHA] Number of requests which apiserver terminated in self-defense.", with("code")...),
		aborts: r.Counters("apiserver_request_aborts_total", "[ALPHA] Number of requests which apiserver aborted possibly due to a timeout, for each group, version, verb, resource, subresource and scope",
			what[:len(what)-1]...),
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
	r.onReset(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		clear(m.series)
	})
	return m
}

// Begin counts a long-running request until end is called.
func (m *Requests) Begin(h *http.Request, r *request.Request) (end func()) {
	gauge := m.running.WithLabelValues(m.key(h, r).labels()...)
	gauge.Inc()
	return gauge.Dec
}

// End records a finished request: the bytes of the response and the time in a flow
// control queue. self: the request came from the server itself.
func (m *Requests) End(h *http.Request, r *request.Request, ended End, self bool, status int, bytes int64, waited time.Duration) {
	if ended == Refused {
		return // authentication and authorization have metrics of their own
	}
	k := m.key(h, r)
	k.code, k.ended = code(status), ended
	took := time.Since(r.Arrived())
	s := m.find(k)
	if s == nil {
		if k.code == http.StatusServiceUnavailable {
			// An aggregated API server cannot be reached.
			lost := key{verb: k.verb, component: "aggregator"}
			m.terminations.WithLabelValues(append([]string{strconv.Itoa(k.code)}, lost.labels()...)...).Inc()
		}
		return
	}
	if s.terminated != nil {
		s.terminated.Inc()
	}
	s.total.Inc()
	if ended == Dropped {
		return
	}
	s.duration.Observe(took.Seconds())
	if k.dryRun == "" {
		s.sli.Observe((took - waited - r.Webhooks()).Seconds())
	}
	if s.size != nil {
		s.size.Observe(float64(bytes))
	}
	if s.body != nil && h.ContentLength >= 0 {
		s.body.Observe(float64(h.ContentLength))
	}
	if ended == Aborted {
		m.aborts.WithLabelValues(k.labels()[:len(k.labels())-1]...).Inc()
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
	if k == (key{verb: k.verb, code: k.code, dryRun: k.dryRun, ended: k.ended}) {
		return nil // a path that is not counted
	}
	body := map[string]string{"POST": "create", "PUT": "update", "PATCH": "patch", "APPLY": "patch", "DELETE": "delete"}[k.verb]
	if body == "delete" && k.scope != "resource" {
		body = "delete_collection"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	labels, status := k.labels(), strconv.Itoa(k.code)
	s = &series{total: m.total.WithLabelValues(append([]string{k.dryRun, status}, labels...)...)}
	if k.ended == Dropped || k.ended == TimedOut {
		s.terminated = m.terminations.WithLabelValues(append([]string{status}, labels...)...)
	}
	if k.ended != Dropped {
		s.duration = m.duration.WithLabelValues(append([]string{k.dryRun}, labels...)...)
	}
	if k.ended != Dropped && k.dryRun == "" {
		s.sli = m.sli.WithLabelValues(labels...)
	}
	if k.ended != Dropped && (k.verb == "GET" || k.verb == "LIST") {
		s.size = m.sizes.WithLabelValues(labels...)
	}
	if body != "" && k.resource != "" && k.ended != Dropped {
		s.body = m.bodies.WithLabelValues(k.resource, k.group, body)
	}
	m.series[k] = s
	return s
}

func (k key) labels() []string {
	return []string{k.verb, k.group, k.version, k.resource, k.subresource, k.scope, k.component}
}

// key returns the labels of a request.
func (m *Requests) key(h *http.Request, r *request.Request) key {
	k := key{verb: Verb(h, &r.Info), dryRun: dryRun(&r.Info)}
	switch {
	case !r.IsResource:
		k.path(r.Path)
	case m.known(&r.Info):
		k.group, k.version, k.resource, k.subresource = r.Group, r.Version, r.Resource, r.Subresource
		k.scope, k.component = scope(&r.Info), "apiserver"
	}
	return k
}

// path sets the labels of a non-resource path; unknown paths are not counted.
func (k *key) path(path string) {
	switch path {
	case "/healthz", "/livez", "/readyz":
		k.subresource = path
	case "/api", "/apis":
		k.subresource, k.component = path[1:], "apiserver"
	case "/openapi/v3":
		k.subresource = path[1:]
	case "/flagz", "/statusz":
		k.resource, k.component = path[1:], "kube-apiserver"
	default:
		if strings.HasPrefix(path, "/openapi/v3/") {
			k.subresource = "openapi/v3/"
		}
	}
}

// Verb returns the verb label of a request for metrics and logs.
func Verb(h *http.Request, i *request.Info) string {
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
	case request.Delete, request.DeleteCollection:
		return "DELETE"
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

func dryRun(i *request.Info) string {
	switch value := i.Query.Get("dryRun"); value {
	case "", "All":
		return value
	}
	return "invalid"
}

// code maps an unknown HTTP status to 500.
func code(status int) int {
	if http.StatusText(status) == "" {
		return http.StatusInternalServerError
	}
	return status
}
