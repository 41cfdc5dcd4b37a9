package controlplane

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"

	"github.com/apikeel/kelson/builtin/bootstrap"
	"github.com/apikeel/kelson/controller/apiserver"
)

// until asks again until the answer is the one wanted.
func (c *client) until(path string, ok func(code int, text string) bool) {
	c.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	code, text := 0, ""
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); <-tick.C {
		if code, text = c.do(http.MethodGet, path, ""); ok(code, text) {
			return
		}
	}
	c.t.Fatalf("%s stays %d %s", path, code, text)
}

// flowPath is where flow schemas and priority levels are.
const flowPath = "/apis/flowcontrol.apiserver.k8s.io/v1/"

func dangling(text string) (condition string) {
	var s flowcontrolv1.FlowSchema
	_ = json.Unmarshal([]byte(text), &s)
	for _, c := range s.Status.Conditions {
		condition += fmt.Sprint(c.Type, " ", c.Status, " ", c.Reason, " ")
	}
	return strings.TrimSpace(condition)
}

func TestFlowControl(t *testing.T) {
	dir := t.TempDir()
	start(t, Config{DataDir: dir, Storage: StorageMemory})
	c := newClient(t, KubeconfigFile(dir))
	c.ready()
	for _, obj := range bootstrap.FlowSchemas() {
		c.until(flowPath+apiserver.FlowSchemas+"/"+obj.GetName(), func(_ int, text string) bool { return dangling(text) == "Dangling False Found" })
	}

	// A schema is of use as soon as it has a level.
	const schema = `{"apiVersion":"flowcontrol.apiserver.k8s.io/v1","kind":"FlowSchema","metadata":{"name":"mine"},"spec":{"matchingPrecedence":3,
		"priorityLevelConfiguration":{"name":"mine"},"rules":[{"subjects":[{"kind":"User","user":{"name":"system:me"}}],
		"nonResourceRules":[{"verbs":["*"],"nonResourceURLs":["*"]}]}]}}`
	const level = `{"apiVersion":"flowcontrol.apiserver.k8s.io/v1","kind":"PriorityLevelConfiguration","metadata":{"name":"mine"},
		"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":7,"limitResponse":{"type":"Reject"}}}}`
	if code, text := c.do(http.MethodPost, flowPath+apiserver.FlowSchemas, schema); code != 201 {
		t.Fatal(code, text)
	}
	c.until(flowPath+apiserver.FlowSchemas+"/mine", func(_ int, text string) bool { return dangling(text) == "Dangling True NotFound" })
	// What others say about it does not last.
	if code, text := c.do(http.MethodPut, flowPath+apiserver.FlowSchemas+"/mine/status", strings.Replace(schema, `"spec"`,
		`"status":{"conditions":[{"type":"Dangling","status":"False","reason":"Me"}]},"spec"`, 1)); code != 200 {
		t.Fatal(code, text)
	}
	c.until(flowPath+apiserver.FlowSchemas+"/mine", func(_ int, text string) bool { return dangling(text) == "Dangling True NotFound" })
	code, text := c.do(http.MethodPost, flowPath+apiserver.PriorityLevels, level)
	var created flowcontrolv1.PriorityLevelConfiguration
	if err := json.Unmarshal([]byte(text), &created); err != nil || code != 201 {
		t.Fatal(code, text)
	}
	c.until(flowPath+apiserver.FlowSchemas+"/mine", func(_ int, text string) bool { return dangling(text) == "Dangling False Found" })
	r, _ := http.NewRequestWithContext(t.Context(), "GET", c.url+"/version", nil)
	r.Header.Set("Impersonate-User", "system:me")
	resp, err := c.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := resp.Header.Get("X-Kubernetes-PF-PriorityLevel-UID"); got != string(created.UID) || resp.Header.Get("X-Kubernetes-PF-FlowSchema-UID") == "" {
		t.Errorf("the request belonged to %q, want %q", got, created.UID)
	}
	if _, text := c.do(http.MethodGet, "/debug/api_priority_and_fairness/dump_priority_levels", ""); !strings.Contains(text, "\nmine,") {
		t.Errorf("no level mine in\n%s", text)
	}
	if _, text := c.do(http.MethodGet, "/", ""); strings.Contains(text, "/debug/") {
		t.Errorf("the index has pages for debugging: %s", text)
	}
}

func TestServiceManager(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	s := start(t, Config{DataDir: dir, Storage: StorageMemory, NotifySocket: socket})
	next := func() string {
		buf := make([]byte, 100)
		n, err := manager.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
	if got := next(); got != "READY=1" {
		t.Errorf("told %q", got)
	}
	s.end(t)
	if got := next(); got != "STOPPING=1" {
		t.Errorf("told %q", got)
	}
}
