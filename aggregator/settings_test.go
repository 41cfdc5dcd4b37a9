package aggregator_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestBackendWithoutFrames has a backend that is available, and then sends SETTINGS that
// allow frames of no byte (CVE-2026-33814): a client that believes it writes the body in
// empty frames, for ever.
func TestBackendWithoutFrames(t *testing.T) {
	f := newFixture(t)
	plain := httptest.NewUnstartedServer(nil)
	plain.StartTLS() // for its certificate
	defer plain.Close()
	var hostile, met atomic.Bool
	good := &tls.Config{Certificates: plain.TLS.Certificates, NextProtos: []string{"http/1.1"}}
	bad := &tls.Config{Certificates: plain.TLS.Certificates, NextProtos: []string{"h2"}}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		if hostile.Load() {
			return bad, nil
		}
		return good, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	const resources = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"frames.example.com/v1","resources":[]}`
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if conn.(*tls.Conn).Handshake() != nil {
					return
				}
				if conn.(*tls.Conn).ConnectionState().NegotiatedProtocol == "h2" {
					met.Store(true)
					_ = http2.NewFramer(conn, conn).WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 0})
					_, _ = io.Copy(io.Discard, conn)
				} else if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(resources), resources)
				}
			}()
		}
	}()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	f.register("frames.example.com", "https://localhost:"+port)
	f.waitFor("v1.frames.example.com", "Passed")
	hostile.Store(true)
	before := processorTime(t)
	for range 100 {
		if a := f.do(http.MethodPost, "/apis/frames.example.com/v1/things", strings.Repeat("x", 100_000)); met.Load() {
			if a.code != http.StatusServiceUnavailable {
				t.Errorf("got %d, want 503", a.code)
			}
			break
		}
	}
	if !met.Load() {
		t.Fatal("no request came to the backend that is hostile")
	}
	if cpu := processorTime(t) - before; cpu > 5*time.Second {
		t.Errorf("a request took %v of CPU time", cpu)
	}
}
