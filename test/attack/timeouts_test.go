//go:build linux

package attack

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// slow has connections on which clients are as slow as they like. They are opened
// before all tests, and looked at by the last: their time-outs are longer than any
// other test.
var slow slowClients

type slowClients struct {
	clients []*slowClient
	stop    chan struct{}
	group   sync.WaitGroup
}

// A slowClient sends a byte of what it has each second.
type slowClient struct {
	name  string
	limit time.Duration // when the server has hung up at the latest
	// begin connects and sends what is sent at once, and returns what follows.
	begin func() (net.Conn, []byte, error)

	err   error
	ended chan struct{}
	took  time.Duration
}

// slack is what a busy machine adds to a time-out.
const slack = 10 * time.Second

func dialSlow(protocol string) (*tls.Conn, error) {
	dialer := &net.Dialer{Timeout: patience}
	return tls.DialWithDialer(dialer, "tcp", patientVictim.addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}})
}

func (s *slowClients) begin() {
	const headers = "GET /version HTTP/1.1\r\nHost: x\r\nX-Slow: "
	endless := make([]byte, 1000)
	for i := range endless {
		endless[i] = 'x'
	}
	h1 := func(text string) func() (net.Conn, []byte, error) {
		return func() (net.Conn, []byte, error) {
			conn, err := dialSlow("http/1.1")
			if err == nil {
				_, err = io.WriteString(conn, text)
			}
			return conn, endless, err
		}
	}
	h2 := func(f func(p *peer)) func() (net.Conn, []byte, error) {
		return func() (net.Conn, []byte, error) {
			conn, err := dialSlow("h2")
			if err != nil {
				return nil, nil, err
			}
			p := &peer{conn: conn, out: bufio.NewWriter(conn), next: 1, user: jane}
			p.prepare()
			f(p)
			return conn, endless, p.out.Flush()
		}
	}
	greet := func(p *peer) {
		_, _ = io.WriteString(p.out, http2.ClientPreface)
		_ = p.WriteSettings()
	}
	s.clients = []*slowClient{
		{name: "nothing is sent", limit: 32*time.Second + slack, begin: func() (net.Conn, []byte, error) {
			conn, err := net.DialTimeout("tcp", patientVictim.addr, patience)
			return conn, nil, err
		}},
		{name: "a slow handshake", limit: 32*time.Second + slack, begin: func() (net.Conn, []byte, error) {
			conn, err := net.DialTimeout("tcp", patientVictim.addr, patience)
			return conn, append([]byte{22, 3, 1, 4, 0, 1, 0, 3, 252}, endless...), err
		}},
		{name: "no preface", limit: 10*time.Second + slack, begin: func() (net.Conn, []byte, error) {
			conn, err := dialSlow("h2")
			return conn, nil, err
		}},
		{name: "a slow preface", limit: 10*time.Second + slack, begin: func() (net.Conn, []byte, error) {
			conn, err := dialSlow("h2")
			return conn, []byte(http2.ClientPreface), err
		}},
		{name: "slow settings", limit: 10*time.Second + slack, begin: h2(func(p *peer) {
			_, _ = io.WriteString(p.out, http2.ClientPreface)
			_, _ = p.out.Write([]byte{0, 2, 0x58, byte(http2.FrameSettings), 0, 0, 0, 0, 0})
		})},
		{name: "slow headers of HTTP/1.1", limit: 32*time.Second + slack, begin: h1(headers)},
		{name: "a slow body of HTTP/1.1", limit: slowRequestTimeout + slack, begin: h1(
			"POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer jane\r\nContent-Type: application/json\r\nContent-Length: 3000\r\n\r\n")},
		{name: "a slow chunked body of HTTP/1.1", limit: slowRequestTimeout + slack, begin: h1(
			"POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer jane\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n")},
		{name: "a slow body that nobody reads", limit: slowRequestTimeout + slack, begin: h1(
			"POST /version HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n")},
		{name: "slow header fields", limit: slowRequestTimeout + 2*slack, begin: h2(func(p *peer) {
			greet(p)
			_, _ = p.out.Write([]byte{0, 40, 0, byte(http2.FrameHeaders), 0, 0, 0, 0, 1})
		})},
	}
	s.stop = make(chan struct{})
	for _, c := range s.clients {
		c.ended = make(chan struct{})
		s.group.Go(func() { c.run(s.stop) })
	}
}

// run sends slowly until the server hangs up.
func (c *slowClient) run(stop chan struct{}) {
	defer close(c.ended)
	begin := time.Now()
	conn, rest, err := c.begin()
	if err != nil {
		c.err = err
		return
	}
	defer conn.Close()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(io.Discard, conn)
	}()
	for {
		select {
		case <-over:
			c.took = time.Since(begin)
			return
		case <-stop:
			return
		case <-time.After(time.Second):
			if len(rest) > 0 {
				_, _ = conn.Write(rest[:1])
				rest = rest[1:]
			}
		}
	}
}

func (s *slowClients) end() {
	close(s.stop)
	s.group.Wait()
}

// TestSlowClients is the last test: connections whose clients are too slow have ended
// in their time.
func TestSlowClients(t *testing.T) {
	begin := time.Now()
	for _, c := range slow.clients {
		t.Run(c.name, func(t *testing.T) {
			select {
			case <-c.ended:
			case <-time.After(time.Until(begin.Add(c.limit))):
				t.Fatalf("the server has not hung up after %v", c.limit)
			}
			t.Logf("the server has hung up after %v, want at most %v", c.took.Round(100*time.Millisecond), c.limit)
			if c.err != nil || c.took == 0 || c.took > c.limit {
				t.Errorf("the server has hung up after %v (%v), want at most %v", c.took, c.err, c.limit)
			}
		})
	}
}
