//go:build unix && !linux

package pgtest

import "syscall"

// killWithParent does nothing: only Linux can do that.
func killWithParent(*syscall.SysProcAttr) {}
