package newcomers

import (
	"io"
	"net"
	"testing"
)

// TestNewcomersAreBounded: the oldest connection of a client that is not known is
// closed for one too many; those of known clients are not counted.
func TestNewcomersAreBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bounded := Listener(l, 3)
	defer bounded.Close()
	connect := func() (client net.Conn, server *newcomer) {
		t.Helper()
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		conn, err := bounded.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return client, conn.(*newcomer)
	}
	known, server := connect()
	held := 0
	hold := func() func() { held++; return func() { held-- } }
	for range 2 {
		if !Introduce(WithConn(t.Context(), server), hold) || held != 1 {
			t.Fatalf("a client is known: held %d times, want once", held)
		}
	}
	knownServer := server
	oldest, _ := connect()
	closed, server := connect()
	_ = server.Close()
	var rest []net.Conn
	for range 3 {
		client, server := connect()
		rest = append(rest, client)
		if _, err := server.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := oldest.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the oldest of four: got %d, %v, want EOF", n, err)
	}
	for _, client := range rest {
		if _, err := io.ReadFull(client, make([]byte, 1)); err != nil {
			t.Errorf("a newer connection: %v", err)
		}
	}
	if _, err := known.Write([]byte("x")); err != nil {
		t.Errorf("a known client: %v", err)
	}
	_ = closed
	_, stranger := connect()
	if Introduce(WithConn(t.Context(), stranger), func() func() { return nil }) || stranger.known.Load() {
		t.Error("a client for whom there is no room is known, want that it is not")
	}
	_, _ = knownServer.Close(), knownServer.Close()
	if held != 0 {
		t.Errorf("after the end: held %d times, want none", held)
	}
	_ = stranger.Close()
	if Introduce(WithConn(t.Context(), stranger), hold); held != 0 {
		t.Errorf("on a closed connection: held %d times, want none", held)
	}
	connect()
	if n := bounded.(listener).all.oldest.Len(); n != 3 {
		t.Errorf("%d connections are counted, want 3", n)
	}
}
