package controlplane

import (
	"crypto/tls"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/yaml"
)

// dashboards has what is asked of a kube-apiserver by the dashboards, recording rules
// and alerts of the Kubernetes mixin, and by others that are in wide use. In front of
// a query there is a ! if a server that is well has no data for it.
const dashboards = `
sum by (verb, code) (rate(apiserver_request_total{job="kube-apiserver",verb=~"LIST|GET"}[5m]))
sum by (resource, code) (rate(apiserver_request_total{job="kube-apiserver",verb=~"POST|PUT|PATCH|DELETE",code=~"2.."}[5m]))
!sum by (code) (rate(apiserver_request_total{job="kube-apiserver",verb=~"POST|PUT|PATCH|DELETE",code=~"5.."}[1h]))
sum by (cluster, code, resource) (rate(apiserver_request_total{job="kube-apiserver",verb=~"LIST|GET"}[5m]))
sum(rate(apiserver_request_sli_duration_seconds_count{job="kube-apiserver",verb=~"POST|PUT|PATCH|DELETE",subresource!~"proxy|attach|log|exec|portforward"}[5m]))
sum(rate(apiserver_request_sli_duration_seconds_bucket{job="kube-apiserver",verb=~"LIST|GET",subresource!~"proxy|attach|log|exec|portforward",scope=~"resource|",le="1"}[5m]))
sum(rate(apiserver_request_sli_duration_seconds_bucket{job="kube-apiserver",verb=~"LIST|GET",subresource!~"proxy|attach|log|exec|portforward",scope="namespace",le="5"}[5m]))
sum(rate(apiserver_request_sli_duration_seconds_bucket{job="kube-apiserver",verb=~"LIST|GET",subresource!~"proxy|attach|log|exec|portforward",scope="cluster",le="30"}[5m]))
histogram_quantile(0.99, sum by (le, resource) (rate(apiserver_request_sli_duration_seconds_bucket{job="kube-apiserver",verb=~"LIST|GET"}[5m])))
histogram_quantile(0.99, sum by (le, verb, group, version, scope, component) (rate(apiserver_request_duration_seconds_bucket{verb!="WATCH",dry_run=""}[5m])))
sum(rate(apiserver_request_duration_seconds_sum{verb!~"WATCH|CONNECT"}[5m]))
sum(rate(apiserver_request_duration_seconds_count{verb!~"WATCH|CONNECT"}[5m]))
!sum by (component) (rate(apiserver_request_terminations_total{job="kube-apiserver"}[10m]))
sum by (request_kind) (apiserver_current_inflight_requests)
sum by (request_kind) (apiserver_current_inqueue_requests)
sum by (verb, resource, group) (apiserver_longrunning_requests{verb="WATCH"})
sum(rate(apiserver_response_sizes_sum{verb="LIST"}[5m]))
histogram_quantile(0.99, sum by (le, resource) (rate(apiserver_response_sizes_bucket{verb=~"LIST|GET"}[5m])))
histogram_quantile(0.99, sum by (le, resource, verb) (rate(apiserver_request_body_size_bytes_bucket{group=""}[5m])))
apiserver_requested_deprecated_apis{removed_release!="1.0"} * on (group, version, resource) group_left () sum by (group, version, resource) (rate(apiserver_request_total{code="200"}[10m]))
histogram_quantile(0.01, sum by (job, le) (rate(apiserver_client_certificate_expiration_seconds_bucket{job="kube-apiserver"}[5m]))) < 604800
apiserver_client_certificate_expiration_seconds_count{job="kube-apiserver"} > 0
sum by (name, cluster) (increase(aggregator_unavailable_apiservice{name!=""}[10m]))
sum(rate(apiserver_selfrequest_total{verb!=""}[5m]))
rate(apiserver_tls_handshake_errors_total[5m])
sum by (filter) (rate(apiserver_request_filter_duration_seconds_bucket{filter="authentication"}[5m]))
histogram_quantile(0.99, sum by (le, name, type, operation, rejected) (rate(apiserver_admission_controller_admission_duration_seconds_bucket{type="admit"}[5m])))
histogram_quantile(0.99, sum by (le, type, operation) (rate(apiserver_admission_step_admission_duration_seconds_bucket{rejected="false"}[5m])))
!sum by (name, error_type) (rate(apiserver_admission_webhook_rejection_count[5m]))
!histogram_quantile(0.99, sum by (le, name) (rate(apiserver_admission_webhook_admission_duration_seconds_bucket[5m])))
sum by (priority_level) (apiserver_flowcontrol_current_inqueue_requests{flow_schema!=""})
sum by (flow_schema, priority_level) (rate(apiserver_flowcontrol_dispatched_requests_total[5m]))
!sum by (flow_schema, priority_level, reason) (rate(apiserver_flowcontrol_rejected_requests_total[5m]))
sum by (priority_level) (apiserver_flowcontrol_current_executing_requests) / sum by (priority_level) (apiserver_flowcontrol_nominal_limit_seats)
sum by (priority_level) (apiserver_flowcontrol_current_executing_seats) / sum by (priority_level) (apiserver_flowcontrol_current_limit_seats)
histogram_quantile(0.99, sum by (le, flow_schema, priority_level, execute) (rate(apiserver_flowcontrol_request_wait_duration_seconds_bucket{execute="true"}[5m])))
histogram_quantile(0.99, sum by (le, flow_schema, priority_level, type) (rate(apiserver_flowcontrol_request_execution_seconds_bucket{type="regular"}[5m])))
sum by (priority_level) (rate(apiserver_flowcontrol_priority_level_seat_utilization_sum{phase="executing"}[5m])) / sum by (priority_level) (rate(apiserver_flowcontrol_priority_level_seat_utilization_count{phase="executing"}[5m]))
sum by (priority_level) (rate(apiserver_flowcontrol_priority_level_request_utilization_bucket{phase="waiting"}[5m]))
histogram_quantile(0.99, sum by (le, flow_schema) (rate(apiserver_flowcontrol_request_queue_length_after_enqueue_bucket{priority_level="global-default"}[5m])))
histogram_quantile(0.99, sum by (le, flow_schema) (rate(apiserver_flowcontrol_work_estimated_seats_bucket{priority_level!=""}[5m])))
sum by (flow_schema) (rate(apiserver_flowcontrol_watch_count_samples_sum{priority_level!=""}[5m]))
apiserver_flowcontrol_seat_fair_frac + on () group_left () sum by (priority_level) (apiserver_flowcontrol_target_seats)
sum by (priority_level) (apiserver_flowcontrol_demand_seats_high_watermark) + sum by (priority_level) (apiserver_flowcontrol_demand_seats_smoothed)
apiserver_flowcontrol_lower_limit_seats{priority_level="system"} + apiserver_flowcontrol_upper_limit_seats{priority_level="system"}
histogram_quantile(0.99, sum by (le, operation, resource, group) (rate(etcd_request_duration_seconds_bucket{operation="create"}[5m])))
sum by (operation) (rate(etcd_requests_total{resource!=""}[5m]))
apiserver_storage_size_bytes{storage_cluster_id="etcd-0"}
topk(20, max by (resource, group) (apiserver_resource_objects))
topk(20, max by (resource, group) (apiserver_resource_size_estimate_bytes))
sum by (resource, group, storage) (rate(apiserver_storage_list_returned_objects_total{storage="watchcache"}[5m]))
sum by (resource, group) (rate(apiserver_storage_events_received_total[5m]))
sum by (resource, group) (rate(apiserver_watch_cache_events_received_total[5m])) - sum by (resource, group) (rate(apiserver_watch_cache_events_dispatched_total[5m]))
sum by (resource, group) (apiserver_watch_cache_initializations_total) + sum by (resource, group) (watch_cache_capacity)
max by (resource, group) (apiserver_watch_cache_resource_version)
sum by (group, version, resource) (rate(apiserver_watch_events_total[5m]))
sum by (group, version, resource) (rate(apiserver_watch_events_sizes_sum[5m]))
histogram_quantile(0.99, sum by (le, group, version, resource, scope) (rate(apiserver_watch_list_duration_seconds_bucket[5m])))
rate(apiserver_audit_event_total[5m]) + rate(apiserver_audit_requests_rejected_total[5m])
sum by (result) (rate(authentication_attempts[5m])) + sum by (result) (rate(authentication_duration_seconds_count[5m]))
sum by (username) (rate(authenticated_user_requests[5m]))
sum by (result) (rate(authorization_attempts_total[5m])) + sum by (result) (rate(authorization_duration_seconds_count[5m]))
sum by (type, name, decision) (rate(apiserver_authorization_decisions_total{decision="allowed"}[5m]))
sum by (status) (rate(authentication_token_cache_request_total[5m]))
rate(serviceaccount_stale_tokens_total[5m]) + rate(serviceaccount_legacy_tokens_total[5m])
sum by (name) (rate(workqueue_adds_total{job="kube-apiserver"}[5m]))
sum by (name) (workqueue_depth{job="kube-apiserver"})
histogram_quantile(0.99, sum by (name, le) (rate(workqueue_queue_duration_seconds_bucket{job="kube-apiserver"}[5m])))
sum by (name) (workqueue_unfinished_work_seconds) + sum by (name) (workqueue_longest_running_processor_seconds)
sum by (code, method, host) (rate(rest_client_requests_total{code=~"2.."}[5m]))
histogram_quantile(0.99, sum by (verb, host, le) (rate(rest_client_request_duration_seconds_bucket{job="kube-apiserver"}[5m])))
sum by (cidr) (kube_apiserver_clusterip_allocator_allocated_ips) / (sum by (cidr) (kube_apiserver_clusterip_allocator_allocated_ips) + sum by (cidr) (kube_apiserver_clusterip_allocator_available_ips))
kube_apiserver_nodeport_allocator_allocated_ports / (kube_apiserver_nodeport_allocator_allocated_ports + kube_apiserver_nodeport_allocator_available_ports)
count by (git_version, platform, go_version) (kubernetes_build_info{job="kube-apiserver"})
sum by (name, stage) (kubernetes_feature_enabled{stage="BETA"})
sum by (stability_level) (registered_metrics_total) + disabled_metrics_total + hidden_metrics_total
process_resident_memory_bytes{job="kube-apiserver"} + go_goroutines{job="kube-apiserver"}
rate(process_cpu_seconds_total{job="kube-apiserver"}[5m])
`

// selectors of a query: the metric, what its labels must be, and, before it, what it
// is grouped by.
var (
	selectorText = regexp.MustCompile(`(?:by \(([^)]*)\) \((?:[a-z]+\()?)?\b((?:apiserver|aggregator|authenticat|authoriz|etcd|workqueue|rest_client|kube_apiserver|kubernetes_|registered_|disabled_|hidden_|process_|go_|watch_cache|serviceaccount_|kelson_)[a-z0-9_]*)(?:\{([^}]*)\})?`)
	matcherText  = regexp.MustCompile(`([a-z_]+)(=~|!~|!=|=)"([^"]*)"`)
)

// TestDashboards: the queries of dashboards have data.
func TestDashboards(t *testing.T) {
	dir := t.TempDir()
	start(t, Config{DataDir: dir, Storage: StorageMemory})
	c := newClient(t, KubeconfigFile(dir))
	c.ready()
	const maps = "/api/v1/namespaces/default/configmaps"
	c.do(http.MethodPost, maps, `{"metadata":{"name":"a"}}`)
	c.do(http.MethodGet, maps+"/a", "")
	c.do(http.MethodGet, maps, "")
	c.do(http.MethodGet, maps+"?watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "")
	c.do(http.MethodGet, "/api/v1/configmaps", "")
	c.do(http.MethodGet, "/api/v1/componentstatuses", "")
	c.do(http.MethodDelete, maps+"/a", "")
	// Somebody who is not exempt, and has a token.
	_, answer := c.do(http.MethodPost, "/api/v1/namespaces/default/serviceaccounts/default/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)
	_, token, _ := strings.Cut(answer, `"token":"`)
	token, _, _ = strings.Cut(token, `"`)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url+"/apis", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	req = req.Clone(t.Context())
	req.Header = http.Header{"Impersonate-User": {"joe"}}
	if resp, err = c.http.Do(req); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()

	families := c.scrape()
	for _, query := range slices.Concat(strings.Split(dashboards, "\n"), ownQueries(t)) {
		query, empty := strings.CutPrefix(strings.TrimSpace(query), "!")
		if query == "" {
			continue
		}
		found := selectorText.FindAllStringSubmatch(query, -1)
		if len(found) == 0 {
			t.Errorf("%s: asks for nothing", query)
		}
		for _, s := range found {
			if problem := answers(families, s[2], s[3], s[1], empty); problem != "" {
				t.Errorf("%s: %s", query, problem)
			}
		}
	}
}

// ownQueries returns the queries of the dashboard and the alerts in deploy/monitoring. A
// server that is well has no data for some of them.
func ownQueries(t *testing.T) (queries []string) {
	t.Helper()
	const dir = "../deploy/monitoring/"
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	var alerts struct {
		Groups []struct{ Rules []struct{ Expr string } }
	}
	for file, into := range map[string]any{"dashboard.json": &dashboard, "alerts.yaml": &alerts} {
		text, err := os.ReadFile(dir + file)
		if err == nil {
			err = yaml.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			queries = append(queries, target.Expr)
		}
	}
	for _, g := range alerts.Groups {
		for _, r := range g.Rules {
			if !strings.HasPrefix(r.Expr, "up{") { // which is Prometheus' own
				queries = append(queries, r.Expr)
			}
		}
	}
	if len(queries) < 20 {
		t.Fatalf("got %d queries in %s, want those of a dashboard and of alerts", len(queries), dir)
	}
	for i, query := range queries {
		if strings.Contains(query, "reject") || strings.Contains(query, "webhook") || strings.Contains(query, `code=~"`) {
			queries[i] = "!" + query
		}
	}
	return queries
}

// TestAlerts: what the alerts say, and when, by Prometheus' own program.
func TestAlerts(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not on PATH (Debian: prometheus)")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = "../deploy/monitoring"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// answers says what is wrong with the data of a selector, which may be empty.
func answers(families map[string]*dto.MetricFamily, metric, matchers, grouped string, empty bool) string {
	family := families[metric]
	for _, end := range []string{"_bucket", "_sum", "_count"} {
		if family == nil {
			family = families[strings.TrimSuffix(metric, end)]
		}
	}
	if family == nil {
		if empty {
			return ""
		}
		return "there is no " + metric
	}
	wants := matcherText.FindAllStringSubmatch(matchers, -1)
	for _, name := range strings.Split(grouped, ",") {
		wants = append(wants, []string{"", strings.TrimSpace(name), "", ""})
	}
	matched := false
	for _, m := range family.Metric {
		labels := map[string]string{}
		for _, l := range m.Label {
			labels[l.GetName()] = l.GetValue()
		}
		fits := true
		for _, w := range wants {
			switch w[1] {
			case "", "le", "job", "cluster", "instance": // of buckets, and of Prometheus
				continue
			}
			value, ok := labels[w[1]]
			if !ok {
				return metric + " has no label " + w[1]
			}
			switch w[2] {
			case "=":
				fits = fits && value == w[3]
			case "!=":
				fits = fits && value != w[3]
			case "=~", "!~":
				fits = fits && regexp.MustCompile("^(?:"+w[3]+")$").MatchString(value) == (w[2] == "=~")
			}
		}
		matched = matched || fits
	}
	if !matched && !empty {
		return "no " + metric + " has " + matchers
	}
	return ""
}
