package h2

import (
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// lowWaterMark is how many bytes must arrive until a connection whose mark is raised
// wakes its reader.
const lowWaterMark = 64 << 10

// lowWater sets SO_RCVLOWAT of a connection, so that WINDOW_UPDATE frames do not wake
// the reader while a large response is sent: the network poller is woken by every
// packet otherwise, whether a goroutine waits for it or not.
type lowWater struct {
	conn   syscall.RawConn
	raised bool
}

func newLowWater(conn net.Conn) *lowWater {
	if c, ok := conn.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			return &lowWater{conn: raw}
		}
	}
	return nil
}

func (l *lowWater) reset() {
	if l != nil && l.raised {
		l.raised = false
		l.set(1)
	}
}

func (l *lowWater) raise() {
	if l != nil && !l.raised {
		l.raised = true
		l.set(lowWaterMark)
	}
}

func (l *lowWater) set(bytes int) {
	// It fails only for a connection that is closed.
	_ = l.conn.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes)
	})
}

// read reads what there is, which may be nothing: with a raised mark the reader would
// not be woken by what comes.
func (l *lowWater) read(conn net.Conn, p []byte) (n int, err error) {
	if l == nil || !l.raised {
		return conn.Read(p)
	}
	readErr := l.conn.Read(func(fd uintptr) bool {
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
