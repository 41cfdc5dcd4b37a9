//go:build linux

package attack

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// counted counts what is sent.
type counted struct {
	net.Conn
	bytes *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.bytes.Add(int64(n))
	return n, err
}

// tcp connects without TLS.
func (a *assault) tcp() net.Conn {
	a.Helper()
	conn, err := net.DialTimeout("tcp", a.s.addr, patience)
	if err != nil {
		a.Fatalf("the server does not accept connections: %v", err)
	}
	a.conns.Add(1)
	_ = conn.SetDeadline(time.Now().Add(patience))
	a.keep(conn)
	return counted{conn, &a.bytes}
}

// keep has a connection closed when the attack is over.
func (a *assault) keep(c io.Closer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.peers = append(a.peers, c)
}

// tls connects and shakes hands.
func (a *assault) tls(config *tls.Config) (*tls.Conn, error) {
	config.InsecureSkipVerify = true
	conn := tls.Client(a.tcp(), config)
	return conn, conn.Handshake()
}

// peer is an attacker's HTTP/2 connection. What it writes is buffered until flush.
type peer struct {
	*http2.Framer
	a     *assault
	conn  *tls.Conn
	out   *bufio.Writer
	user  string
	block bytes.Buffer
	coder *hpack.Encoder
	next  uint32 // the next stream
	pings uint64

	mu       sync.Mutex
	changed  chan struct{}      // closed when one of the following changes
	over     bool               // the server has hung up
	goAway   *http2.GoAwayFrame // since when no stream is served
	resets   map[http2.ErrCode]int
	statuses map[string]int
	data     int    // bytes of bodies
	ended    int    // streams that have ended
	acked    uint64 // the newest ping
	frames   int
}

// dial connects as a user, who is told in each request. What the server sends is read.
func (a *assault) dial(user string, settings ...http2.Setting) *peer {
	a.Helper()
	p := a.deaf(user, settings...)
	go p.listen()
	return p
}

// deaf is dial for one who does not read.
func (a *assault) deaf(user string, settings ...http2.Setting) *peer {
	a.Helper()
	p := a.silent(user)
	_, _ = io.WriteString(p.out, http2.ClientPreface)
	_ = p.WriteSettings(settings...)
	_ = p.WriteSettingsAck()
	return p
}

// silent is a connection on which not even the preface is sent.
func (a *assault) silent(user string) *peer {
	a.Helper()
	conn, err := a.tls(&tls.Config{NextProtos: []string{"h2"}})
	if err != nil {
		a.Fatalf("handshake: %v", err)
	}
	p := &peer{a: a, conn: conn, out: bufio.NewWriterSize(conn, 16<<10), user: user, next: 1,
		changed: make(chan struct{}), resets: map[http2.ErrCode]int{}, statuses: map[string]int{}}
	p.prepare()
	return p
}

// prepare makes what writes frames.
func (p *peer) prepare() {
	p.Framer = http2.NewFramer(p.out, nil)
	p.AllowIllegalWrites = true
	p.coder = hpack.NewEncoder(&p.block)
}

// listen reads what the server sends.
func (p *peer) listen() {
	framer := http2.NewFramer(nil, bufio.NewReaderSize(p.conn, 16<<10))
	framer.SetReuseFrames()
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		frame, err := framer.ReadFrame()
		p.mu.Lock()
		p.frames++
		switch f := frame.(type) {
		case *http2.GoAwayFrame:
			// The first may let streams through that the client opens before it knows;
			// an attacker goes on until none is served.
			if p.goAway == nil && f.LastStreamID < 1<<31-1 {
				p.goAway = &http2.GoAwayFrame{LastStreamID: f.LastStreamID, ErrCode: f.ErrCode}
			}
		case *http2.RSTStreamFrame:
			p.resets[f.ErrCode]++
			p.ended++
		case *http2.MetaHeadersFrame:
			p.statuses[f.PseudoValue("status")]++
			if f.StreamEnded() {
				p.ended++
			}
		case *http2.DataFrame:
			p.data += len(f.Data())
			if f.StreamEnded() {
				p.ended++
			}
		case *http2.PingFrame:
			if f.IsAck() {
				p.acked = binary.BigEndian.Uint64(f.Data[:])
			}
		}
		p.over = err != nil
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// wait waits until something is so, or the server has hung up, and reports which.
func (p *peer) wait(what string, so func() bool) bool {
	p.a.Helper()
	p.flush()
	timeout := time.After(soon)
	for {
		p.mu.Lock()
		ok, over, changed := so(), p.over, p.changed
		p.mu.Unlock()
		if ok || over {
			return ok
		}
		select {
		case <-changed:
		case <-timeout:
			p.a.Errorf("after %v there is no %s", soon, what)
			return false
		}
	}
}

// done waits until the server has worked on everything that was sent before, and
// reports whether the connection can be used further.
func (p *peer) done() bool {
	p.a.Helper()
	p.pings++
	var data [8]byte
	binary.BigEndian.PutUint64(data[:], p.pings)
	_ = p.WritePing(false, data)
	return p.wait("answer to a ping", func() bool { return p.acked == p.pings }) && !p.refused()
}

// refused reports whether the server wants no more streams.
func (p *peer) refused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over || p.goAway != nil
}

// cut waits for the end of the connection and reports the reason that was given.
func (p *peer) cut() http2.ErrCode {
	p.a.Helper()
	p.wait("end of the connection", func() bool { return p.over })
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.goAway == nil {
		return http2.ErrCodeNo
	}
	return p.goAway.ErrCode
}

// flush sends what was written, and reports whether it could.
func (p *peer) flush() bool { return p.out.Flush() == nil }

// encode returns header fields in HPACK.
func (p *peer) encode(fields ...string) []byte {
	p.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = p.coder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return bytes.Clone(p.block.Bytes())
}

// request returns the header fields of a request in HPACK.
func (p *peer) request(method, path string, fields ...string) []byte {
	all := []string{":method", method, ":path", path, ":scheme", "https", ":authority", "localhost"}
	if p.user != "" {
		all = append(all, "authorization", "Bearer "+p.user)
	}
	return p.encode(append(all, fields...)...)
}

// open begins a request and returns its stream.
func (p *peer) open(end bool, method, path string, fields ...string) uint32 {
	return p.openWith(end, p.request(method, path, fields...))
}

// openWith is open with header fields in HPACK.
func (p *peer) openWith(end bool, block []byte) uint32 {
	id := p.next
	p.next += 2
	p.sendBlock(id, end, block)
	return id
}

// sendBlock sends header fields in as many frames as they need.
func (p *peer) sendBlock(id uint32, end bool, block []byte) {
	const most = 16 << 10
	first := block[:min(len(block), most)]
	block = block[len(first):]
	_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: end, EndHeaders: len(block) == 0})
	for len(block) > 0 {
		part := block[:min(len(block), most)]
		block = block[len(part):]
		_ = p.WriteContinuation(id, len(block) == 0, part)
	}
}

// again calls f n times with a connection of a user, a new one when the server wants no
// more on the last. It gives up when none lasts.
func (a *assault) again(user string, n int, settings []http2.Setting, f func(p *peer)) *peer {
	a.Helper()
	p := a.dial(user, settings...)
	for i := range n {
		if p.refused() {
			p.flush()
			_ = p.conn.Close()
			p = a.dial(user, settings...)
		}
		f(p)
		if _, err := p.out.Write(nil); i%64 == 63 || err != nil {
			p.done() // or it has been hung up
		}
	}
	p.done()
	return p
}
