package newcomers

import (
	"io"
	"net"
	"net/http"
	"testing"
)

// TestNewcomersAreBounded: the oldest connection of a client that is not known is
// closed for one too many; those of known clients are not counted.
func TestNewcomersAreBounded(t *testing.T) {
	bounded, connect := listen(t, 3, 0)
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

// TestReceivedBytesAreBounded: of clients that are not known and have sent much, the one that
// came to it first is closed when it is too much in all. Those that have sent little, or a
// whole request, and those that are known are not counted, unless they begin another one.
func TestReceivedBytesAreBounded(t *testing.T) {
	bounded, connect := listen(t, 0, 100<<10)
	all := bounded.(listener).all
	send := func(bytes int) (client net.Conn, server *newcomer) {
		t.Helper()
		client, server = connect()
		if _, err := client.Write(make([]byte, bytes)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(server, make([]byte, bytes)); err != nil {
			t.Fatal(err)
		}
		return client, server
	}
	isOpen := func(client net.Conn, server *newcomer) bool {
		if _, err := server.Write([]byte("x")); err != nil {
			return false
		}
		_, err := io.ReadFull(client, make([]byte, 1))
		return err == nil
	}
	small, smallServer := send(ordinary)
	first, firstServer := send(ordinary + 60<<10)
	second, secondServer := send(ordinary + 30<<10)
	if !isOpen(first, firstServer) || all.bytes != 90<<10 {
		t.Fatalf("%d bytes are counted, want 90 KiB, and all are open", all.bytes)
	}
	third, thirdServer := send(ordinary + 30<<10)
	if isOpen(first, firstServer) {
		t.Error("the first that has sent much is open, want that it is closed")
	}
	if !isOpen(small, smallServer) || !isOpen(second, secondServer) || !isOpen(third, thirdServer) {
		t.Error("a connection is closed that had a right to what it has sent")
	}
	if ConnState(secondServer, http.StateActive); all.bytes != 30<<10 {
		t.Errorf("of a request that is there %d bytes are counted, want 30 KiB of the other", all.bytes)
	}
	if Introduce(WithConn(t.Context(), thirdServer), func() func() { return func() {} }); all.bytes != 0 || all.large.Len() != 0 {
		t.Errorf("%d bytes of %d are counted, want none of a known client", all.bytes, all.large.Len())
	}
	if _, err := third.Write(make([]byte, 200<<10)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(thirdServer, make([]byte, 200<<10)); err != nil || all.bytes != 0 {
		t.Errorf("a known client: got %v and %d bytes counted, want none", err, all.bytes)
	}
	ConnState(thirdServer, http.StateIdle)
	if _, err := third.Write(make([]byte, ordinary+90<<10)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(thirdServer, make([]byte, ordinary+90<<10)); err != nil || all.bytes != 90<<10 {
		t.Errorf("a known client that has begun a request: got %v and %d bytes counted, want 90 KiB", err, all.bytes)
	}
	if send(ordinary + 20<<10); isOpen(third, thirdServer) || all.bytes != 20<<10 {
		t.Errorf("the first that has sent much is known: %d bytes are counted, want 20 KiB, and that it is closed", all.bytes)
	}
}

// listen returns a bounded listener, and a function that connects to it.
func listen(t *testing.T, max int, bytes int64) (bounded net.Listener, connect func() (client net.Conn, server *newcomer)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bounded = Listener(l, max, bytes)
	t.Cleanup(func() { bounded.Close() })
	return bounded, func() (client net.Conn, server *newcomer) {
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
}
