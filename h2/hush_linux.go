package h2

import "syscall"

// patience is how much has to have come before somebody is woken to read it, while
// a large answer is written: a client tells every few KB what it has read, and
// what it says can be read together.
const patience = 2 << 10

// hush has the reader of the connection sleep until there is much to read, or not
// any longer.
func (g *gather) hush(on bool) {
	if g.raw == nil {
		return
	}
	n := 1
	if on {
		n = patience
	}
	_ = g.raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, n)
	})
}
