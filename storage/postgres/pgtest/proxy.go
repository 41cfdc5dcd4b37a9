//go:build unix

package pgtest

import (
	"net"
	"sync"
	"sync/atomic"
)

// links are the connections of a proxy.
type links struct {
	wg sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	// budget is how many bytes may still pass towards the database before every
	// connection is cut; negative is no limit.
	budget  atomic.Int64
	answers atomic.Int64 // the same, for bytes from the database
	breaks  atomic.Int64
	target  atomic.Pointer[target]
}

func newProxy(to target) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, links: &links{conns: map[net.Conn]struct{}{}}}
	p.target.Store(&to)
	p.budget.Store(-1)
	p.answers.Store(-1)
	p.wg.Go(p.accept)
	return p, nil
}

// Addr returns the address to connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut closes all connections. New ones are accepted. It may be called from any goroutine.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// BreakAfter cuts all connections, once, when so many bytes have passed to the database,
// and so many from it; a negative number is no limit.
func (p *Proxy) BreakAfter(sent, received int64) {
	p.budget.Store(sent)
	p.answers.Store(received)
}

// Breaks returns how often BreakAfter has cut the connections.
func (p *Proxy) Breaks() int64 { return p.breaks.Load() }

// Divert makes new connections go to another database, and cuts those that there are.
func (p *Proxy) Divert(to *DB) {
	p.target.Store(&target{"unix", to.socket()})
	p.Cut()
}

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(conn) })
	}
}

func (p *Proxy) serve(down net.Conn) {
	defer down.Close()
	to := p.target.Load()
	up, err := net.Dial(to.network, to.address)
	if err != nil {
		return
	}
	defer up.Close()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.conns[down], p.conns[up] = struct{}{}, struct{}{}
	p.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { p.pass(up, down, &p.budget) })
	wg.Go(func() { p.pass(down, up, &p.answers) })
	wg.Wait()
	p.mu.Lock()
	delete(p.conns, down)
	delete(p.conns, up)
	p.mu.Unlock()
}

// pass copies until either side ends, then closes both.
func (p *Proxy) pass(to, from net.Conn, budget *atomic.Int64) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if left := budget.Load(); left >= 0 {
				if rest := budget.Add(-int64(n)); rest < 0 && left >= 0 {
					// The part that is allowed passes, the rest is lost.
					_, _ = to.Write(buf[:max(0, min(int64(n), rest+int64(n)))])
					budget.Store(-1)
					p.breaks.Add(1)
					p.Cut()
					return
				}
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Cut()
	p.wg.Wait()
}
