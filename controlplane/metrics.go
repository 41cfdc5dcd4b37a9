package controlplane

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/audit"
	"github.com/apikeel/kelson/flow"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
)

// measuring makes the metrics of the server, and the pages for those who want to
// look into it.
func (a *assembly) measuring() {
	a.slis = metrics.NewAlone()
	a.outer.Checks = metrics.NewHealth(a.slis)
	a.outer.Metrics = metrics.NewRequests(a.registry, a.isKnown)
	a.resources.Metrics = a.outer.Metrics
	a.registry.MustRegister(newState(a))
	if a.Flow.Observe == nil {
		a.Flow.Observe = observers(a.registry)
	}
}

// isKnown reports whether there is something to be asked for: the number of
// series is bounded by that.
func (a *assembly) isKnown(i *request.Info) bool {
	if !i.IsResource {
		switch i.Path {
		case "/healthz", "/livez", "/readyz", "/metrics", "/version":
			return true
		}
		return false
	}
	served, ok := a.catalogs.get().Lookup(i.Group, i.Version, i.Resource)
	if !ok || i.Subresource == "" {
		return ok
	}
	return served.Subresource(i.Subresource) != nil
}

// observers measure requests in flow control.
func observers(r *metrics.Registry) func(schema, level string) flow.Observers {
	seconds := []float64{0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30}
	waited := r.Histograms("apiserver_flowcontrol_request_wait_duration_seconds", "[BETA] Length of time a request spent waiting in its queue",
		seconds, "priority_level", "flow_schema", "execute")
	worked := r.Histograms("apiserver_flowcontrol_request_execution_seconds", "[ALPHA] Duration of initial stage (for a WATCH) or any (for a non-WATCH) stage of request execution in the API Priority and Fairness subsystem",
		seconds, "priority_level", "flow_schema", "type")
	return func(schema, level string) flow.Observers {
		return flow.Observers{
			Waited: late(waited, level, schema, "true"), Refused: late(waited, level, schema, "false"),
			Worked: late(worked, level, schema, "regular"), Began: late(worked, level, schema, "watch"),
		}
	}
}

// lateObserver makes a series when there is something to observe, and again when
// the metrics were reset.
type lateObserver struct {
	vec    *prometheus.HistogramVec
	labels []string
}

func late(vec *prometheus.HistogramVec, labels ...string) lateObserver {
	return lateObserver{vec, labels}
}

// Observe implements flow.Observer.
func (o lateObserver) Observe(v float64) { o.vec.WithLabelValues(o.labels...).Observe(v) }

// state is a prometheus.Collector of what is there to be counted anyway.
type state struct {
	a     *assembly
	descs map[string]*prometheus.Desc
}

func newState(a *assembly) *state {
	s := &state{a: a, descs: map[string]*prometheus.Desc{}}
	level, both := []string{"priority_level"}, []string{"priority_level", "flow_schema"}
	for _, d := range []struct {
		name, help string
		labels     []string
	}{
		{"apiserver_current_inflight_requests", "[STABLE] Maximal number of currently used inflight request limit of this apiserver per request kind in last second.", []string{"request_kind"}},
		{"apiserver_current_inqueue_requests", "[ALPHA] Maximal number of queued requests in this apiserver per request kind in last second.", []string{"request_kind"}},
		{"apiserver_flowcontrol_nominal_limit_seats", "[BETA] Nominal number of execution seats configured for each priority level", level},
		{"apiserver_flowcontrol_lower_limit_seats", "[ALPHA] Configured lower bound on number of execution seats available to each priority level", level},
		{"apiserver_flowcontrol_upper_limit_seats", "[ALPHA] Configured upper bound on number of execution seats available to each priority level", level},
		{"apiserver_flowcontrol_current_limit_seats", "[ALPHA] current derived number of execution seats available to each priority level", level},
		{"apiserver_flowcontrol_demand_seats_high_watermark", "[ALPHA] High watermark, over last adjustment period, of demand_seats", level},
		{"apiserver_flowcontrol_demand_seats_average", "[ALPHA] Time-weighted average, over last adjustment period, of demand_seats", level},
		{"apiserver_flowcontrol_demand_seats_stdev", "[ALPHA] Time-weighted standard deviation, over last adjustment period, of demand_seats", level},
		{"apiserver_flowcontrol_demand_seats_smoothed", "[ALPHA] Smoothed seat demands", level},
		{"apiserver_flowcontrol_current_r", "[ALPHA] R(time of last change)", level},
		{"apiserver_flowcontrol_dispatched_requests_total", "[BETA] Number of requests executed by API Priority and Fairness subsystem", both},
		{"apiserver_flowcontrol_rejected_requests_total", "[BETA] Number of requests rejected by API Priority and Fairness subsystem", append(both[:2:2], "reason")},
		{"apiserver_flowcontrol_current_inqueue_requests", "[BETA] Number of requests currently pending in queues of the API Priority and Fairness subsystem", both},
		{"apiserver_flowcontrol_current_inqueue_seats", "[ALPHA] Number of seats currently pending in queues of the API Priority and Fairness subsystem", both},
		{"apiserver_flowcontrol_current_executing_requests", "[BETA] Number of requests in initial (for a WATCH) or any (for a non-WATCH) execution stage in the API Priority and Fairness subsystem", both},
		{"apiserver_flowcontrol_current_executing_seats", "[BETA] Concurrency (number of seats) occupied by the currently executing (initial stage for a WATCH, any stage otherwise) requests in the API Priority and Fairness subsystem", both},
		{"apiserver_resource_objects", "[ALPHA] Number of stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1.", []string{"group", "resource"}},
		{"apiserver_resource_size_estimate_bytes", "[ALPHA] Estimated size of stored objects in database. Estimate is based on sum of last observed sizes of serialized objects. In case of a fetching error, the value will be -1.", []string{"group", "resource"}},
		{"apiserver_storage_size_bytes", "[STABLE] Size of the storage database file physically allocated in bytes.", []string{"storage_cluster_id"}},
		{"aggregator_unavailable_apiservice", "[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.", []string{"name"}},
		{"kubernetes_build_info", "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
			[]string{"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"}},
		{"apiserver_audit_event_total", "[ALPHA] Counter of audit events generated and sent to the audit backend.", nil},
		{"apiserver_audit_requests_rejected_total", "[ALPHA] Counter of apiserver requests rejected due to an error in audit logging backend.", nil},
	} {
		s.descs[d.name] = prometheus.NewDesc(d.name, d.help, d.labels, nil)
	}
	return s
}

// Describe implements prometheus.Collector.
func (s *state) Describe(to chan<- *prometheus.Desc) {
	for _, d := range s.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s *state) Collect(to chan<- prometheus.Metric) {
	send := func(kind prometheus.ValueType) func(name string, value float64, labels ...string) {
		return func(name string, value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(s.descs[name], kind, value, labels...)
		}
	}
	gauge, counter := send(prometheus.GaugeValue), send(prometheus.CounterValue)
	if f := s.a.flow; f != nil {
		gauge("apiserver_current_inflight_requests", float64(f.Working.Reading.Peak()), "readOnly")
		gauge("apiserver_current_inflight_requests", float64(f.Working.Writing.Peak()), "mutating")
		gauge("apiserver_current_inqueue_requests", float64(f.Waiting.Reading.Peak()), "readOnly")
		gauge("apiserver_current_inqueue_requests", float64(f.Waiting.Writing.Peak()), "mutating")
		collectLevels(f.Stats(), gauge, counter)
	}
	for _, group := range s.a.catalogs.get().Groups() {
		seen := map[string]bool{}
		for i := range group.Versions {
			for _, served := range group.Versions[i].Resources {
				def := served.Definition
				if seen[def.Resource] {
					continue
				}
				seen[def.Resource] = true
				if count, size := s.a.sizes(def.Group, def.Resource); count > 0 {
					gauge("apiserver_resource_objects", float64(count), def.Group, def.Resource)
					gauge("apiserver_resource_size_estimate_bytes", float64(count*size), def.Group, def.Resource)
				}
			}
		}
	}
	if status, err := s.a.backend.Status(context.Background()); err == nil {
		gauge("apiserver_storage_size_bytes", float64(status.SizeBytes), "etcd-0") // what there is first is called so
	}
	var written audit.Stats
	if s.a.audit != nil {
		written = s.a.audit.Stats()
	}
	counter("apiserver_audit_event_total", float64(written.Events))
	counter("apiserver_audit_requests_rejected_total", float64(written.Rejected))
	if s.a.aggregator != nil {
		for name, available := range s.a.aggregator.Available() {
			gauge("aggregator_unavailable_apiservice", number(!available), name)
		}
	}
	v := kelson.Version()
	gauge("kubernetes_build_info", 1, v.Major, v.Minor, v.GitVersion, v.GitCommit, v.GitTreeState, v.BuildDate, v.GoVersion, v.Compiler, v.Platform)
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func collectLevels(levels []flow.LevelStats, gauge, counter func(name string, value float64, labels ...string)) {
	for _, l := range levels {
		for name, value := range map[string]float64{
			"nominal_limit_seats": float64(l.Nominal), "lower_limit_seats": float64(l.Lowest), "upper_limit_seats": float64(l.Highest), "current_limit_seats": float64(l.Now),
			"demand_seats_high_watermark": float64(l.DemandHighest), "demand_seats_average": l.DemandAverage, "demand_seats_stdev": l.DemandDeviation,
			"demand_seats_smoothed": l.DemandSmoothed, "current_r": l.Virtual,
		} {
			gauge("apiserver_flowcontrol_"+name, value, l.Name)
		}
		for _, f := range l.Schemas {
			counter("apiserver_flowcontrol_dispatched_requests_total", float64(f.Dispatched), l.Name, f.Name)
			for why, n := range f.Refused {
				counter("apiserver_flowcontrol_rejected_requests_total", float64(n), l.Name, f.Name, why)
			}
			gauge("apiserver_flowcontrol_current_inqueue_requests", float64(f.Waiting), l.Name, f.Name)
			gauge("apiserver_flowcontrol_current_inqueue_seats", float64(f.SeatsWaiting), l.Name, f.Name)
			gauge("apiserver_flowcontrol_current_executing_requests", float64(f.Working), l.Name, f.Name)
			gauge("apiserver_flowcontrol_current_executing_seats", float64(f.Seats), l.Name, f.Name)
		}
	}
}
