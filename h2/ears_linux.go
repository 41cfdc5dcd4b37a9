package h2

import (
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// deafFor is how much has to come until a connection with closed ears wakes somebody.
const deafFor = 64 << 10

// ears are what a connection is listened to with. While they are closed, what arrives
// wakes nobody: the network poller is woken by every packet otherwise, whether
// somebody waits for it or not.
type ears struct {
	conn   syscall.RawConn
	closed bool
}

func newEars(conn net.Conn) *ears {
	if c, ok := conn.(*net.TCPConn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			return &ears{conn: raw}
		}
	}
	return nil
}

func (e *ears) open() {
	if e != nil && e.closed {
		e.closed = false
		e.wakeAt(1)
	}
}

func (e *ears) close() {
	if e != nil && !e.closed {
		e.closed = true
		e.wakeAt(deafFor)
	}
}

func (e *ears) wakeAt(bytes int) {
	// It fails only for a connection that is closed.
	_ = e.conn.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes)
	})
}

// read reads what there is, which may be nothing: with closed ears nobody would be
// told of what comes.
func (e *ears) read(conn net.Conn, p []byte) (n int, err error) {
	if e == nil || !e.closed {
		return conn.Read(p)
	}
	readErr := e.conn.Read(func(fd uintptr) bool {
		for n, err = unix.Read(int(fd), p); err == unix.EINTR; n, err = unix.Read(int(fd), p) {
		}
		return true
	})
	switch {
	case readErr != nil:
		return 0, readErr
	case err == unix.EAGAIN:
		return 0, nil
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
