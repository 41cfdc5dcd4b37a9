package kelson

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/apikeel/kelson/h2"
	"github.com/apikeel/kelson/internal/boundedlog"
	"github.com/apikeel/kelson/internal/newcomers"
	"github.com/apikeel/kelson/metrics"
)

// Limits of connections.
const (
	maxHeaderBytes    = 1 << 20
	readHeaderTimeout = 32 * time.Second
	idleTimeout       = 90 * time.Second
	// stalledTimeout closes a connection that takes no byte for so long.
	stalledTimeout = 60 * time.Second
	// maxStreams is what clients expect before they are told.
	maxStreams = 100
	// Nearly all objects are smaller, so that they arrive in one frame.
	maxFrame = 256 << 10
	// What the streams of a connection may send ahead together.
	maxAhead = 4 << 20
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
	config := net.ListenConfig{Control: s.Serving.control}
	listener, err := config.Listen(context.Background(), "tcp", s.Addr)
	if err != nil {
		return explain(s.Addr, err)
	}
	listener = newcomers.Listener(listener, s.Serving.MaxUnauthenticatedConnections)
	if s.Serving.ownHTTP2() {
		listener = h2.Listen(listener)
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

// AdvertiseAddress is where members of the cluster reach the server: the address
// that is configured, or else the one that it listens on, unless only this
// machine knows that; then it is the one of the network interface that leads
// out.
func (s *Server) AdvertiseAddress() (net.IP, error) {
	if ip := s.Serving.AdvertiseAddress; ip != nil && !ip.IsUnspecified() {
		return ip, nil
	}
	host, _, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return nil, err
	}
	ip, err := utilnet.ResolveBindAddress(net.ParseIP(host))
	if err != nil {
		return nil, fmt.Errorf("no address to advertise is found; give one: %w", err)
	}
	return ip, nil
}

// ExternalAddress is host and port of the server in what it tells clients: the
// external host name, or else the address that it advertises.
func (s *Server) ExternalAddress() (string, error) {
	host := s.Serving.ExternalHostname
	if host == "" {
		ip, err := s.AdvertiseAddress()
		if err != nil {
			return "", err
		}
		host = ip.String()
	}
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host, nil
	}
	_, port, err := net.SplitHostPort(s.Addr)
	if s.listener != nil {
		port = fmt.Sprint(s.listener.Addr().(*net.TCPAddr).Port)
	}
	return net.JoinHostPort(host, port), err
}

// errorLog takes what net/http has to say. Failed handshakes are the affair of
// whoever connects, and anybody can cause any number of them.
type errorLog struct {
	limit   *boundedlog.Limit
	logger  *slog.Logger
	metrics *metrics.Requests // nil counts nothing
}

func (l errorLog) Write(line []byte) (int, error) {
	level := slog.LevelWarn
	if bytes.HasPrefix(line, []byte("http: TLS handshake error")) {
		level = slog.LevelDebug
		if l.metrics != nil {
			l.metrics.Handshake()
		}
	}
	l.limit.Log(context.Background(), l.logger, level, "http server", "message", string(bytes.TrimSpace(line)))
	return len(line), nil
}
