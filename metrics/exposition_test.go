package metrics

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfig(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, bad := file("good", `"metric_a,label": "x,y"`), file("bad", `ab: "x"`)
	for _, tt := range []struct {
		config Config
		want   string // of the error, "" if there is none
	}{
		{Config{ShowHidden: "1.36", Disabled: []string{"a", "b_c:d"}, Labels: map[string]string{"a,b": "1,2"}}, ""},
		{Config{LabelsFile: good}, ""},
		{Config{ShowHidden: "1.37"}, `metrics.showHiddenMetricsForVersion: Invalid value: "1.37": must be omitted or have the value '1.36'; only the previous minor version is allowed`},
		{Config{Disabled: []string{"a", "9x"}}, `metrics.disabledMetrics: Invalid value: ["a","9x"]: must be fully qualified metric names matching "^[a-zA-Z_:][a-zA-Z0-9_:]*$", got "9x"`},
		{Config{Labels: map[string]string{"ab": "1,2"}}, "metrics.allowListMapping: Invalid value: {\"ab\":\"1,2\"}: must have keys with format `metricName,labelName` where metricName matches"},
		{Config{LabelsFile: dir + "/none"}, `metrics.allowListMappingManifest: Invalid value: "` + dir + `/none": failed to read allow list manifest: open ` + dir + `/none: no such file or directory`},
		{Config{LabelsFile: bad}, "invalid allow list mapping in manifest: [metrics.allowListMappingManifest: Invalid value: {\"ab\":\"x\"}: must have keys"},
		{Config{Labels: map[string]string{"a,b": "1"}, LabelsFile: good}, `metrics: Invalid value: {"allowListMapping":{"a,b":"1"},"allowListMappingManifest":"` + good + `"}: cannot specify both allowListMapping and allowListMappingManifest`},
	} {
		err := tt.config.Complete("1.36")
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %s", tt.config, err, tt.want)
		}
	}
	c := Config{LabelsFile: good}
	if err := c.Complete("1.36"); err != nil || c.Labels["metric_a,label"] != "x,y" {
		t.Error(c, err)
	}
}

// TestLabels: values of labels that are not to be shown are counted together.
func TestLabels(t *testing.T) {
	r := New()
	r.Configure(Config{Labels: map[string]string{"apiserver_request_total,code": "200,201", "apiserver_request_duration_seconds,verb": "GET"}})
	m := NewRequests(r, known)
	for _, status := range []int{200, 200, 404, 409, 500} {
		send(t, m, "GET", "/api/v1/namespaces/d/pods/p", "", status)
		send(t, m, "POST", "/api/v1/namespaces/d/pods", "", status)
		send(t, m, "PUT", "/api/v1/namespaces/d/pods/p", "", status)
	}
	text := show(t, r)
	for _, want := range []string{
		`apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 2`,
		`apiserver_request_total{code="unexpected",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 3`,
		`apiserver_request_duration_seconds_count{component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="unexpected",version="v1"} 10`,
		`apiserver_request_duration_seconds_bucket{component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="unexpected",version="v1",le="+Inf"} 10`,
		`cardinality_enforcement_unexpected_categorizations_total 19`, `disabled_metrics_total 0`,
		`registered_metrics_total{deprecated_version="",stability_level="STABLE"} 5`,
	} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(text, `code="404"`) {
		t.Error("a value is shown that is not to be")
	}
}

// TestHidden: metrics that have other names now are shown under the old ones to those
// who ask for them.
func TestHidden(t *testing.T) {
	for _, shown := range []bool{false, true} {
		r := New()
		hidden := "hidden_metrics_total 3"
		if shown {
			r.Configure(Config{ShowHidden: "1.36", Disabled: []string{"apiserver_cache_list_fetched_objects_total"}})
			hidden = "hidden_metrics_total 0"
		}
		NewRequests(r, known).Listed("apps", "deployments", 10, 3)
		text := show(t, r)
		for want, has := range map[string]bool{
			`apiserver_cache_list_total{group="apps",index="",resource="deployments"} 1`:               shown,
			`apiserver_cache_list_returned_objects_total{group="apps",resource="deployments"} 3`:       shown,
			`apiserver_cache_list_fetched_objects_total{group="apps",index="",resource="deployments"}`: false,
			hidden: true,
		} {
			if strings.Contains(text, "\n"+want) != has {
				t.Errorf("%v: %s", shown, want)
			}
		}
	}
}
