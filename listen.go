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
	// stalledTimeout closes a connection on which no byte can be written for so long.
	stalledTimeout = 60 * time.Second
	// maxStreams per HTTP/2 connection is what clients assume before SETTINGS arrive.
	maxStreams = 100
	// arriving is how many requests there may be for each processor that neither wait in flow control
	// nor have a seat. Each takes less than a tenth of a millisecond.
	arriving = 16
	// maxFrame is the largest HTTP/2 frame in bytes; nearly all objects fit into one.
	// It is not more than a client may send of a body before it is read.
	maxFrame = 64 << 10
	// maxWindow is the receive window of a body in bytes.
	maxWindow = 256 << 10
	// maxAhead is the receive window of a connection in bytes.
	maxAhead = 4 << 20
)

// Listen binds the address of the server, unless ListenWhenReady leaves that to Run. Clients
// can connect from then on, and are answered when Run is called. It calls PrepareRun if that
// was not done.
func (s *Server) Listen() error {
	if err := s.PrepareRun(); err != nil || s.ListenWhenReady || s.listener != nil {
		return err
	}
	return s.bind()
}

// bind makes the listener.
func (s *Server) bind() error {
	listener := s.Listener
	if listener == nil {
		var err error
		if listener, err = s.Serving.Listen(s.Addr); err != nil {
			return err
		}
	}
	listener = newcomers.Listener(listener, s.Serving.MaxUnauthenticatedConnections, s.memory().Strangers())
	if s.Serving.ownHTTP2() {
		listener = h2.Listen(listener)
	}
	s.listener = listener
	return nil
}

// Listen binds an address, as Server.Listen does.
func (v *Serving) Listen(addr string) (net.Listener, error) {
	config := net.ListenConfig{Control: v.control}
	listener, err := config.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, explainBindError(addr, err)
	}
	return listener, nil
}

// explainBindError adds to the error of a bind what to do about it.
func explainBindError(addr string, err error) error {
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

// URL returns where clients on this machine reach the server, once it listens.
func (s *Server) URL() string {
	ip, port := net.IP(nil), ""
	switch {
	case s.ListenWhenReady:
		host, fixed, err := net.SplitHostPort(s.Addr)
		if err != nil {
			return ""
		}
		ip, port = net.ParseIP(host), fixed
	case s.listener == nil:
		return ""
	default:
		addr := s.listener.Addr().(*net.TCPAddr)
		ip, port = addr.IP, fmt.Sprint(addr.Port)
	}
	host := ip.String()
	if ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "https://" + net.JoinHostPort(host, port)
}

// AdvertiseAddress returns where members of the cluster reach the server: the configured
// address, or the one it listens on, or, if that is loopback or unspecified, the address of
// the default network interface.
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
		return nil, fmt.Errorf("no address to advertise is found; give one with --advertise-address: %w", err)
	}
	return ip, nil
}

// ExternalAddress returns host and port of the server for clients: the external host name, or
// else the advertised address.
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
	if !s.ListenWhenReady && s.listener != nil {
		port = fmt.Sprint(s.listener.Addr().(*net.TCPAddr).Port)
	}
	return net.JoinHostPort(host, port), err
}

// errorLog receives the log of net/http. Failed TLS handshakes, of which anybody can cause any
// number, are counted and rate-limited.
type errorLog struct {
	limit   *boundedlog.Limit
	logger  *slog.Logger
	metrics *metrics.Requests // may be nil
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
