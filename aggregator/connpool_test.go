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
)

// TestLines has backends that end connections when it suits them, and send more
// than they were asked for.
func TestLines(t *testing.T) {
	f := newFixture(t)
	var flooded atomic.Int64
	plain := httptest.NewUnstartedServer(nil)
	plain.StartTLS() // for its certificate
	defer plain.Close()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: plain.TLS.Certificates, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serveOddly(conn, &flooded)
		}
	}()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	f.register("odd.example.com", "https://localhost:"+port)
	f.waitFor("v1.odd.example.com", "Passed")
	for round := range 3 {
		for path, want := range map[string]string{
			"plain": "plain", "chunked": "chunked", "continue": "continue", "last": "last", "more": "more", "silent": "silent", "empty": "",
		} {
			a := f.do(http.MethodGet, "/apis/odd.example.com/v1/"+path, "")
			if a.code != http.StatusOK || a.body != want {
				t.Errorf("%d %s: %d %q", round, path, a.code, a.body)
			}
		}
		if a := f.do(http.MethodGet, "/apis/odd.example.com/v1/switch", ""); a.code != http.StatusServiceUnavailable {
			t.Errorf("switch: %+v", a)
		}
	}
	// What is taken of a header that does not end is a few buffers of the kernel more
	// than the bound, for the line and for the transport that tries again.
	for _, path := range []string{"interim", "header", "status"} {
		flooded.Store(0)
		if a := f.do(http.MethodGet, "/apis/odd.example.com/v1/"+path, ""); a.code != http.StatusServiceUnavailable {
			t.Errorf("%s: got %d, want 503", path, a.code)
		}
		if got, most := flooded.Load(), int64(maxFlood/2); got > most {
			t.Errorf("%s: %d bytes were taken from the backend, want at most %d", path, got, most)
		}
	}
}

// maxFlood is how much a backend sends when it sends too much.
const maxFlood = 64 << 20

// flood sends text again and again, until nobody takes it.
func flood(conn net.Conn, sent *atomic.Int64, text string) {
	text = strings.Repeat(text, 1+(32<<10)/len(text))
	for total := 0; total < maxFlood; total += len(text) {
		n, err := io.WriteString(conn, text)
		sent.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// serveOddly answers on a connection with the last part of the path.
func serveOddly(conn net.Conn, flooded *atomic.Int64) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		name := req.URL.Path[strings.LastIndexByte(req.URL.Path, '/')+1:]
		length := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n", len(name))
		switch name {
		case "chunked":
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(name), name)
		case "continue":
			fmt.Fprintf(conn, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n%s\r\n%s", length, name)
		case "last":
			fmt.Fprintf(conn, "%sConnection: close\r\n\r\n%s", length, name)
			return
		case "more":
			// What follows is no answer to anything.
			fmt.Fprintf(conn, "%s\r\n%sHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", length, name)
		case "silent":
			fmt.Fprintf(conn, "%s\r\n%s", length, name)
			return // without having said so
		case "switch":
			fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: evil\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
		case "interim":
			flood(conn, flooded, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
			return
		case "header":
			fmt.Fprint(conn, "HTTP/1.1 200 OK\r\n")
			flood(conn, flooded, "X-Long: "+strings.Repeat("x", 1000)+"\r\n")
			return
		case "status":
			fmt.Fprint(conn, "HTTP/1.1 200 ")
			flood(conn, flooded, "OK")
			return
		case "empty":
			fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		default:
			fmt.Fprintf(conn, "%s\r\n%s", length, name)
		}
	}
}
