package kelson

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log/slog"
	"math"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/request"
)

// The errors are those of kube-apiserver.
func TestServingValidate(t *testing.T) {
	const hsts = "--strict-transport-security-directives invalid, allowed values: max-age=expireTime, includeSubDomains, preload. see https://tools.ietf.org/html/rfc6797#section-6.1 for more information"
	tests := []struct {
		v    Serving
		want string
	}{
		{Serving{}, ""},
		{Serving{MinVersion: "VersionTLS13", CipherSuites: []string{"TLS_AES_128_GCM_SHA256", "TLS_RSA_WITH_RC4_128_SHA", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305"}, Curves: []int32{23, 29, 4588}}, ""},
		{Serving{MinVersion: "VersionTLS1"}, `unknown tls version "VersionTLS1"`},
		{Serving{CipherSuites: []string{"foo"}}, "Cipher suite foo not supported or doesn't exist"},
		{Serving{CipherSuites: []string{"TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"}}, "error configuring http2: http2: TLSConfig.CipherSuites is missing an HTTP/2-required AES_128_GCM_SHA256 cipher (need at least one of TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256)"},
		{Serving{Curves: []int32{0}}, "curve preference 0 is out of range (must be 1-65535)"},
		{Serving{Curves: []int32{math.MaxUint16 + 1}}, "curve preference 65536 is out of range (must be 1-65535)"},
		{Serving{Curves: []int32{23, 23}}, "duplicate curve preference 23"},
		{Serving{Curves: []int32{9999}}, "curve preference 9999 is not supported by the current Go version"},
		{Serving{HTTP2Server: HTTP2Own}, ""},
		{Serving{HTTP2Server: HTTP2NetHTTP}, ""},
		{Serving{HTTP2Server: "nghttp2"}, `--http2-server is "nghttp2", not one of kelson and net/http`},
		{Serving{GoawayChance: 0.021}, "--goaway-chance can not be less than 0 or greater than 0.02"},
		{Serving{HSTS: []string{"max-age=31536000", "includeSubDomains", "preload"}}, ""},
		{Serving{HSTS: []string{"max-age=1=2", "foo", " "}}, hsts + "\n" + hsts + "\nempty value in strict-transport-security-directives"},
		{Serving{CORS: []string{`//example\.com(:|$)`, `^https://a$`, "//a:8080"}}, ""},
		{Serving{CORS: []string{""}}, "empty value in --cors-allowed-origins, help: " + corsHelp},
		{Serving{CORS: []string{"example.com"}}, "--cors-allowed-origins has an invalid regular expression: regular expression does not pin to start/end of host in the origin header, help: " + corsHelp},
		{Serving{CORS: []string{"^("}}, "--cors-allowed-origins has an invalid regular expression: error parsing regexp: missing closing ): `^(`, help: " + corsHelp},
	}
	for _, tt := range tests {
		got := ""
		if err := tt.v.Validate(); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%+v:\ngot  %s\nwant %s", tt.v, got, tt.want)
		}
	}
	if err := (&Server{Serving: Serving{MinVersion: "x"}}).PrepareRun(); err == nil {
		t.Error("a server takes what is not valid")
	}
}

// dial connects to a server with a TLS configuration of the test's own.
func (r *running) dial(config *tls.Config) (*tls.Conn, error) {
	config.RootCAs, config.ServerName = r.PKI.Pool(), "localhost"
	return tls.Dial("tcp", r.listener.Addr().String(), config)
}

func TestTLSLimits(t *testing.T) {
	s := start(t, &Server{Serving: Serving{MinVersion: "VersionTLS13"}})
	if conn, err := s.dial(&tls.Config{}); err != nil {
		t.Error(err)
	} else {
		conn.Close()
	}
	if _, err := s.dial(&tls.Config{MaxVersion: tls.VersionTLS12}); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("a version that is too low: %v", err)
	}

	s = start(t, &Server{Serving: Serving{DisableHTTP2: true, CipherSuites: []string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}, Curves: []int32{int32(tls.CurveP384)}}})
	conn, err := s.dial(&tls.Config{MaxVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	if state := conn.ConnectionState(); state.CipherSuite != tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 || state.CurveID != tls.CurveP384 {
		t.Errorf("got %s, %s", tls.CipherSuiteName(state.CipherSuite), state.CurveID)
	}
	conn.Close()
	if _, err := s.dial(&tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}}); err == nil {
		t.Error("another cipher suite is taken")
	}
	if _, err := s.dial(&tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}); err == nil {
		t.Error("another curve is taken")
	}
	if _, err := s.dial(&tls.Config{MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is taken by default")
	}
}

func TestDisableHTTP2(t *testing.T) {
	s := start(t, &Server{Serving: Serving{DisableHTTP2: true}})
	conn, err := s.dial(&tls.Config{NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := conn.ConnectionState().NegotiatedProtocol; got != "http/1.1" {
		t.Errorf("got %q", got)
	}
	if code, _, _ := s.get(t, s.admin(t), "GET", "/healthz"); code != 200 {
		t.Errorf("got %d", code)
	}
}

// Certificates and authorities are replaced under open connections.
func TestReload(t *testing.T) {
	authority, err := pki.New()
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.New()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	pair, err := authority.ServerPair(dir)
	if err != nil {
		t.Fatal(err)
	}
	caFile := filepath.Join(dir, "clients.crt")
	if err := os.WriteFile(caFile, authority.CertificatePEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	bundle, err := pki.OpenBundle(nil, caFile)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	watched := make(chan struct{})
	go func() { defer close(watched); bundle.Watch(ctx, slog.New(slog.DiscardHandler)) }()
	defer func() { cancel(); <-watched }()

	release, begun := make(chan struct{}), make(chan struct{})
	s := start(t, &Server{PKI: authority,
		Serving: Serving{Certificate: pair, ClientCAs: bundle.Pool},
		API: routes{
			"/api/v1/pods": say("pods"),
			"/api/v1/watch/pods": func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "begin ")
				w.(http.Flusher).Flush()
				close(begun)
				<-release
				_, _ = io.WriteString(w, "end")
			},
		}})
	// shown returns which certificate a new connection sees.
	shown := func() string {
		conn, err := s.dial(&tls.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := shown()

	client := s.admin(t)
	resp, err := client.Get(s.URL() + "/api/v1/watch/pods")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-begun

	replacement := filepath.Join(t.TempDir(), "new")
	fresh, err := authority.ServerPair(replacement)
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{fresh.CertFile: pair.CertFile, fresh.KeyFile: pair.KeyFile} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	polltest.Until(t, "the new certificate", func() bool { return shown() != before })

	// The client has one connection, from before, and keeps it.
	var reused bool
	req, _ := http.NewRequest("GET", s.URL()+"/api/v1/pods", nil)
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }}))
	if resp, err := client.Do(req); err != nil || resp.StatusCode != 200 || !reused {
		t.Errorf("a connection from before: %v, %v, reused %v", resp, err, reused)
	}
	pool := bundle.Pool()
	if err := os.WriteFile(caFile, other.CertificatePEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, "the new authorities", func() bool { return bundle.Pool() != pool })
	shown()
	config, err := s.tls.GetConfigForClient(nil)
	if err != nil || config.ClientCAs != bundle.Pool() {
		t.Errorf("new clients are asked for old authorities: %v", err)
	}
	close(release)
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "begin end" {
		t.Errorf("the answer that was under way: %q, %v", body, err)
	}
}

func TestCertDirAndSNI(t *testing.T) {
	authority, err := pki.New("api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	named, err := authority.ServerPair(filepath.Join(t.TempDir(), "sni"))
	if err != nil {
		t.Fatal(err)
	}
	named.Names = []string{"*.example.com"}
	dir := filepath.Join(t.TempDir(), "certs")
	s := start(t, &Server{PKI: authority, Serving: Serving{CertDir: dir, SNI: []pki.Pair{named}}})
	serial := func(file string) string {
		pair, err := tls.LoadX509KeyPair(file, strings.TrimSuffix(file, ".crt")+".key")
		if err != nil {
			t.Fatal(err)
		}
		return pair.Leaf.SerialNumber.String()
	}
	for name, file := range map[string]string{"localhost": filepath.Join(dir, "apiserver.crt"), "api.example.com": named.CertFile} {
		conn, err := tls.Dial("tcp", s.listener.Addr().String(), &tls.Config{RootCAs: authority.Pool(), ServerName: name})
		if err != nil {
			t.Fatal(err)
		}
		if got := conn.ConnectionState().PeerCertificates[0].SerialNumber.String(); got != serial(file) {
			t.Errorf("%s: another certificate than that in %s", name, file)
		}
		conn.Close()
	}
}

func TestAddresses(t *testing.T) {
	ip := net.IPv4(192, 0, 2, 7)
	tests := []struct {
		addr      string
		serving   Serving
		advertise string // "" for that of some interface
		external  string
	}{
		{"192.0.2.1:6443", Serving{}, "192.0.2.1", "192.0.2.1:6443"},
		{"192.0.2.1:6443", Serving{AdvertiseAddress: ip}, "192.0.2.7", "192.0.2.7:6443"},
		{"192.0.2.1:6443", Serving{AdvertiseAddress: net.IPv4zero}, "192.0.2.1", "192.0.2.1:6443"},
		{"0.0.0.0:6443", Serving{AdvertiseAddress: ip, ExternalHostname: "api.example.com"}, "192.0.2.7", "api.example.com:6443"},
		{"0.0.0.0:6443", Serving{AdvertiseAddress: ip, ExternalHostname: "api.example.com:443"}, "192.0.2.7", "api.example.com:443"},
		{"[2001:db8::1]:6443", Serving{}, "2001:db8::1", "[2001:db8::1]:6443"},
	}
	for _, tt := range tests {
		s := &Server{Addr: tt.addr, Serving: tt.serving}
		got, err := s.AdvertiseAddress()
		if err != nil || got.String() != tt.advertise {
			t.Errorf("%s, %+v: advertises %v, %v", tt.addr, tt.serving, got, err)
		}
		if got, err := s.ExternalAddress(); err != nil || got != tt.external {
			t.Errorf("%s, %+v: external is %s, %v", tt.addr, tt.serving, got, err)
		}
	}
	s := &Server{Addr: "127.0.0.1:0"}
	if ip, err := s.AdvertiseAddress(); err == nil && ip.IsLoopback() {
		t.Errorf("an address that only this machine knows: %v", ip)
	}
}

func TestPortSharing(t *testing.T) {
	first := start(t, &Server{Serving: Serving{PermitPortSharing: true}})
	addr := first.listener.Addr().String()
	second := &Server{Addr: addr, Serving: Serving{PermitPortSharing: true, PermitAddressSharing: true}}
	if err := second.Listen(); err != nil {
		t.Fatalf("a port that may be shared: %v", err)
	}
	if err := second.listener.Close(); err != nil {
		t.Fatal(err)
	}
	third := &Server{Addr: addr}
	if err := third.Listen(); err == nil {
		t.Error("a port is shared with one who does not want to")
	}
}

func TestHSTS(t *testing.T) {
	s := start(t, &Server{Serving: Serving{HSTS: []string{"max-age=31536000", "includeSubDomains"}}, Paths: map[string]http.Handler{
		"/own": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Strict-Transport-Security", "max-age=1")
		})}})
	for path, want := range map[string]string{"/healthz": "max-age=31536000; includeSubDomains", "/own": "max-age=1", "/nope": "max-age=31536000; includeSubDomains"} {
		if _, _, h := s.get(t, s.admin(t), "GET", path); h.Get("Strict-Transport-Security") != want {
			t.Errorf("%s: %q", path, h["Strict-Transport-Security"])
		}
	}
	s = start(t, &Server{})
	if _, _, h := s.get(t, s.admin(t), "GET", "/healthz"); h["Strict-Transport-Security"] != nil {
		t.Error("it is sent unasked")
	}
}

func TestCORS(t *testing.T) {
	s := start(t, &Server{Serving: Serving{CORS: []string{`//example\.com(:|$)`, `^https://a\.b$`}}, API: routes{"/api/v1/pods": say("pods")}})
	stranger := s.client(t, 2, nil)
	for _, tt := range []struct {
		client         *http.Client
		method, origin string
		code           int
		allowed        bool
	}{
		{s.admin(t), "GET", "", 200, false},
		{s.admin(t), "GET", "https://example.com", 200, true},
		{s.admin(t), "GET", "http://example.com:8080", 200, true},
		{s.admin(t), "GET", "https://example.com.evil", 200, false},
		{s.admin(t), "GET", "https://evil-example.com", 200, false},
		{s.admin(t), "GET", "https://a.b", 200, true},
		{stranger, "OPTIONS", "https://a.b", 204, true},
		{stranger, "OPTIONS", "https://a.b.c", 401, false},
		{stranger, "GET", "https://a.b", 401, true},
	} {
		code, _, h := s.get(t, tt.client, tt.method, "/api/v1/pods", "Origin", tt.origin)
		got := h.Get("Access-Control-Allow-Origin")
		if code != tt.code || (got == tt.origin && got != "") != tt.allowed {
			t.Errorf("%s from %q: got %d, %q", tt.method, tt.origin, code, got)
		}
		if !tt.allowed {
			continue
		}
		for name, want := range map[string]string{
			"Access-Control-Allow-Methods":     "POST, GET, OPTIONS, PUT, DELETE, PATCH",
			"Access-Control-Allow-Headers":     "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since",
			"Access-Control-Expose-Headers":    "Date",
			"Access-Control-Allow-Credentials": "true",
		} {
			if h.Get(name) != want {
				t.Errorf("%s is %q", name, h.Get(name))
			}
		}
	}
}

func TestGoaway(t *testing.T) {
	s := &Server{Serving: Serving{GoawayChance: 0.02}, Authenticate: func(*http.Request) (request.User, bool, error) { return request.User{Name: "a"}, true, nil }}
	if err := s.PrepareRun(); err != nil {
		t.Fatal(err)
	}
	for major, want := range map[int]bool{1: false, 2: true} {
		told := 0
		for range 5000 {
			w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/healthz", nil)
			r.ProtoMajor = major
			s.ServeHTTP(w, r)
			if w.Header().Get("Connection") == "close" {
				told++
			}
		}
		if (told > 0) != want || told > 500 {
			t.Errorf("HTTP/%d: %d of 5000 have to go", major, told)
		}
	}
}

// A client whose certificates are of several authorities picks the right one.
func TestClientAuthorities(t *testing.T) {
	s := start(t, &Server{})
	var acceptable [][]byte
	conn, err := s.dial(&tls.Config{GetClientCertificate: func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		acceptable = info.AcceptableCAs
		return &tls.Certificate{}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ca, err := x509.ParseCertificate(s.PKI.AdminCertificate().Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if len(acceptable) != 1 || string(acceptable[0]) != string(ca.RawIssuer) {
		t.Errorf("%d authorities", len(acceptable))
	}
}

// A client cannot have the server keep large certificates, which anybody can make.
func TestLargeClientCertificatesEndTheHandshake(t *testing.T) {
	s := start(t, &Server{})
	for size, want := range map[int]bool{maxCertificates / 2: true, maxCertificates: false} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), ExtraExtensions: []pkix.Extension{{Id: []int{1, 2, 3}, Value: make([]byte, size)}}}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := s.dial(&tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		// The client hears of it when it reads.
		_, err = conn.Write([]byte("GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
		if err == nil {
			_, err = io.ReadAll(conn)
		}
		_ = conn.Close()
		if (err == nil) != want {
			t.Errorf("a certificate of %d bytes: %v, want an error: %v", len(der), err, !want)
		}
	}
}
