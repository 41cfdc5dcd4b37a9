package kelson

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apikeel/kelson/internal/http2test"
	"github.com/apikeel/kelson/pki"
)

// routes is a Router of handlers by path.
type routes map[string]http.HandlerFunc

func (r routes) Route(w http.ResponseWriter, req *http.Request) bool {
	handler, ok := r[req.URL.Path]
	if ok {
		handler(w, req)
	}
	return ok
}

func (r routes) Paths() (paths []string) {
	for path := range r {
		paths = append(paths, path)
	}
	return paths
}

func say(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

// running is a server on a port of this machine.
type running struct {
	*Server
	log  *logBuffer
	stop context.CancelFunc
	done chan error
}

// start runs a server until the test ends.
func start(t testing.TB, s *Server) *running {
	t.Helper()
	r := &running{Server: s, log: &logBuffer{}, done: make(chan error, 1)}
	s.Addr = "127.0.0.1:0"
	s.Serving.HTTP2Server = cmp.Or(s.Serving.HTTP2Server, http2test.Chosen())
	s.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	go func() { r.done <- s.Run(ctx) }()
	t.Cleanup(func() {
		r.stop()
		if err, open := <-r.done; open && err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return r
}

// ended returns what Run has returned.
func (r *running) ended() error {
	err := <-r.done
	close(r.done)
	return err
}

// client returns one that speaks HTTP/1.1 or 2 and shows a certificate, or
// none.
func (r *running) client(t testing.TB, major int, cert *tls.Certificate) *http.Client {
	config := &tls.Config{RootCAs: r.PKI.Pool()}
	if cert != nil {
		config.Certificates = []tls.Certificate{*cert}
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: major == 2, DisableCompression: true}
	if major == 1 {
		config.NextProtos = []string{"http/1.1"}
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (r *running) admin(t testing.TB) *http.Client { return r.client(t, 2, r.PKI.AdminCertificate()) }

// get returns status, body and headers.
func (r *running) get(t testing.TB, client *http.Client, method, path string, headers ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequest(method, r.URL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body), resp.Header
}

type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestChain(t *testing.T) {
	extensions := &Server{Name: "extensions", API: routes{"/apis/c/v1/x": say("c"), "/apis/b/v1/x": say("not c's")}}
	core := &Server{Name: "core", API: routes{"/apis/b/v1/x": say("b"), "/shared": say("api")}, Delegate: extensions,
		Paths: map[string]http.Handler{"/shared": say("core"), "/below/": say("below"), "/below/deep/": say("deep")}}
	outer := start(t, &Server{Name: "aggregator", API: routes{"/apis/a/v1/x": say("a")}, Delegate: core,
		Paths: map[string]http.Handler{"/own": say("own")}})
	client := outer.admin(t)
	for path, want := range map[string]string{
		"/apis/a/v1/x":     "a",
		"/apis/b/v1/x":     "b",
		"/apis/c/v1/x":     "c",
		"/apis/d/v1/x":     "404 page not found\n",
		"/own":             "own",
		"/own/":            "404 page not found\n",
		"/shared":          "core",
		"/below/x":         "below",
		"/below/deep":      "below",
		"/below/deep/er/x": "deep",
		"/below":           "404 page not found\n",
		"//":               "404 page not found\n",
	} {
		if _, body, _ := outer.get(t, client, "GET", path); body != want {
			t.Errorf("%s: %q, want %q", path, body, want)
		}
	}

	_, body, _ := outer.get(t, client, "GET", "/")
	for _, path := range []string{"/apis/a/v1/x", "/apis/c/v1/x", "/own", "/shared", "/version", "/livez/ping", "/readyz/shutdown"} {
		if !strings.Contains(body, fmt.Sprintf("    %q", path)) {
			t.Errorf("the index lacks %s", path)
		}
	}
	lines := strings.Split(body, "\n")
	lines = lines[2 : len(lines)-2]
	for i := range lines {
		lines[i] = strings.TrimSuffix(lines[i], ",")
	}
	if !slices.IsSorted(lines) || strings.Contains(body, `"/version/"`) || !strings.HasPrefix(body, "{\n  \"paths\": [\n") {
		t.Errorf("the index is %s", body)
	}
}

func TestRefused(t *testing.T) {
	fine := func(context.Context) error { return nil }
	loop := &Server{Name: "a"}
	loop.Delegate = &Server{Name: "b", Delegate: loop}
	tests := map[string]struct {
		server *Server
		want   string
	}{
		"start hooks": {&Server{Name: "a", PostStartHooks: []Hook{{"x", fine}}, Delegate: &Server{Name: "b", PostStartHooks: []Hook{{"x", fine}}}},
			`post-start hook "x" of server "a": server "b" has one of that name`},
		"stop hooks": {&Server{Name: "a", PreShutdownHooks: []Hook{{"x", fine}, {"x", fine}}},
			`pre-shutdown hook "x" of server "a": server "a" has one of that name`},
		"no name":     {&Server{Name: "a", PostStartHooks: []Hook{{"", fine}}}, `server "a" has a post-start hook without a name`},
		"no function": {&Server{Name: "a", PostStartHooks: []Hook{{"x", nil}}}, `server "a" has a post-start hook without a name`},
		"checks":      {&Server{HealthChecks: []HealthCheck{{Name: "ping", Check: fine}}}, `two health checks "ping"`},
		"loop":        {loop, `server "a" is twice in the chain`},
	}
	for name, tt := range tests {
		if err := tt.server.PrepareRun(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
	both := &Server{PostStartHooks: []Hook{{"x", fine}}, PreShutdownHooks: []Hook{{"x", fine}}}
	if err := both.PrepareRun(); err != nil {
		t.Errorf("a hook at start and one at the end may have the same name: %v", err)
	}
}

func TestZeroValue(t *testing.T) {
	s := start(t, &Server{})
	if code, body, _ := s.get(t, s.admin(t), "GET", "/readyz"); code != 200 || body != "ok" {
		t.Errorf("%d %q", code, body)
	}
}

func TestAddressInUse(t *testing.T) {
	first := start(t, &Server{})
	closed := false
	second := &Server{Addr: first.listener.Addr().String(), Close: []func() error{func() error { closed = true; return nil }}}
	err := second.Run(t.Context())
	_, port, _ := strings.Cut(first.listener.Addr().String(), ":")
	if err == nil || !strings.HasPrefix(err.Error(), "port "+port+" is in use: ") || !strings.Contains(err.Error(), "choose another port") {
		t.Errorf("got %v", err)
	}
	if !closed {
		t.Error("storage is left open")
	}
	for addr, want := range map[string]string{
		"nonsense":       `"nonsense" is not an address to listen on`,
		"192.0.2.1:6443": "this machine has no address 192.0.2.1",
	} {
		if err := (&Server{Addr: addr}).Listen(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", addr, err, want)
		}
	}
}

func TestURL(t *testing.T) {
	for addr, want := range map[string]string{"0.0.0.0:0": "https://127.0.0.1:", "127.0.0.1:0": "https://127.0.0.1:", "127.0.0.2:0": "https://127.0.0.2:"} {
		s := &Server{Addr: addr}
		if err := s.Listen(); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(s.URL(), want) || strings.HasSuffix(s.URL(), ":0") {
			t.Errorf("%s: %s", addr, s.URL())
		}
		s.listener.Close()
	}
}

// A server has the certificates that it is given, and clients keep theirs over
// a restart.
func TestKeptCertificates(t *testing.T) {
	dir := t.TempDir()
	var old *tls.Certificate
	for range 2 {
		authority, err := pki.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if old == nil {
			old = authority.AdminCertificate()
		}
		s := start(t, &Server{PKI: authority})
		if code, _, _ := s.get(t, s.client(t, 2, old), "GET", "/version"); code != 200 {
			t.Errorf("got %d", code)
		}
	}
}

func TestTLS(t *testing.T) {
	s := start(t, &Server{})

	old := s.admin(t)
	old.Transport.(*http.Transport).TLSClientConfig.MaxVersion = tls.VersionTLS11
	if resp, err := old.Get(s.URL() + "/version"); err == nil {
		resp.Body.Close()
		t.Error("TLS 1.1 is spoken")
	}

	// A resumed session is that of the same client.
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		cache := tls.NewLRUClientSessionCache(1)
		for i := range 2 {
			client := s.admin(t)
			config := client.Transport.(*http.Transport).TLSClientConfig
			config.ClientSessionCache, config.MaxVersion = cache, version
			resp, err := client.Get(s.URL() + "/version")
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			client.CloseIdleConnections()
			if resp.StatusCode != 200 || resp.ProtoMajor != 2 || resp.TLS.DidResume != (i == 1) {
				t.Errorf("TLS %x, connection %d: %d %s, resumed %v", version, i, resp.StatusCode, resp.Proto, resp.TLS.DidResume)
			}
		}
	}
}
