package metrics

import (
	"crypto/x509"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Access counts who was known, and who was let in.
type Access struct {
	users                     *byLabel[prometheus.Counter]
	known, allowed            *byLabel[timed]
	certificates              *prometheus.HistogramVec
	self, handshakes, watched *prometheus.CounterVec
	asked                     *prometheus.CounterVec
	lists, fetched            *prometheus.CounterVec
	evaluated, returned       *prometheus.CounterVec
	deprecated                *prometheus.GaugeVec
	asking                    *prometheus.HistogramVec
	sizes                     *prometheus.HistogramVec
}

func newAccess(r *Registry) Access {
	fast := prometheus.ExponentialBuckets(0.001, 2, 15)
	const minute, hour, day = 60, 3600, 24 * 3600
	stored, indexed := []string{"group", "resource", "storage"}, []string{"group", "resource", "index", "storage"}
	users := r.Counters("authenticated_user_requests", "[ALPHA] Counter of authenticated requests broken out by username.", "username")
	a := Access{
		users: remember(r, func(name string) prometheus.Counter { return users.WithLabelValues(name) }),
		known: remember(r, timedBy(
			r.Counters("authentication_attempts", "[ALPHA] Counter of authenticated attempts.", "result"),
			r.Histograms("authentication_duration_seconds", "[ALPHA] Authentication duration in seconds broken out by result.", fast, "result"))),
		allowed: remember(r, timedBy(
			r.Counters("authorization_attempts_total", "[ALPHA] Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', 'no-opinion' or 'error'.", "result"),
			r.Histograms("authorization_duration_seconds", "[ALPHA] Authorization duration in seconds broken out by result.", fast, "result"))),
		certificates: r.Histograms("apiserver_client_certificate_expiration_seconds", "[ALPHA] Distribution of the remaining lifetime on the certificate used to authenticate a request.",
			[]float64{0, 30 * minute, hour, 2 * hour, 6 * hour, 12 * hour, day, 2 * day, 4 * day, 7 * day, 30 * day, 3 * 30 * day, 6 * 30 * day, 365 * day}),
		self:       r.Counters("apiserver_selfrequest_total", "[ALPHA] Counter of apiserver self-requests broken out for each verb, API resource and subresource.", "verb", "group", "resource", "subresource"),
		handshakes: r.Counters("apiserver_tls_handshake_errors_total", "[ALPHA] Number of requests dropped with 'TLS handshake error from' error"),
		asked:      r.Counters("rest_client_requests_total", "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.", "code", "method", "host"),
		asking: r.Histograms("rest_client_request_duration_seconds", "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
			[]float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}, "verb", "host"),
		watched: r.Counters("apiserver_watch_events_total", "[BETA] Number of events sent in watch clients", "group", "version", "resource"),
		sizes: r.Histograms("apiserver_watch_events_sizes", "[BETA] Watch event size distribution in bytes",
			prometheus.ExponentialBuckets(1024, 2, 8), "group", "version", "resource"),
		lists:     r.Counters("apiserver_storage_list_total", "[ALPHA] Number of LIST requests served from storage", indexed...),
		fetched:   r.Counters("apiserver_storage_list_fetched_objects_total", "[ALPHA] Number of objects read from storage in the course of serving a LIST request", indexed...),
		evaluated: r.Counters("apiserver_storage_list_evaluated_objects_total", "[ALPHA] Number of objects tested in the course of serving a LIST request from storage", stored...),
		returned:  r.Counters("apiserver_storage_list_returned_objects_total", "[ALPHA] Number of objects returned for a LIST request from storage", stored...),
		deprecated: r.gauges("apiserver_requested_deprecated_apis", "[STABLE] Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.",
			"group", "version", "resource", "subresource", "removed_release"),
	}
	a.handshakes.WithLabelValues().Add(0)
	return a
}

// timed counts something, and how long it took.
type timed struct {
	total prometheus.Counter
	took  prometheus.Observer
}

func timedBy(total *prometheus.CounterVec, took *prometheus.HistogramVec) func(label string) timed {
	return func(label string) timed { return timed{total.WithLabelValues(label), took.WithLabelValues(label)} }
}

func (t timed) observe(took time.Duration) {
	t.total.Inc()
	t.took.Observe(took.Seconds())
}

// Authenticated counts an attempt to say who one is: that of a user, or one that
// has failed.
func (a *Access) Authenticated(user string, ok bool, err error, took time.Duration) {
	result := "failure"
	switch {
	case err != nil:
		result = "error"
	case ok:
		result = "success"
		a.users.of(shortName(user)).Inc()
	}
	a.known.of(result).observe(took)
}

// shortName is a user as far as users are told apart: there is no end of them.
func shortName(user string) string {
	switch user {
	case "admin", "client", "kube_proxy", "kubelet", "system:serviceaccount:kube-system:default":
		return user
	}
	if strings.Contains(user, "@") {
		return "email_id"
	}
	return "other"
}

// Authorized counts a decision: allowed, denied, no-opinion or error.
func (a *Access) Authorized(result string, took time.Duration) {
	a.allowed.of(result).observe(took)
}

// Certificate notes how long the certificate that a client was known by is still
// good.
func (a *Access) Certificate(c *x509.Certificate) {
	a.certificates.WithLabelValues().Observe(time.Until(c.NotAfter).Seconds())
}

// Handshake counts a connection that came to nothing.
func (a *Access) Handshake() { a.handshakes.WithLabelValues().Inc() }

// Asked counts a request that the server has made itself, of a host that it knows.
func (a *Access) Asked(method, host string, status int, took time.Duration) {
	a.asked.WithLabelValues(strconv.Itoa(code(status)), method, host).Inc()
	a.asking.WithLabelValues(method, host).Observe(took.Seconds())
}

// Watched returns what counts the events of a watch.
func (a *Access) Watched(group, version, resource string) func(bytes int) {
	total, sizes := a.watched.WithLabelValues(group, version, resource), a.sizes.WithLabelValues(group, version, resource)
	return func(bytes int) {
		total.Inc()
		sizes.Observe(float64(bytes))
	}
}

// Listed counts a list: how many objects were looked at, and how many of them
// are in the answer.
func (a *Access) Listed(group, resource string, evaluated, returned int) {
	const index, storage = "", "watchcache" // what is listed is in memory
	a.lists.WithLabelValues(group, resource, index, storage).Inc()
	a.fetched.WithLabelValues(group, resource, index, storage).Add(float64(evaluated))
	a.evaluated.WithLabelValues(group, resource, storage).Add(float64(evaluated))
	a.returned.WithLabelValues(group, resource, storage).Add(float64(returned))
}

// Deprecated notes that a version was asked for of which the warning says that
// it goes.
func (a *Access) Deprecated(group, version, resource, subresource, warning string) {
	_, removed, _ := strings.Cut(warning, "unavailable in v")
	removed, _, _ = strings.Cut(removed, "+")
	a.deprecated.WithLabelValues(group, version, resource, subresource, removed).Set(1)
}
