package kelson

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/apikeel/kelson/internal/http2test"
	"github.com/apikeel/kelson/request"
)

// peer is a client that does what clients should not.
type peer struct {
	*tls.Conn
	in *bufio.Reader
}

// Frame types.
const (
	frameHeaders  = 1
	frameReset    = 3
	frameSettings = 4
	frameGoAway   = 7
)

func (s *running) peer(t *testing.T) *peer {
	t.Helper()
	conn, err := s.dial(&tls.Config{NextProtos: []string{"h2"}, Certificates: []tls.Certificate{*s.PKI.AdminCertificate()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	c := &peer{conn, bufio.NewReader(conn)}
	if err := c.send(frameSettings, 0, 0, nil); err != nil {
		t.Fatal(err)
	}
	return c
}

func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	head := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(head, stream), payload...)
}

func (c *peer) send(kind, flags byte, stream uint32, payload []byte) error {
	_, err := c.Write(frame(kind, flags, stream, payload))
	return err
}

// next returns the next frame of a kind.
func (c *peer) next(kind byte) ([]byte, error) {
	for {
		var head [9]byte
		if _, err := io.ReadFull(c.in, head[:]); err != nil {
			return nil, err
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(c.in, payload); err != nil {
			return nil, err
		}
		if head[3] == kind && (kind != frameSettings || head[4]&1 == 0) {
			return payload, nil
		}
	}
}

// Both implementations tell clients the same limits, but for the window of a body before its
// handler reads it.
func TestHTTP2Server(t *testing.T) {
	window := map[string]uint32{HTTP2Own: 64 << 10, HTTP2NetHTTP: maxWindow}
	for configured, want := range map[string]string{HTTP2Own: HTTP2Own, HTTP2NetHTTP: HTTP2NetHTTP} {
		s := start(t, &Server{Serving: Serving{HTTP2Server: configured, MaxStreams: 70}, API: routes{"/api/v1/pods": say("pods")}})
		greeting := http2test.Greet(t, s.listener.Addr().String())
		if got := greeting.Implementation(); got != want {
			t.Errorf("%s: got the server of %s", configured, got)
		}
		for id, want := range map[http2.SettingID]uint32{
			http2.SettingMaxConcurrentStreams: 70, http2.SettingMaxFrameSize: maxFrame, http2.SettingInitialWindowSize: window[configured],
		} {
			if got := greeting.Settings[id]; got != want {
				t.Errorf("%s: got %v of %d, want %d", configured, id, got, want)
			}
		}
		if got := greeting.Settings[http2.SettingMaxHeaderListSize]; got < maxHeaderBytes || got > maxHeaderBytes+1024 {
			t.Errorf("%s: got header lists of %d bytes, want about %d", configured, got, maxHeaderBytes)
		}
		if got := greeting.ConnWindow; got < maxAhead-1 || got > maxAhead {
			t.Errorf("%s: got a window of %d bytes for a connection, want %d", configured, got, maxAhead)
		}
		client := s.admin(t)
		resp, err := client.Get(s.URL() + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.ProtoMajor != 2 || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: got %s with %s", configured, resp.Status, resp.Proto)
		}
	}
	s := start(t, &Server{})
	want := cmp.Or(http2test.Chosen(), HTTP2Own)
	if got := http2test.Greet(t, s.listener.Addr().String()).Implementation(); got != want {
		t.Errorf("by default got the server of %s, want %s", got, want)
	}
}

func TestStreamLimit(t *testing.T) {
	for configured, want := range map[int]uint32{0: 100, 250: 250} {
		s := start(t, &Server{Serving: Serving{MaxStreams: configured}})
		settings, err := s.peer(t).next(frameSettings)
		if err != nil {
			t.Fatal(err)
		}
		got := uint32(0)
		for ; len(settings) >= 6; settings = settings[6:] {
			if binary.BigEndian.Uint16(settings) == 3 { // SETTINGS_MAX_CONCURRENT_STREAMS
				got = binary.BigEndian.Uint32(settings[2:])
			}
		}
		if got != want {
			t.Errorf("%d: clients are told %d, want %d", configured, got, want)
		}
	}
}

// Rapid reset, CVE-2023-44487: streams that are opened and reset at once do not
// count as concurrent, but their handlers may still run.
func TestRapidReset(t *testing.T) {
	release := make(chan struct{})
	s := start(t, &Server{Serving: Serving{MaxStreams: 10}, API: routes{"/api/v1/pods": func(http.ResponseWriter, *http.Request) { <-release }}})
	t.Cleanup(func() { close(release) })
	c := s.peer(t)
	// GET https://localhost/api/v1/pods in HPACK.
	headers := append([]byte{0x82, 0x87, 0x41, 9}, "localhost"...)
	headers = append(append(headers, 0x44, 12), "/api/v1/pods"...)
	cancel := []byte{0, 0, 0, 8}
	go func() {
		for stream := uint32(1); stream < 2000; stream += 2 {
			if c.send(frameHeaders, 5, stream, headers) != nil || c.send(frameReset, 0, stream, cancel) != nil {
				return
			}
		}
	}()
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	goAway, err := c.next(frameGoAway)
	if err != nil {
		t.Fatalf("it is not cut off: %v", err)
	}
	if code := binary.BigEndian.Uint32(goAway[4:]); code != 11 { // ENHANCE_YOUR_CALM
		t.Errorf("the reason is %d", code)
	}
	if n := s.inFlight.Load(); n > 10 {
		t.Errorf("%d requests are in flight", n)
	}
}

// Clients that nobody knows do not keep a connection over which they could send
// much: after each request they have to connect anew.
func TestUnknownClientsReconnect(t *testing.T) {
	anonymous := func(r *http.Request) (request.User, bool, error) {
		switch r.Header.Get("X-Who") {
		case "anonymous":
			return request.User{Name: "system:anonymous", Groups: []string{"system:unauthenticated"}}, true, nil
		case "known":
			return request.User{Name: "jane"}, true, nil
		}
		return request.User{}, false, errors.New("no")
	}
	s := start(t, &Server{Authenticate: anonymous, API: routes{"/api/v1/pods": say("pods")}})
	for _, tt := range []struct {
		who    string
		major  int
		reused bool
	}{{"known", 2, true}, {"anonymous", 2, false}, {"nobody", 2, false}, {"anonymous", 1, true}, {"nobody", 1, true}} {
		client := s.client(t, tt.major, nil)
		connections := map[string]bool{}
		trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { connections[i.Conn.LocalAddr().String()] = true }}
		for range 3 {
			req, _ := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace), "GET", s.URL()+"/api/v1/pods", nil)
			req.Header.Set("X-Who", tt.who)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		if got := len(connections) == 1; got != tt.reused {
			t.Errorf("HTTP/%d, %s: %d connections for 3 requests", tt.major, tt.who, len(connections))
		}
	}
}
