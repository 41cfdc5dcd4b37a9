package metrics

import (
	"crypto/x509"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/apikeel/kelson/request"
)

// Access holds the metrics of authentication, authorization, handshakes, watches and
// lists.
type Access struct {
	users                     *byLabel[*Counter]
	known, allowed            *byLabel[timed]
	certificates              *Histograms
	self, handshakes, watched *Counters
	asked                     *Counters
	lists, fetched            *Counters
	evaluated, returned       *Counters
	deprecated                *Gauges
	asking, sent, received    *Histograms
	sizes                     *Histograms
	watchLists                *Histograms
	filters                   *[stages]atomic.Pointer[Histogram]
	impersonated              [2]timedVec // attempts, and the authorization checks of attempts
}

// timedVec is a counter and a histogram of durations with the same labels.
type timedVec struct {
	total *Counters
	took  *Histograms
}

func newAccess(r *Registry) Access {
	fast := prometheus.ExponentialBuckets(0.001, 2, 15)
	bytes := []float64{64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216}
	const minute, hour, day = 60, 3600, 24 * 3600
	stored, indexed := []string{"group", "resource", "storage"}, []string{"group", "resource", "index", "storage"}
	users := r.Counters("authenticated_user_requests", "[ALPHA] Counter of authenticated requests broken out by username.", "username")
	filters := r.Histograms("apiserver_request_filter_duration_seconds", "[ALPHA] Request filter latency distribution in seconds, for each filter type",
		[]float64{0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 5, 10, 15, 30}, "filter")
	a := Access{
		filters: &[stages]atomic.Pointer[Histogram]{},
		users:   remember(r, func(name string) *Counter { return users.WithLabelValues(name) }),
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
		sent:     r.Histograms("rest_client_request_size_bytes", "[ALPHA] Request size in bytes. Broken down by verb and host.", bytes, "verb", "host"),
		received: r.Histograms("rest_client_response_size_bytes", "[ALPHA] Response size in bytes. Broken down by verb and host.", bytes, "verb", "host"),
		watched:  r.Counters("apiserver_watch_events_total", "[BETA] Number of events sent in watch clients", "group", "version", "resource"),
		sizes: r.Histograms("apiserver_watch_events_sizes", "[BETA] Watch event size distribution in bytes",
			prometheus.ExponentialBuckets(1024, 2, 8), "group", "version", "resource"),
		watchLists: r.Histograms("apiserver_watch_list_duration_seconds", "[BETA] Response latency distribution in seconds for watch list requests broken by group, version, resource and scope.",
			[]float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300}, "group", "version", "resource", "scope"),
		lists:     r.Counters("apiserver_storage_list_total", "[ALPHA] Number of LIST requests served from storage", indexed...),
		fetched:   r.Counters("apiserver_storage_list_fetched_objects_total", "[ALPHA] Number of objects read from storage in the course of serving a LIST request", indexed...),
		evaluated: r.Counters("apiserver_storage_list_evaluated_objects_total", "[ALPHA] Number of objects tested in the course of serving a LIST request from storage", stored...),
		returned:  r.Counters("apiserver_storage_list_returned_objects_total", "[ALPHA] Number of objects returned for a LIST request from storage", stored...),
		deprecated: r.gauges("apiserver_requested_deprecated_apis", "[STABLE] Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.",
			"group", "version", "resource", "subresource", "removed_release"),
	}
	none := func() { a.handshakes.WithLabelValues().Add(0) }
	none()
	r.onReset(none)
	find := func() {
		for i, name := range [...]string{Authentication: "authentication", "audit", "constrainedimpersonation", "priorityandfairness", "authorization"} {
			if Stage(i) == NoStage {
				continue
			}
			a.filters[i].Store(filters.WithLabelValues(name))
		}
	}
	find()
	r.onReset(find)
	for i, what := range []struct{ name, of string }{
		{"apiserver_impersonation_attempts_", "impersonation attempts"},
		{"apiserver_impersonation_authorization_attempts_", "authorization checks made by the impersonation handler"},
	} {
		a.impersonated[i] = timedVec{
			r.Counters(what.name+"total", "[ALPHA] Total number of "+what.of+" split by mode and decision.", "mode", "decision"),
			r.Histograms(what.name+"duration_seconds", "[ALPHA] Latency of "+what.of+" in seconds split by mode and decision.", fast, "mode", "decision"),
		}
	}
	return a
}

// timed is one series of a timedVec.
type timed struct {
	total *Counter
	took  *Histogram
}

func timedBy(total *Counters, took *Histograms) func(label string) timed {
	return func(label string) timed { return timed{total.WithLabelValues(label), took.WithLabelValues(label)} }
}

func (t timed) observe(took time.Duration) {
	t.total.Inc()
	t.took.Observe(took.Seconds())
}

// Authenticated counts an authentication attempt by user and result.
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

// shortName returns the user label: a few well-known users and "other", since the
// number of users is unbounded.
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

// Stage is a measured stage of the request pipeline.
type Stage uint8

// The stages, in their order.
const (
	NoStage Stage = iota // not measured
	Authentication
	Audit
	Impersonation
	FlowControl
	Authorization
	stages
)

// Passed records how long a stage took before the next one began.
func (a *Access) Passed(s Stage, took time.Duration) { a.filters[s].Load().Observe(took.Seconds()) }

// Impersonated counts an impersonation attempt by mode and decision.
func (a *Access) Impersonated(mode string, allowed bool, took time.Duration) {
	a.impersonated[0].observe(took, mode, allowed)
}

// ImpersonationChecked counts one of the authorization checks of an impersonation.
func (a *Access) ImpersonationChecked(mode string, allowed bool, took time.Duration) {
	a.impersonated[1].observe(took, mode, allowed)
}

func (t *timedVec) observe(took time.Duration, mode string, allowed bool) {
	decision := "denied"
	if allowed {
		decision = "allowed"
	}
	t.total.WithLabelValues(mode, decision).Inc()
	t.took.WithLabelValues(mode, decision).Observe(took.Seconds())
}

// Certificate records the remaining lifetime of a client certificate.
func (a *Access) Certificate(c *x509.Certificate) {
	a.certificates.WithLabelValues().Observe(time.Until(c.NotAfter).Seconds())
}

// Handshake counts a failed TLS handshake.
func (a *Access) Handshake() { a.handshakes.WithLabelValues().Inc() }

// Asked records a request that the server itself has sent to a known host. A status of
// 0 is no answer; unknown sizes are negative.
func (a *Access) Asked(method, host string, status int, took time.Duration, sent, received int64) {
	result := "<error>"
	if status != 0 {
		result = strconv.Itoa(code(status))
	}
	a.asked.WithLabelValues(result, method, host).Inc()
	a.asking.WithLabelValues(method, host).Observe(took.Seconds())
	if sent >= 0 {
		a.sent.WithLabelValues(method, host).Observe(float64(sent))
	}
	if received >= 0 {
		a.Received(method, host, received)
	}
}

// Received records the size of an answer to a request of the server.
func (a *Access) Received(method, host string, bytes int64) {
	a.received.WithLabelValues(method, host).Observe(float64(bytes))
}

// Watched returns the function that counts the events of a watch.
func (a *Access) Watched(group, version, resource string) func(bytes int) {
	total, sizes := a.watched.WithLabelValues(group, version, resource), a.sizes.WithLabelValues(group, version, resource)
	return func(bytes int) {
		total.Inc()
		sizes.Observe(float64(bytes))
	}
}

// Listed records a list: the number of objects evaluated, and of those returned.
func (a *Access) Listed(group, resource string, evaluated, returned int) {
	const index, storage = "", "watchcache" // lists are served from memory
	a.lists.WithLabelValues(group, resource, index, storage).Inc()
	a.fetched.WithLabelValues(group, resource, index, storage).Add(float64(evaluated))
	a.evaluated.WithLabelValues(group, resource, storage).Add(float64(evaluated))
	a.returned.WithLabelValues(group, resource, storage).Add(float64(returned))
}

// WatchListed records how long a watch took to send its initial events.
func (a *Access) WatchListed(i *request.Info, took time.Duration) {
	a.watchLists.WithLabelValues(i.Group, i.Version, i.Resource, scope(i)).Observe(took.Seconds())
}

// Deprecated records a request for a deprecated version; the warning names the release
// that removes it.
func (a *Access) Deprecated(group, version, resource, subresource, warning string) {
	_, removed, _ := strings.Cut(warning, "unavailable in v")
	removed, _, _ = strings.Cut(removed, "+")
	a.deprecated.WithLabelValues(group, version, resource, subresource, removed).Set(1)
}
