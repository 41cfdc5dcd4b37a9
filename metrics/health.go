package metrics

// Health holds the metrics of health checks.
type Health struct {
	now   *Gauges
	total *Counters
}

// NewHealth registers the metrics of health checks. They are usually scraped alone
// (/metrics/slis), so they have a registry of their own.
func NewHealth(r *Registry) *Health {
	return &Health{
		now:   r.gauges("kubernetes_healthcheck", "[STABLE] This metric records the result of a single healthcheck.", "name", "type"),
		total: r.Counters("kubernetes_healthchecks_total", "[STABLE] This metric records the results of all healthcheck.", "name", "status", "type"),
	}
}

// Observe counts the result of a check for an endpoint: healthz, livez or readyz.
func (h *Health) Observe(endpoint, check string, ok bool) {
	value, status := 1.0, "success"
	if !ok {
		value, status = 0, "error"
	}
	h.now.WithLabelValues(check, endpoint).Set(value)
	h.total.WithLabelValues(check, status, endpoint).Inc()
}
