package controlplane

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/apikeel/kelson/audit"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/flow"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/webhook"
)

// measuring makes the metrics of the server, and the pages for those who want to
// look into it.
func (a *assembly) measuring() {
	a.slis = metrics.NewAlone()
	a.outer.Checks = metrics.NewHealth(a.slis)
	a.outer.Metrics = metrics.NewRequests(a.registry, a.isKnown)
	a.resources.Metrics = a.outer.Metrics
	a.registry.RegisterLater(func() []prometheus.Collector { return []prometheus.Collector{newState(a), memoryMetrics{a.Memory}} })
	if a.Flow.Observe == nil {
		a.Flow.Observe = flowObservers(a.measured)
	}
}

// called counts a request to a webhook.
func (a *assembly) called(c webhook.Call) {
	a.outer.Metrics.Asked(http.MethodPost, c.Host, c.Status, c.Took, c.Sent, c.Received)
}

// isKnown reports whether there is such a resource: the number of series is bounded
// by that.
func (a *assembly) isKnown(i *request.Info) bool {
	served, ok := a.catalogs.get().Lookup(i.Group, i.Version, i.Resource)
	if !ok || i.Subresource == "" {
		return ok
	}
	return served.Subresource(i.Subresource) != nil
}

// state is a prometheus.Collector of what is there to be counted anyway.
type state struct {
	a     *assembly
	descs descriptions
}

func newState(a *assembly) *state { return &state{a: a, descs: stateDescriptions()} }

// descriptions are the descriptors of metrics, by name.
type descriptions map[string]*prometheus.Desc

// stateDescriptions are the descriptors of the metrics of a state. All servers of a process share them.
var stateDescriptions = sync.OnceValue(func() descriptions {
	s := descriptions{}
	kind := []string{"group", "resource"}
	for _, d := range []struct {
		name, help string
		labels     []string
	}{
		{"apiserver_current_inflight_requests", "[STABLE] Maximal number of currently used inflight request limit of this apiserver per request kind in last second.", []string{"request_kind"}},
		{"apiserver_current_inqueue_requests", "[ALPHA] Maximal number of queued requests in this apiserver per request kind in last second.", []string{"request_kind"}},
		{"apiserver_storage_events_received_total", "[BETA] Number of etcd events received split by kind.", kind},
		{"apiserver_watch_cache_events_received_total", "[ALPHA] Counter of events received in watch cache broken by resource type.", kind},
		{"apiserver_watch_cache_events_dispatched_total", "[ALPHA] Counter of events dispatched in watch cache broken by resource type.", kind},
		{"apiserver_init_events_total", "[ALPHA] Counter of init events processed in watch cache broken by resource type.", kind},
		{"apiserver_watch_cache_initializations_total", "[ALPHA] Counter of watch cache initializations broken by resource type.", kind},
		{"apiserver_watch_cache_resource_version", "[ALPHA] Current resource version of watch cache broken by resource type. This is truncated to the 15 least significant digits.", kind},
		{"apiserver_watch_cache_consistent_read_total", "[ALPHA] Counter for consistent reads from cache.", []string{"group", "resource", "success", "fallback"}},
		{"watch_cache_capacity", "[ALPHA] Total capacity of watch cache broken by resource type.", kind},
		{"apiserver_resource_objects", "[ALPHA] Number of stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1.", kind},
		{"apiserver_resource_size_estimate_bytes", "[ALPHA] Estimated size of stored objects in database. Estimate is based on sum of last observed sizes of serialized objects. In case of a fetching error, the value will be -1.", kind},
		{"apiserver_storage_size_bytes", "[STABLE] Size of the storage database file physically allocated in bytes.", []string{"storage_cluster_id"}},
		{"kelson_storage_connections", "[ALPHA] Connections to the database of which reads share a pool, by state; max is how many there may be.", []string{"storage_cluster_id", "state"}},
		{"kelson_storage_connections_waiting", "[ALPHA] Reads that wait for a connection to the database.", []string{"storage_cluster_id"}},
		{"kelson_storage_connections_waited_total", "[ALPHA] Reads that had to wait for a connection to the database.", []string{"storage_cluster_id"}},
		{"kelson_storage_connections_refused_total", "[ALPHA] Reads that got no connection to the database: too many waited, or none was free in time.", []string{"storage_cluster_id"}},
		{"kube_apiserver_clusterip_allocator_allocated_ips", "[ALPHA] Gauge measuring the number of allocated IPs for Services", []string{"cidr"}},
		{"kube_apiserver_clusterip_allocator_available_ips", "[ALPHA] Gauge measuring the number of available IPs for Services", []string{"cidr"}},
		{"kube_apiserver_nodeport_allocator_allocated_ports", "[ALPHA] Gauge measuring the number of allocated NodePorts for Services", nil},
		{"kube_apiserver_nodeport_allocator_available_ports", "[ALPHA] Gauge measuring the number of available NodePorts for Services", nil},
		{"aggregator_unavailable_apiservice", "[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.", []string{"name"}},
		{"kubernetes_build_info", "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
			[]string{"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"}},
		{"version_info", "[ALPHA] Provides the compatibility version info of the component. The component label is the name of the component, usually kube, but is relevant for aggregated-apiservers.", []string{"component", "binary", "emulation", "min_compat"}},
		{"kubernetes_feature_enabled", "[BETA] This metric records the data about the stage and enablement of a k8s feature.", []string{"name", "stage"}},
		{"apiserver_audit_level_total", "[ALPHA] Counter of policy levels for audit events (1 per request).", []string{"level"}},
		{"apiserver_audit_error_total", "[ALPHA] Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected by the error.", []string{"plugin"}},
		{"apiserver_audit_event_total", "[ALPHA] Counter of audit events generated and sent to the audit backend.", nil},
		{"apiserver_audit_requests_rejected_total", "[ALPHA] Counter of apiserver requests rejected due to an error in audit logging backend.", nil},
	} {
		s.describe(d.name, d.help, d.labels...)
	}
	s.describeFlow()
	return s
})

func (s descriptions) describe(name, help string, labels ...string) {
	s[name] = prometheus.NewDesc(name, help, labels, nil)
}

// statusTimeout is how long a scrape waits for a store that does not answer.
const statusTimeout = 2 * time.Second

// collectStorage collects what a store says of itself.
func collectStorage(b storage.Backend, id string, gauge, counter func(name string, value float64, labels ...string)) {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	status, err := b.Status(ctx)
	if err == nil {
		gauge("apiserver_storage_size_bytes", float64(status.SizeBytes), id)
	}
	if c := status.Connections; c != nil {
		gauge("kelson_storage_connections", float64(c.Used), id, "used")
		gauge("kelson_storage_connections", float64(c.Idle), id, "idle")
		gauge("kelson_storage_connections", float64(c.Max), id, "max")
		gauge("kelson_storage_connections_waiting", float64(c.Waiting), id)
		counter("kelson_storage_connections_waited_total", float64(c.Waited), id)
		counter("kelson_storage_connections_refused_total", float64(c.Refused), id)
	}
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
		s.collectFlow(f, to, gauge, counter)
	}
	if f, ok := s.a.outer.Flow.(*flow.InFlight); ok {
		reading, writing := f.Peaks()
		gauge("apiserver_current_inflight_requests", float64(reading), "readOnly")
		gauge("apiserver_current_inflight_requests", float64(writing), "mutating")
	}
	s.collectCaches(gauge, counter)
	s.a.allocator.collect(gauge)
	for _, group := range s.a.catalogs.get().Groups() {
		seen := map[string]bool{}
		for i := range group.Versions {
			for _, served := range group.Versions[i].Resources {
				def := served.Definition
				if seen[def.Resource] {
					continue
				}
				seen[def.Resource] = true
				if of := size(s.a.resources, def.Group, def.Resource); of.Count > 0 {
					gauge("apiserver_resource_objects", float64(of.Count), def.Group, def.Resource)
					gauge("apiserver_resource_size_estimate_bytes", float64(of.Count*of.AverageBytes), def.Group, def.Resource)
				}
			}
		}
	}
	for i, p := range s.a.places.all {
		collectStorage(p.backend, fmt.Sprintf("etcd-%d", i), gauge, counter) // whatever it is
	}
	var written audit.Stats
	if s.a.audit != nil {
		written = s.a.audit.Stats()
	}
	for level, n := range written.Levels {
		if n > 0 {
			counter("apiserver_audit_level_total", float64(n), string(level))
		}
	}
	for plugin, n := range written.Dropped {
		if n > 0 {
			counter("apiserver_audit_error_total", float64(n), plugin)
		}
	}
	counter("apiserver_audit_event_total", float64(written.Events))
	counter("apiserver_audit_requests_rejected_total", float64(written.Rejected))
	if s.a.aggregator != nil {
		for name, available := range s.a.aggregator.Available() {
			gauge("aggregator_unavailable_apiservice", number(!available), name)
		}
	}
	for _, g := range s.a.Gates.States() {
		if g.Stage == features.GA {
			g.Stage = "" // as Kubernetes has it
		}
		gauge("kubernetes_feature_enabled", number(g.Enabled), g.Name, g.Stage)
	}
	v := s.a.version()
	binary, _, _ := strings.Cut(strings.TrimPrefix(v.GitVersion, "v"), "+")
	gauge("version_info", 1, "kube", binary, v.EmulationMajor+"."+v.EmulationMinor, v.MinCompatibilityMajor+"."+v.MinCompatibilityMinor)
	gauge("kubernetes_build_info", 1, v.Major, v.Minor, v.GitVersion, v.GitCommit, v.GitTreeState, v.BuildDate, v.GoVersion, v.Compiler, v.Platform)
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// collectCaches tells of what is in memory, under the names of kube-apiserver's watch
// cache.
func (s *state) collectCaches(gauge, counter func(name string, value float64, labels ...string)) {
	const digits = 1e15 // of a revision that a float64 holds
	collect := func(def *resource.Definition, c store.CacheStats) {
		group, resource := def.Group, def.Resource
		gauge("apiserver_watch_cache_resource_version", float64(c.Revision%digits), group, resource)
		counter("apiserver_watch_cache_initializations_total", float64(c.Loads), group, resource)
		gauge("watch_cache_capacity", float64(c.Capacity), group, resource)
		if c.Received > 0 {
			counter("apiserver_storage_events_received_total", float64(c.Received), group, resource)
			counter("apiserver_watch_cache_events_received_total", float64(c.Received), group, resource)
			counter("apiserver_watch_cache_events_dispatched_total", float64(c.Received), group, resource)
		}
		if c.Initial > 0 {
			counter("apiserver_init_events_total", float64(c.Initial), group, resource)
		}
		if c.Consistent > 0 {
			counter("apiserver_watch_cache_consistent_read_total", float64(c.Consistent), group, resource, "true", "false")
		}
		if c.Failed > 0 {
			counter("apiserver_watch_cache_consistent_read_total", float64(c.Failed), group, resource, "false", "false")
		}
	}
	for _, p := range s.a.places.all {
		p.objects.Caches(collect)
	}
}
