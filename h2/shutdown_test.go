package h2

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestShutdownBeforeThePreface shuts the server down before a new connection has said
// anything: SETTINGS come first, and then GOAWAY, by which the client knows that its
// requests can be sent elsewhere.
func TestShutdownBeforeThePreface(t *testing.T) {
	ts := httptest.NewTLSServer(nil) // for its certificate
	defer ts.Close()
	near, far := net.Pipe()
	defer near.Close()
	_ = near.SetDeadline(time.Now().Add(time.Minute))
	s, hs := &Server{}, &http.Server{Handler: http.NotFoundHandler()}
	s.Configure(hs)
	s.shutdown()
	go func() {
		server := tls.Server(far, &tls.Config{Certificates: ts.TLS.Certificates, NextProtos: []string{"h2"}})
		defer server.Close()
		if err := server.Handshake(); err != nil {
			t.Error(err)
			return
		}
		hs.TLSNextProto["h2"](hs, server, hs.Handler)
	}()
	conn := tls.Client(near, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	framer := http2.NewFramer(conn, conn)
	go func() {
		_, _ = io.WriteString(conn, http2.ClientPreface)
		_ = framer.WriteSettings()
	}()
	var got []http2.FrameType
	for len(got) == 0 || got[len(got)-1] != http2.FrameGoAway {
		f, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("got the frames %v and then %v, want SETTINGS and at last GOAWAY", got, err)
		}
		got = append(got, f.Header().Type)
	}
	if got[0] != http2.FrameSettings {
		t.Errorf("got the frames %v, want SETTINGS first", got)
	}
}
