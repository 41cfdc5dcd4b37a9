package connect_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/connect"
	"github.com/apikeel/kelson/resource"
)

// ways are the ways in which a client asks for an upgrade.
func ways() map[string]struct {
	headers   string
	translate resource.Translation
} {
	const socket = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: "
	return map[string]struct {
		headers   string
		translate resource.Translation
	}{
		"SPDY":                    {headers: "Upgrade: SPDY/3.1\r\n"},
		"streams in a WebSocket":  {socket + "v5.channel.k8s.io\r\n", resource.ToStreams},
		"a tunnel in a WebSocket": {socket + "SPDY/3.1+portforward.k8s.io\r\n", resource.ToTunnel},
	}
}

// backend is a server that does with a connection what behave says, after it has read a request.
func backend(t *testing.T, behave func(net.Conn)) *url.URL {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second)) // only if the test fails
			if _, err := conn.Read(make([]byte, 64<<10)); err == nil {
				behave(conn)
			}
			_ = conn.Close()
		}
	}()
	return &url.URL{Scheme: "http", Host: l.Addr().String(), Path: "/exec/n/p/c", RawQuery: "output=1"}
}

// ask opens a connection and asks for an upgrade on it.
func ask(t *testing.T, server *httptest.Server, headers string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n%s\r\n", headers); err != nil {
		t.Fatal(err)
	}
	return conn
}

// fronts are the servers before a backend: one for kubelets, one as for aggregated servers.
func fronts(t *testing.T, to *url.URL, translate resource.Translation) map[string]*httptest.Server {
	t.Helper()
	all := map[string]*httptest.Server{
		"kubelet": front(t, connect.Config{}, &resource.Location{URL: to, Kubelet: true, Upgrade: true, Translate: translate}, false),
	}
	if translate == 0 {
		transport := &http.Transport{}
		all["aggregated"] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			connect.Proxy(w, r, to, connect.Via{Transport: transport, Fail: func(err error) { http.Error(w, err.Error(), http.StatusBadGateway) }})
		}))
		t.Cleanup(all["aggregated"].Close)
		t.Cleanup(transport.CloseIdleConnections)
	}
	return all
}

// A backend that never ends its answer to an upgrade is broken off, and does not fill the memory.
func TestEndlessAnswersToUpgradesAreBrokenOff(t *testing.T) {
	line := []byte("X: " + strings.Repeat("x", 1000) + "\r\n")
	for answer, begin := range map[string]string{
		"header":         "HTTP/1.1 101 Switching Protocols\r\n",
		"line":           "HTTP/1.1 101 ",
		"error's body":   "HTTP/1.1 500 Internal Server Error\r\n\r\n",
		"body of chunks": "HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n7fffffff\r\n",
	} {
		for way, client := range ways() {
			if strings.Contains(answer, "body") && client.translate == resource.NoTranslation {
				continue // it is passed on as it comes, for ten seconds
			}
			sent := make(chan int, 1)
			to := backend(t, func(conn net.Conn) {
				n, err := io.WriteString(conn, begin)
				for ; err == nil && n < 64<<20; n += len(line) {
					_, err = conn.Write(line)
				}
				sent <- n
			})
			for name, server := range fronts(t, to, client.translate) {
				t.Run(fmt.Sprintf("%s, %s, %s", answer, way, name), func(t *testing.T) {
					// The client does not read: what is passed on to it is not kept either.
					defer ask(t, server, client.headers).Close()
					if n := <-sent; n > 16<<20 {
						t.Errorf("the backend could send %d bytes, want that it is broken off", n)
					}
				})
			}
		}
	}
}

// The connection to a backend that does not answer an upgrade ends with the client.
func TestConnectionToSilentBackendEndsWithTheClient(t *testing.T) {
	for way, client := range ways() {
		asked, ended := make(chan struct{}, 1), make(chan error, 1)
		to := backend(t, func(conn net.Conn) {
			asked <- struct{}{}
			_, err := io.Copy(io.Discard, conn)
			ended <- err
		})
		for name, server := range fronts(t, to, client.translate) {
			t.Run(way+", "+name, func(t *testing.T) {
				conn := ask(t, server, client.headers)
				<-asked
				_ = conn.Close()
				if err := <-ended; err != nil && !bytes.Contains([]byte(err.Error()), []byte("reset")) {
					t.Errorf("the connection to the backend: %v, want that it is closed", err)
				}
			})
		}
	}
}
