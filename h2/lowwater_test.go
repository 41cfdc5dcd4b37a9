package h2

import (
	"net"
	"runtime"
	"testing"
	"time"
)

// TestLowWater: with a raised mark a read takes what there is and does not wait; with
// an ordinary one what has come meanwhile, and what comes later, is read as ever.
func TestLowWater(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SO_RCVLOWAT is used on Linux only")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	mark := newLowWater(conn)
	p := make([]byte, 100)
	send := func(text string) {
		t.Helper()
		if _, err := client.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	mark.raise()
	if n, err := mark.read(conn, p); n != 0 || err != nil {
		t.Fatalf("of nothing %d bytes were read: %v", n, err)
	}
	send("one")
	for begin := time.Now(); ; runtime.Gosched() { // until it has arrived
		if n, err := mark.read(conn, p); n > 0 && string(p[:n]) == "one" {
			break
		} else if n != 0 || err != nil || time.Since(begin) > 30*time.Second {
			t.Fatalf("%q was read: %v", p[:n], err)
		}
	}
	send("two")
	mark.reset()
	if n, err := mark.read(conn, p); err != nil || string(p[:n]) != "two" {
		t.Fatalf("%q was read: %v", p[:n], err)
	}
	done := make(chan string)
	go func() {
		n, _ := conn.Read(p)
		done <- string(p[:n])
	}()
	send("three")
	if got := <-done; got != "three" {
		t.Errorf("%q was read", got)
	}
	mark.raise()
	client.Close()
	for begin := time.Now(); ; runtime.Gosched() {
		if n, err := mark.read(conn, p); err != nil {
			break
		} else if n != 0 || time.Since(begin) > 30*time.Second {
			t.Fatalf("%d bytes of a connection that is closed", n)
		}
	}
}
