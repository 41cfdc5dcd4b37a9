//go:build !linux

package h2

import "net"

// ears are nothing on systems that cannot be told when to wake somebody.
type ears struct{}

func newEars(net.Conn) *ears { return nil }

func (*ears) open() {}

func (*ears) close() {}

func (*ears) read(conn net.Conn, p []byte) (int, error) { return conn.Read(p) }
