// Package audit compares what the audit writes with events that kube-apiserver
// v1.37.1 has written of the same requests.
package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/audit"
	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/storage/memory"
)

// policy is the one that the events were recorded with: each namespace has its
// level.
const policy = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Metadata
  namespaces: ["meta"]
- level: Request
  namespaces: ["req"]
- level: RequestResponse
  namespaces: ["omit"]
  omitManagedFields: true
- level: RequestResponse
`

// exchange is a line of the recording.
type exchange struct {
	Name, Method, Path, Body string
	Headers                  map[string]string
	Status                   int
	Events                   []json.RawMessage
}

type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) lines() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Split(strings.TrimRight(o.text.String(), "\n"), "\n")
}

func TestRecordedEvents(t *testing.T) {
	backend := memory.New(memory.Options{})
	t.Cleanup(func() { backend.Close() })
	server, err := controlplane.Config{}.Server(t.Context(), backend, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := &output{}
	config := audit.DefaultConfig()
	config.PolicyFile, config.Log.Path, config.Out = filepath.Join(t.TempDir(), "policy.yaml"), "-", out
	if err := os.WriteFile(config.PolicyFile, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	if server.Audit, err = audit.New(config); err != nil {
		t.Fatal(err)
	}
	server.Authenticate = func(*http.Request) (request.User, bool, error) {
		return request.User{Name: "admin", UID: "uid-admin", Groups: []string{"system:masters", "system:authenticated"}}, true, nil
	}
	if err := server.PrepareRun(); err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(server)
	t.Cleanup(front.Close)

	recording, err := os.Open("testdata/kube-apiserver.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer recording.Close()
	lines := bufio.NewScanner(recording)
	lines.Buffer(nil, 1<<20)
	seen := 0
	for lines.Scan() {
		var x exchange
		if err := json.Unmarshal(lines.Bytes(), &x); err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequest(x.Method, front.URL+x.Path, strings.NewReader(x.Body))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range x.Headers {
			req.Header.Set(name, value)
		}
		req.Header.Set("Audit-ID", x.Name)
		resp, err := front.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != x.Status {
			t.Errorf("%s: status %d, recorded is %d", x.Name, resp.StatusCode, x.Status)
		}
		// The last event of a request may come after its answer.
		for begin := time.Now(); len(out.lines()) < seen+len(x.Events) && time.Since(begin) < 10*time.Second; {
			time.Sleep(time.Millisecond)
		}
		got := out.lines()[seen:]
		seen += len(got)
		if len(got) != len(x.Events) {
			t.Errorf("%s: %d events, recorded are %d: %s", x.Name, len(got), len(x.Events), got)
			continue
		}
		for i := range got {
			if a, b := normal(t, x.Events[i]), normal(t, []byte(got[i])); !reflect.DeepEqual(a, b) {
				t.Errorf("%s: event %d\nrecorded %s\ngot      %s", x.Name, i, encode(a), encode(b))
			}
		}
	}
	if err := lines.Err(); err != nil || seen < 100 {
		t.Errorf("%d events, %v", seen, err)
	}
}

// normal returns an event without what differs from run to run.
func normal(t *testing.T, line []byte) any {
	t.Helper()
	var event map[string]any
	if err := json.Unmarshal(line, &event); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	delete(event, "annotations") // authorization is not what is compared
	return replace("", event, regexp.MustCompile(`^20\d\d-\d\d-\d\dT[\d:.]+Z$`), regexp.MustCompile(`g-[a-z0-9]{5}`))
}

func replace(key string, value any, times, generated *regexp.Regexp) any {
	switch v := value.(type) {
	case map[string]any:
		for k := range v {
			v[k] = replace(k, v[k], times, generated)
		}
	case []any:
		for i := range v {
			v[i] = replace("", v[i], times, generated)
		}
	case string:
		switch {
		case key == "uid" && len(v) == 36:
			return "UID"
		case key == "resourceVersion" && v != "1":
			return "RV"
		case key == "continue":
			return "C"
		}
		return generated.ReplaceAllString(times.ReplaceAllString(v, "T"), "g-X")
	}
	return value
}

func encode(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}
