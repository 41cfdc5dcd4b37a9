package network

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// h2loadSummary is what h2load says in the end.
var h2loadSummary = regexp.MustCompile(`requests: \d+ total, \d+ started, (\d+) done, \d+ succeeded, \d+ failed, (\d+) errored, (\d+) timeout`)

// h2load sends n requests, all of which must be answered with a status of a class:
// 2 for 2xx.
func h2load(t *testing.T, n, class int, args ...string) {
	t.Helper()
	out, err := run(t, nil, program(t, "h2load"), append([]string{"-n", strconv.Itoa(n)}, args...)...)
	if err != nil {
		t.Fatalf("h2load: %v\n%s", err, out)
	}
	summary, codes := h2loadSummary.FindStringSubmatch(out), fmt.Sprintf("%d %dxx", n, class)
	if summary == nil || summary[1] != strconv.Itoa(n) || summary[2] != "0" || summary[3] != "0" || !strings.Contains(out, codes) {
		t.Errorf("want %d done, none errored, and %q, got:\n%s", n, codes, out)
	}
}

// TestEarlyAnswersUnderLoad sends bodies that the server does not want on many
// streams at a time: no stream fails.
func TestEarlyAnswersUnderLoad(t *testing.T) {
	program(t, "h2load")
	c := start(t)
	for _, e := range exchanges(t, c, limitCrowd(t, c)) {
		large := strings.Contains(e.name, "/5120KB/") && e.status != http.StatusRequestEntityTooLarge
		if e.Chunked || e.Expect || large || e.status == http.StatusUnauthorized {
			continue // h2load has neither of the first two, and does not connect again after a 401
		}
		t.Run(e.name, func(t *testing.T) {
			args := []string{"-c2", "-m3", "-H", ":method: POST", "-H", "Authorization: Bearer " + e.Token, "-H", "Content-Type: " + e.ContentType}
			if filepath.Base(e.BodyFile) != "body-object-0" {
				args = append(args, "-d", e.BodyFile)
			}
			n := 40
			if info, err := os.Stat(e.BodyFile); err != nil || info.Size() >= 1<<20 {
				n = 6
			}
			h2load(t, n, e.status/100, append(args, c.url+e.Path)...)
		})
	}
}

// TestLoad has h2load send many requests on few connections: all are answered, and
// the connections leave nothing behind.
func TestLoad(t *testing.T) {
	program(t, "h2load")
	c := start(t)
	config := c.Config()
	config.NextProtos = []string{"http/1.1"} // waitForNoConnections looks for HTTP/2
	client := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
	const objects = 200
	for i := range objects {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("object-%d", i)}, Data: map[string]string{"text": strings.Repeat("x", 10<<10)}}
		if _, err := client.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	body := c.file(t, "body", []byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"generateName":"made-"}}`))
	header := "Authorization: Bearer " + c.admin
	list := c.url + collection + "?limit=200"
	for _, test := range []struct {
		name string
		n    int
		args []string
	}{
		{"gets", 20000, []string{"-c10", "-m100", c.url + collection + "/object-1"}},
		{"large-lists", 60, []string{"-c4", "-m8", "-w30", "-W30", list}},
		{"large-lists-small-windows", 40, []string{"-c4", "-m8", "-w14", "-W16", list}},
		{"large-lists-tiny-windows", 6, []string{"-c2", "-m3", "-w10", "-W10", list}},
		{"posts", 1000, []string{"-c4", "-m50", "-d", body, "-H", "Content-Type: application/json", c.url + collection}},
	} {
		t.Run(test.name, func(t *testing.T) {
			h2load(t, test.n, 2, append([]string{"-H", header}, test.args...)...)
			waitForNoConnections(t)
		})
	}
}

// waitForNoConnections waits until no goroutine serves an HTTP/2 connection. Clients
// of the test itself must have none.
func waitForNoConnections(t *testing.T) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		var stacks bytes.Buffer
		if err := pprof.Lookup("goroutine").WriteTo(&stacks, 1); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(stacks.String(), "kelson/h2.(*conn).") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("goroutines are left:\n%s", stacks.String())
		}
	}
}
