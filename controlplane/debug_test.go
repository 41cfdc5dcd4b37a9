package controlplane

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
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
