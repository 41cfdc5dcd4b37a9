package kelson

import (
	"io"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/apikeel/kelson/request"
)

// TestSlowRequests: what took the time of a slow request is in the log, in the form
// that operators know from Kubernetes.
func TestSlowRequests(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		req := request.From(r.Context())
		req.Passed = time.Now().Add(-time.Second)
		req.MachineTime = req.Passed
		req.Time("Get")
		req.Timeline().First("About to Get from storage")
		req.Timeline().Step("About to write a response")
		_, _ = io.WriteString(w, "x")
		req.Timeline().Last("Writing http response done")
		req.Timed()
	}
	s := start(t, &Server{
		API: routes{"/api/v1/namespaces/default/pods/x": slow, "/api/v1/namespaces/default/pods/y": func(http.ResponseWriter, *http.Request) {}},
	})
	client := s.admin(t)
	for _, path := range []string{"/api/v1/namespaces/default/pods/y", "/api/v1/namespaces/default/pods/x"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "application/json")
		req.Header.Set("User-Agent", "tester")
		req.Header.Set("Audit-Id", "7")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatal(path, resp.Status)
		}
	}
	want := regexp.MustCompile(`msg="Trace\[\d+\]: \\"Get\\" accept:application/json,audit-id:7,client:127.0.0.1,api-group:,api-version:v1,name:x,subresource:,namespace:default,` +
		`protocol:HTTP/2.0,resource:pods,scope:resource,url:/api/v1/namespaces/default/pods/x,user-agent:tester,verb:GET ` +
		`\(\d\d-...-\d{4} [\d:.]+\) \(total time: \d+ms\):` +
		`\\nTrace\[\d+\]: ---\\"About to write a response\\" \d+ms \([\d:.]+\)` +
		`\\nTrace\[\d+\]: \[[\d.]+s\] \[[\d.]+s\] END\\n"`)
	deadline := time.Now().Add(30 * time.Second)
	for !want.MatchString(s.log.String()) {
		if time.Now().After(deadline) {
			t.Fatalf("the log has %s", s.log.String())
		}
		time.Sleep(time.Millisecond)
	}
	if n := len(regexp.MustCompile(`Trace\[\d+\]: \\"`).FindAllString(s.log.String(), -1)); n != 1 {
		t.Errorf("%d requests were slow", n)
	}
}
