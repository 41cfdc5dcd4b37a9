//go:build unix

package kelson

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// control sets SO_REUSEPORT. SO_REUSEADDR is always set by package net.
func (v *Serving) control(_, _ string, conn syscall.RawConn) (err error) {
	if !v.PermitPortSharing {
		return nil
	}
	if controlErr := conn.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}); controlErr != nil {
		return controlErr
	}
	return err
}
