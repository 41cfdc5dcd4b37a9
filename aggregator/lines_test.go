package aggregator_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestLines has backends that end connections when it suits them, and send more
// than they were asked for.
func TestLines(t *testing.T) {
	f := newFixture(t)
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
			go serveOddly(conn)
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
}

// serveOddly answers on a connection with the last part of the path.
func serveOddly(conn net.Conn) {
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
		case "empty":
			fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		default:
			fmt.Fprintf(conn, "%s\r\n%s", length, name)
		}
	}
}
