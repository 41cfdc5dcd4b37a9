// Package http2test is for tests that depend on the HTTP/2 implementation of a server:
// see kelson.Serving.HTTP2Server. Start at Greet.
package http2test

import (
	"crypto/tls"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// variable is the environment variable that runs a test suite on the implementation
// that it names. The product does not read it.
const variable = "KELSON_TEST_HTTP2"

// patience is how long a server may take to send its settings.
const patience = 60 * time.Second

// Chosen returns the implementation that the tests run on, "" for the default.
func Chosen() string { return os.Getenv(variable) }

// Greeting is what a server sends to a client that connects.
type Greeting struct {
	Settings map[http2.SettingID]uint32
	// ConnWindow is the flow control window of the connection.
	ConnWindow uint32
}

// Implementation returns the value of kelson.Serving.HTTP2Server that sends such a
// greeting: only net/http sends SETTINGS_HEADER_TABLE_SIZE.
func (g Greeting) Implementation() string {
	if _, ok := g.Settings[http2.SettingHeaderTableSize]; ok {
		return "net/http"
	}
	return "kelson"
}

// Greet connects to a server and returns its greeting.
func Greet(t testing.TB, addr string) Greeting {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, &tls.Config{NextProtos: []string{http2.NextProtoTLS}, InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if got := conn.ConnectionState().NegotiatedProtocol; got != http2.NextProtoTLS {
		t.Fatalf("%s speaks %q, not %s", addr, got, http2.NextProtoTLS)
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	// The answer to a ping comes after the settings.
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	if err := framer.WritePing(false, [8]byte{1}); err != nil {
		t.Fatal(err)
	}
	g := Greeting{Settings: map[http2.SettingID]uint32{}, ConnWindow: 65535}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("%s: %v", addr, err)
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			_ = f.ForeachSetting(func(s http2.Setting) error {
				g.Settings[s.ID] = s.Val
				return nil
			})
		case *http2.WindowUpdateFrame:
			g.ConnWindow += f.Increment
		case *http2.PingFrame:
			return g
		}
	}
}
