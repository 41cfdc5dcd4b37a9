package kelson

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"
)

// Limits of connections.
const (
	maxHeaderBytes    = 1 << 20
	readHeaderTimeout = 32 * time.Second
	idleTimeout       = 90 * time.Second
	// stalledTimeout closes a connection that takes no byte for so long.
	stalledTimeout = 60 * time.Second
	maxStreams     = 100
	// Nearly all objects are smaller, so that they arrive in one frame.
	maxFrame = 256 << 10
	// What the streams of a connection may send ahead together: the most that
	// net/http takes.
	maxAhead = 4<<20 - 1
)

// Listen takes the address of the server. Clients can connect from then on, and
// are answered when Run is called. It prepares the server if nobody has.
func (s *Server) Listen() error {
	if err := s.PrepareRun(); err != nil {
		return err
	}
	if s.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return explain(s.Addr, err)
	}
	s.listener = listener
	return nil
}

// explain says what to do about an address that cannot be had.
func explain(addr string, err error) error {
	host, port, splitErr := net.SplitHostPort(addr)
	switch {
	case splitErr != nil:
		return fmt.Errorf("%q is not an address to listen on, such as %s: %w", addr, DefaultAddr, err)
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("port %s is in use: something else listens on %s; stop it, or choose another port (0 takes a free one): %w", port, addr, err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("port %s may not be used: choose one above 1023, or run with the permission to bind it: %w", port, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("this machine has no address %s: choose one that it has, or 0.0.0.0 for all: %w", host, err)
	}
	return fmt.Errorf("cannot listen on %s: %w", addr, err)
}

// URL is where clients on this machine reach the server, once it listens.
func (s *Server) URL() string {
	if s.listener == nil {
		return ""
	}
	addr := s.listener.Addr().(*net.TCPAddr)
	host := addr.IP.String()
	if addr.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "https://" + net.JoinHostPort(host, fmt.Sprint(addr.Port))
}

func (s *Server) httpServer(base context.Context) *http.Server {
	return &http.Server{
		Handler:           s,
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       func(ctx context.Context, _ net.Conn) context.Context { return withConnection(ctx) },
		ErrorLog:          log.New(errorLog{s.Logger}, "", 0),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReadFrameSize:              maxFrame,
			MaxReceiveBufferPerStream:     maxFrame,
			MaxReceiveBufferPerConnection: maxAhead,
			WriteByteTimeout:              stalledTimeout,
		},
		TLSConfig: &tls.Config{
			MinVersion:     tls.VersionTLS12,
			NextProtos:     []string{"h2", "http/1.1"},
			GetCertificate: s.PKI.ServerCertificate,
			// Certificates are verified by authentication: there are other ways
			// to say who one is, and an error should be an answer.
			ClientAuth: tls.RequestClientCert,
			ClientCAs:  s.PKI.Pool(),
		},
	}
}

// errorLog takes what net/http has to say. Failed handshakes are the affair of
// whoever connects, and anybody can cause any number of them.
type errorLog struct{ logger *slog.Logger }

func (l errorLog) Write(line []byte) (int, error) {
	level := slog.LevelWarn
	if bytes.HasPrefix(line, []byte("http: TLS handshake error")) {
		level = slog.LevelDebug
	}
	l.logger.Log(context.Background(), level, "http server", "message", string(bytes.TrimSpace(line)))
	return len(line), nil
}
