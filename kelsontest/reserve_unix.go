//go:build unix

package kelsontest

import (
	"net"
	"os"
	"syscall"
)

// A reservation keeps a port from being given to anybody who does not ask for it
// by number. The socket is bound, but does not listen, and lets others have the
// same address: somebody who does ask can listen there.
type reservation struct {
	port   int
	socket int
}

func reserve(host string) (*reservation, error) {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	syscall.CloseOnExec(socket)
	r := &reservation{socket: socket}
	if err := r.bind(host); err != nil {
		r.free()
		return nil, err
	}
	return r, nil
}

func (r *reservation) bind(host string) error {
	if err := syscall.SetsockoptInt(r.socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	address := &syscall.SockaddrInet4{Addr: [4]byte(net.ParseIP(host).To4())}
	if err := syscall.Bind(r.socket, address); err != nil {
		return os.NewSyscallError("bind", err)
	}
	bound, err := syscall.Getsockname(r.socket)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	r.port = bound.(*syscall.SockaddrInet4).Port
	return nil
}

func (r *reservation) free() { _ = syscall.Close(r.socket) }
