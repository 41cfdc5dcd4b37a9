// Package h2 serves HTTP/2 on connections of a net/http server.
//
// Start at Server, whose Configure plugs it into an http.Server, and at conn, which
// is one connection. It must never know anything of Kubernetes.
//
// It does what the server in net/http does, at about half the price. There, a
// frame passes from the handler through a goroutine of the connection to a
// goroutine that writes it, and each frame of a large response is two TLS records
// and two system calls. Here the handler's goroutine appends frames to a buffer of
// the connection and, unless another goroutine is writing, writes the buffer: many
// frames, also those of other streams, in one system call. A handler waits only for
// room in the buffer and for the client's flow control windows.
//
//	client → read loop: one goroutine a connection, which never writes
//	       → handler: one goroutine a stream
//	       → conn.out, a buffer of frames → TLS → batchConn → client
//
// Header fields are coded by golang.org/x/net/http2/hpack.
//
// # What a client can make the server spend
//
// Everything a client sends costs time linear in its bytes and bounded memory:
//
//   - a header block at most MaxHeaderBytes on the wire, decoded at most MaxHeaderBytes
//     and MaxHeaderFields fields, and at most maxContinuations frames; the header
//     fields of all requests of a connection together at most maxHeldHeaders times
//     MaxHeaderBytes
//   - bodies that no handler has read yet: firstWindow a stream before its handler begins
//     to read, StreamWindow after that, ConnWindow a connection
//   - requests: MaxStreams at a time, also counting handlers whose stream the client
//     has reset, and maxWaiting times as many that wait for one of them; of all
//     connections MaxArriving at a time are looked at, and connections take turns
//   - frames that only cause work (PING, SETTINGS, PRIORITY, RST_STREAM, empty DATA,
//     tiny WINDOW_UPDATE, unknown types, mistakes): controlBurst at once and
//     controlRate a second; a connection with more is closed with ENHANCE_YOUR_CALM
//   - frames that wait to be written: maxOut bytes of responses, and maxQueued with
//     what the client has caused without reading
//   - responses that wait for the client's window after their handler has returned:
//     maxPending a stream, maxConnPending a connection, for StallTimeout
package h2

import (
	"context"
	"crypto/tls"
	"log"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Server serves HTTP/2. Its fields are not changed once it is used.
type Server struct {
	// MaxStreams is how many requests a connection may have at a time.
	MaxStreams int
	// MaxHandlers is how many handlers may run at a time before connections are held back: then
	// a request on a connection with fewHandlers that run is refused with REFUSED_STREAM, which
	// clients may send again. 0 is no bound. Responses that continue without their handler, and
	// those of which a handler says that they last (Laster), do not count. For connections that a
	// handler calls privileged (Privileged) it is a quarter more.
	MaxHandlers int
	// MaxArriving is how many requests of all connections may arrive at a time: they have been
	// read, and neither answered nor said to have arrived by their handler (Arrival). Connections with more
	// take turns, so that a request waits for few others, however many there are. One that takes
	// longer than arrivalTime does not count any longer. 0 is no bound.
	MaxArriving int
	// MaxHeaderBytes bounds the header fields of a request, as HTTP/2 counts them
	// (32 bytes are added for each field), and MaxHeaderFields their number, in which
	// the parts of a split Cookie and the names of announced trailers count too. A
	// request with more is answered with 431. The default number is 1,000.
	MaxHeaderBytes, MaxHeaderFields int
	// MaxFrame is the largest frame that clients may send.
	MaxFrame int
	// StreamWindow and ConnWindow are how many bytes of the bodies of a stream, and of
	// all streams of a connection together, clients may send ahead of the handlers that
	// read them.
	StreamWindow, ConnWindow int
	// IdleTimeout ends a connection without requests.
	IdleTimeout time.Duration
	// HeaderTimeout is how long a client may take to send a header block that it has
	// begun. The default is 30 seconds.
	HeaderTimeout time.Duration
	// WriteTimeout ends a connection that accepts no byte for so long.
	WriteTimeout time.Duration
	// StallTimeout resets a stream whose client grants no window for so long while a
	// response waits for it. The default is 30 seconds.
	StallTimeout time.Duration
	// Unsent bounds what is kept of the responses of all connections for clients that do not
	// read them; nil has no bound but those of each connection. Beyond it, handlers wait for
	// their clients, connections have small buffers, and a small response that is complete and
	// that its client has no window for is reset with ENHANCE_YOUR_CALM.
	Unsent Allowance
	// HeaderBlocks bounds what is kept of header blocks that have not come in full, beyond
	// ordinaryBlock of each, of all connections; nil has no bound but those of each. A
	// connection for which there is none left ends with ENHANCE_YOUR_CALM.
	HeaderBlocks Allowance
	// ErrorLog gets panics of handlers.
	ErrorLog *log.Logger

	dateCache atomic.Pointer[cachedDate]
	running   atomic.Int64 // handlers, of all connections
	arrivals  arrivals

	mu       sync.Mutex
	conns    map[*conn]struct{}
	shutDown bool
}

// Allowance bounds bytes that many connections hold together.
type Allowance interface {
	// Take reports whether n more bytes may be held.
	Take(n int) bool
	// Return gives back n bytes.
	Return(n int)
}

func (s *Server) take(n int) bool { return s.Unsent == nil || s.Unsent.Take(n) }

func (s *Server) giveBack(n int) {
	if s.Unsent != nil {
		s.Unsent.Return(n)
	}
}

// leave is called when a request has arrived, with what arrivals.enter has returned, or 0.
func (s *Server) leave(entered uint64) {
	if entered != 0 {
		s.arrivals.leave(entered)
	}
}

// fewHandlers may run for any connection, however many run in all.
const fewHandlers = 4

// isCrowded reports whether as many handlers run as MaxHandlers, and for a privileged connection a quarter
// more.
func (s *Server) isCrowded(privileged bool) bool {
	most := int64(s.MaxHandlers)
	if privileged {
		most += most/4 + 1
	}
	return s.MaxHandlers > 0 && s.running.Load() >= most
}

// Configure makes a net/http server use s for clients that want HTTP/2. The
// listener of that server should be one of Listen.
func (s *Server) Configure(server *http.Server) {
	s.setDefaults()
	if server.TLSNextProto == nil {
		server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	}
	server.TLSNextProto["h2"] = s.serve
	server.RegisterOnShutdown(s.shutdown)
}

func (s *Server) setDefaults() {
	s.arrivals.most = s.MaxArriving
	if s.MaxHeaderFields == 0 {
		s.MaxHeaderFields = 1000
	}
	if s.HeaderTimeout == 0 {
		s.HeaderTimeout = 30 * time.Second
	}
	if s.StallTimeout == 0 {
		s.StallTimeout = 30 * time.Second
	}
}

// serve is called by net/http, after the handshake.
func (s *Server) serve(hs *http.Server, tc *tls.Conn, handler http.Handler) {
	ctx := context.Background()
	// This is how net/http passes on what its BaseContext and ConnContext return.
	if h, ok := handler.(interface{ BaseContext() context.Context }); ok {
		ctx = h.BaseContext()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := newConn(ctx, s, tc, handler)
	s.mu.Lock()
	if s.conns == nil {
		s.conns = map[*conn]struct{}{}
	}
	s.conns[c] = struct{}{}
	shutDown := s.shutDown
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	if shutDown {
		c.shutdown()
	}
	c.run()
}

// shutdown lets requests finish, and accepts no new ones.
func (s *Server) shutdown() {
	s.mu.Lock()
	s.shutDown = true
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.shutdown()
	}
}
