package controlplane

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

func TestDebugPages(t *testing.T) {
	dir := t.TempDir()
	var verbosity atomic.Uint64
	socket := filepath.Join(dir, "debug.sock")
	start(t, Config{DataDir: dir, Storage: StorageMemory, Debug: Debug{
		Logs: true, Socket: socket, Flags: map[string]string{"v": "3"}, SetVerbosity: func(n uint64) { verbosity.Store(n) },
	}})
	c := newClient(t, KubeconfigFile(dir))
	c.ready()
	for _, tt := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"GET", "/statusz", "", 200, "apiserver statusz\n"},
		{"GET", "/statusz", "", 200, " /livez /logs /metrics "},
		{"GET", "/flagz", "", 200, "apiserver flagz\n"},
		{"GET", "/metrics/slis", "", 200, `kubernetes_healthcheck{name="etcd",type="readyz"} 1`},
		{"GET", "/metrics/slis", "", 200, `kubernetes_healthchecks_total{name="ping",status="success",type="readyz"} `},
		{"GET", "/debug/flags", "", 200, "<tr>v<br>"},
		{"GET", "/debug/flags/other", "", 200, "<tr>v<br>"},
		{"GET", "/debug/flags/v", "", 406, "unsupported http method\n"},
		{"PUT", "/debug/flags/v", "x", 400, `strconv.ParseUint: parsing "x": invalid syntax` + "\n"},
		{"PUT", "/debug/flags/v", "5", 200, "successfully set klog.logging.verbosity to 5\n"},
		{"GET", "/debug/pprof/", "", 200, "/debug/pprof/"},
		{"GET", "/debug/pprof/goroutine?debug=1", "", 200, "goroutine profile: total "},
		{"GET", "/logs/", "", 200, "<pre>"},
		{"GET", "/logs/no-such-log", "", 404, "404 page not found\n"},
		{"GET", "/logs/" + strings.Repeat("x", 300), "", 404, "file not found\n"},
		{"GET", "/logs/%2e%2e/%2e%2e/etc/passwd", "", 400, "invalid URL path"},
		{"DELETE", "/metrics", "", 200, "metrics reset\n"},
		{"DELETE", "/metrics/slis", "", 200, "metrics reset\n"},
	} {
		code, text := c.do(tt.method, tt.path, tt.body)
		if code != tt.code || !strings.Contains(text, tt.want) || strings.Contains(text, "root:") {
			t.Errorf("%s %s: %d %.200s; want %d %s", tt.method, tt.path, code, text, tt.code, tt.want)
		}
	}
	if verbosity.Load() != 5 {
		t.Errorf("the verbosity is %d", verbosity.Load())
	}
	if code, _ := c.do("GET", "/debug/pprof", ""); code != 200 {
		t.Errorf("who follows the redirection gets %d", code)
	}

	// They are for those who may see them.
	nobody := &client{t: t, url: c.url, http: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
	for _, path := range []string{"/statusz", "/flagz", "/metrics", "/metrics/slis", "/debug/flags/v", "/debug/pprof/", "/logs/"} {
		if code, text := nobody.do("GET", path, ""); code != http.StatusForbidden {
			t.Errorf("nobody gets %s: %d %.100s", path, code, text)
		}
	}

	// On the socket, which only this user can open, nobody is asked.
	local := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	resp, err := local.Get("http://x/debug/pprof/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 || !strings.Contains(string(body), "heap") {
		t.Errorf("on the socket: %d %s", resp.StatusCode, body)
	}
	local.CloseIdleConnections()
}

// TestPages asks for everything that the server shows of itself in many ways, and
// wants the answers that kube-apiserver gives.
func TestPages(t *testing.T) {
	text, err := os.ReadFile("testdata/pages.txt")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	start(t, Config{DataDir: dir, Storage: StorageMemory, Debug: Debug{Logs: true, Flags: map[string]string{"v": "3"}, SetVerbosity: func(uint64) {}}})
	c := newClient(t, KubeconfigFile(dir))
	c.ready()
	follow := *c.http
	follow.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		question, want, ok := strings.Cut(strings.TrimSpace(line), " => ")
		if !ok {
			t.Fatalf("%q has no answer", line)
		}
		question, body, _ := strings.Cut(question, " <")
		question, header, _ := strings.Cut(question, " | ")
		method, path, _ := strings.Cut(question, " ")
		req, err := http.NewRequestWithContext(t.Context(), method, c.url+path, strings.NewReader(strings.TrimSuffix(body, ">")))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", "identity")
		if name, value, ok := strings.Cut(header, ": "); ok {
			req.Header.Set(name, value)
		}
		resp, err := follow.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		got := strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Content-Type")))
		if encoding := resp.Header.Get("Content-Encoding"); encoding != "" {
			got += " in " + encoding
		}
		if got != want {
			t.Errorf("%s: %s, want %s", strings.TrimSuffix(line, "\n"), got, want)
		}
		if control := resp.Header.Get("Cache-Control"); control != "no-cache, private" {
			t.Errorf("%s: Cache-Control is %q", strings.TrimSuffix(line, "\n"), control)
		}
	}
}
