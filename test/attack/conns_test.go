//go:build linux

package attack

import (
	"bytes"
	"crypto/tls"
	"io"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"

	"github.com/apikeel/kelson/internal/testsize"
)

// idleConns is how many connections are opened that do nothing: as many as may be, and
// fewer if there is no time for so many handshakes.
func idleConns(t *testing.T) int {
	n := testsize.Pick(200, 400, 10_000)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	return min(n, int(limit.Cur)/2)
}

// TestIdleConnections opens many connections that do nothing, each with a state in which
// it can stay.
func TestIdleConnections(t *testing.T) {
	for name, c := range map[string]struct {
		held int // bytes a connection
		open func(a *assault)
	}{
		"nothing is sent":  {16 << 10, func(a *assault) { a.tcp() }},
		"half a handshake": {32 << 10, func(a *assault) { _, _ = a.tcp().Write([]byte{22, 3, 1, 2, 0, 1, 0, 1}) }},
		"no preface":       {48 << 10, func(a *assault) { a.silent(stranger) }},
		"preface":          {48 << 10, func(a *assault) { a.dial(stranger).done() }},
		"after a request": {56 << 10, func(a *assault) {
			p := a.dial(jane)
			p.open(true, "GET", "/version")
			p.wait("an answer", func() bool { return p.ended == 1 })
		}},
		"half closed": {48 << 10, func(a *assault) {
			p := a.dial(jane)
			p.open(true, "GET", "/version")
			p.done()
			_ = p.conn.CloseWrite()
		}},
		"HTTP/1.1": {48 << 10, func(a *assault) {
			conn, err := a.tls(&tls.Config{NextProtos: []string{"http/1.1"}})
			if err != nil {
				a.Fatal(err)
			}
			_, _ = io.WriteString(conn, "GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
			_, _ = conn.Read(make([]byte, 1))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, price{cpu: 1e6, held: 64, log: 16}, func(a *assault) {
				n := idleConns(t)
				var group sync.WaitGroup
				for range 8 {
					group.Go(func() {
						for range n / 8 {
							c.open(a)
						}
					})
				}
				group.Wait()
				a.hold()
				each := (a.held - a.before.held) / n
				t.Logf("%d bytes of memory an idle connection", each)
				if each > c.held {
					t.Errorf("an idle connection holds %d bytes of memory, want at most %d", each, c.held)
				}
			})
		})
	}
}

// TestHandshakes costs the server handshakes that lead to nothing.
func TestHandshakes(t *testing.T) {
	const many = 200
	kept := tls.NewLRUClientSessionCache(1)
	for name, f := range map[string]func(a *assault){
		"ended early": func(a *assault) {
			conn := a.tcp()
			_, _ = conn.Write([]byte{22, 3, 1, 0, 4, 1, 0, 0, 0})
			conn.Close()
		},
		"ended at once": func(a *assault) { a.tcp().Close() },
		"no TLS": func(a *assault) {
			conn := a.tcp()
			_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			_, _ = io.Copy(io.Discard, conn)
		},
		"ended after the handshake": func(a *assault) {
			if conn, err := a.tls(&tls.Config{NextProtos: []string{"h2"}}); err == nil {
				conn.Close()
			}
		},
		"no protocol in common": func(a *assault) {
			if conn, err := a.tls(&tls.Config{NextProtos: []string{"spdy"}}); err == nil {
				conn.Close()
			}
		},
		"an old version": func(a *assault) {
			_, _ = a.tls(&tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
		},
		"resumption": func(a *assault) {
			if conn, err := a.tls(&tls.Config{MaxVersion: tls.VersionTLS12, ClientSessionCache: kept}); err == nil {
				conn.Close()
			}
		},
		"tickets that are none": func(a *assault) {
			cache := &forgedTickets{ClientSessionCache: kept}
			if conn, err := a.tls(&tls.Config{MaxVersion: tls.VersionTLS12, ClientSessionCache: cache}); err == nil {
				conn.Close()
			}
		},
		"not HTTP/2": func(a *assault) {
			if conn, err := a.tls(&tls.Config{NextProtos: []string{"h2"}}); err == nil {
				_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
				_, _ = io.Copy(io.Discard, conn)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, price{cpu: 1e6, held: 64, log: 16}, func(a *assault) {
				var group sync.WaitGroup
				for range 4 {
					group.Go(func() {
						for range many / 4 {
							f(a)
						}
					})
				}
				group.Wait()
			})
		})
	}
}

// forgedTickets has what looks like the tickets of a server.
type forgedTickets struct{ tls.ClientSessionCache }

func (f *forgedTickets) Get(key string) (*tls.ClientSessionState, bool) {
	session, ok := f.ClientSessionCache.Get(key)
	if !ok || session == nil {
		return nil, false
	}
	ticket, state, err := session.ResumptionState()
	if err != nil {
		return nil, false
	}
	ticket = bytes.Clone(ticket)
	ticket[len(ticket)/2] ^= 1
	forged, err := tls.NewResumptionState(ticket, state)
	return forged, err == nil
}

// TestSettingsFirst: what is not HTTP/2 is not served.
func TestSettingsFirst(t *testing.T) {
	attack(t, price{cpu: 1e6, held: 1 << 10, log: 16}, func(a *assault) {
		p := a.silent(jane)
		go p.listen()
		_, _ = io.WriteString(p.out, http2.ClientPreface)
		p.open(true, "GET", "/version")
		if code := p.cut(); code != http2.ErrCodeProtocol {
			a.Errorf("a request before settings has ended the connection with %v, want %v", code, http2.ErrCodeProtocol)
		}
	})
}

// slowRequestTimeout is the --request-timeout of the server that slow clients use.
const slowRequestTimeout = 20 * time.Second
