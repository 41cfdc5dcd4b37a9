package replicas

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// direction of bytes through a proxy.
type direction int

const (
	toServer direction = iota // from the side that has connected
	toClient
)

// impairment is what a proxy does to the bytes of one direction.
type impairment struct {
	mute  bool          // bytes are held back
	delay time.Duration // each piece of bytes is this late
}

// proxy forwards TCP connections from an address that stays to a target that may change.
type proxy struct {
	listener net.Listener
	tasks    sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed when one of the fields below has changed
	// from returns who has connected, by the first bytes, 0 if they do not say; nil if
	// that does not matter.
	from func(first []byte) uint64
	// pick returns the targets of a new connection, the first of which that can be reached
	// is taken; nil is the one that forward has set.
	pick     func() []string
	target   string // empty: connections are reset
	refused  bool   // connections are reset, whatever the target
	state    [2]impairment
	isolated map[uint64]bool // connections from these are mute
	conns    map[*proxied]struct{}
	closed   bool
}

// proxied is one connection and the one that it is forwarded to.
type proxied struct {
	client, server net.Conn
	from           uint64
}

func newProxy(t testing.TB) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, changed: make(chan struct{}), isolated: map[uint64]bool{}, conns: map[*proxied]struct{}{}}
	p.tasks.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// current returns the target of new connections.
func (p *proxy) current() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

// set changes the state of the proxy.
func (p *proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *proxy) forward(target string) { p.set(func() { p.target = target }) }

// heal removes all impairments.
func (p *proxy) heal() {
	p.set(func() {
		p.refused, p.state = false, [2]impairment{}
		clear(p.isolated)
	})
}

// mute holds bytes back, in both directions or those that are named.
func (p *proxy) mute(which ...direction) {
	if len(which) == 0 {
		which = []direction{toServer, toClient}
	}
	p.set(func() {
		for _, d := range which {
			p.state[d].mute = true
		}
	})
}

// delay makes bytes late in both directions.
func (p *proxy) delay(by time.Duration) {
	p.set(func() { p.state[toServer].delay, p.state[toClient].delay = by, by })
}

// refuse resets all connections, and new ones.
func (p *proxy) refuse() {
	p.set(func() { p.refused = true })
	p.reset()
}

// reset ends the connections that there are with RST.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.reset()
	}
}

func (c *proxied) reset() {
	for _, conn := range []net.Conn{c.client, c.server} {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		if conn != nil {
			_ = conn.Close()
		}
	}
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.set(func() { p.closed = true })
	p.reset()
	p.tasks.Wait()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.tasks.Go(func() { p.serve(&proxied{client: client}) })
	}
}

func (p *proxy) serve(c *proxied) {
	p.mu.Lock()
	target, pick, refused := p.target, p.pick, p.refused || p.closed
	p.conns[c] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
		c.reset()
	}()
	targets := []string{target}
	if pick != nil {
		targets = pick()
	}
	if refused {
		return
	}
	var server net.Conn
	for _, target := range targets {
		if conn, err := net.DialTimeout("tcp", target, 5*time.Second); err == nil {
			server = conn
			break
		}
	}
	if server == nil {
		return
	}
	p.mu.Lock()
	c.server = server
	p.mu.Unlock()
	var copies sync.WaitGroup
	copies.Go(func() { p.copy(c, server, c.client, toServer) })
	p.copy(c, c.client, server, toClient)
	copies.Wait()
}

// copy forwards the bytes of one direction.
func (p *proxy) copy(c *proxied, to, from net.Conn, d direction) {
	type piece struct {
		bytes []byte
		due   time.Time
	}
	pieces := make(chan piece, 1024)
	var writer sync.WaitGroup
	writer.Go(func() {
		failed := false
		for next := range pieces {
			if wait := time.Until(next.due); wait > 0 {
				time.Sleep(wait)
			}
			if failed || !p.mayPass(c, d) {
				failed = true
				continue
			}
			if _, err := to.Write(next.bytes); err != nil {
				failed = true
				_ = from.Close()
			}
		}
		if tcp, ok := to.(*net.TCPConn); ok && !failed {
			_ = tcp.CloseWrite()
		}
	})
	buffer := make([]byte, 64<<10)
	for first := true; ; first = false {
		n, err := from.Read(buffer)
		if first && d == toServer {
			p.mu.Lock()
			if p.from != nil {
				c.from = p.from(buffer[:n])
			}
			p.mu.Unlock()
		}
		if n > 0 {
			p.mu.Lock()
			delay := p.state[d].delay
			p.mu.Unlock()
			pieces <- piece{bytes.Clone(buffer[:n]), time.Now().Add(delay)}
		}
		if err != nil {
			if err != io.EOF {
				_ = to.Close()
			}
			break
		}
	}
	close(pieces)
	writer.Wait()
}

// mayPass waits until bytes may pass. It returns false when the proxy is closed.
func (p *proxy) mayPass(c *proxied, d direction) bool {
	for {
		p.mu.Lock()
		held, closed, changed := p.state[d].mute || p.isolated[c.from], p.closed, p.changed
		p.mu.Unlock()
		if closed {
			return false
		}
		if !held {
			return true
		}
		<-changed
	}
}
