// Package h2 serves HTTP/2 on connections of a net/http server.
//
// It does what the server in net/http does, at about half the price. There, a
// frame passes from the handler through a goroutine of the connection to a
// goroutine that writes it, and each frame of a large answer is two TLS records
// and two system calls. Here the handler's goroutine puts frames into a buffer of
// the connection and, unless somebody is at it, writes the buffer: many frames,
// also those of other streams, in one system call. Nobody waits for anybody
// except for room in the buffer and for the client's windows.
//
//	client → reader: one goroutine a connection, which never writes
//	       → handler: one goroutine a stream
//	       → conn.out, a buffer → TLS → gather → client
//
// Frames are read, and header fields are coded, by golang.org/x/net/http2 and
// its hpack.
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
	// MaxHeaderBytes bounds the header fields of a request, as they are counted
	// in HTTP/2; a request with more is answered with 431.
	MaxHeaderBytes int
	// MaxFrame is the largest frame that clients may send.
	MaxFrame int
	// StreamWindow and ConnWindow are how much of the bodies of a stream, and of
	// all streams of a connection together, clients may send before a handler has
	// read any.
	StreamWindow, ConnWindow int
	// IdleTimeout ends a connection without requests.
	IdleTimeout time.Duration
	// WriteTimeout ends a connection that takes nothing for so long.
	WriteTimeout time.Duration
	// ErrorLog gets panics of handlers.
	ErrorLog *log.Logger

	now atomic.Pointer[moment]

	mu       sync.Mutex
	conns    map[*conn]struct{}
	shutDown bool
}

// Configure makes a net/http server use s for clients that want HTTP/2. The
// listener of that server should be one of Listen.
func (s *Server) Configure(server *http.Server) {
	if server.TLSNextProto == nil {
		server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	}
	server.TLSNextProto["h2"] = s.serve
	server.RegisterOnShutdown(s.shutdown)
}

// serve is called by net/http, after the handshake.
func (s *Server) serve(hs *http.Server, tc *tls.Conn, handler http.Handler) {
	ctx := context.Background()
	// This is how net/http passes on what its BaseContext and ConnContext say.
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
	late := s.shutDown
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	if late {
		c.shutdown()
	}
	c.run()
}

// shutdown lets requests finish, and takes no more.
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
