//go:build !linux

package h2

import "net"

// lowWater does nothing on systems without SO_RCVLOWAT.
type lowWater struct{}

func newLowWater(net.Conn) *lowWater { return nil }

func (*lowWater) reset() {}

func (*lowWater) raise() {}

func (*lowWater) read(conn net.Conn, p []byte) (int, error) { return conn.Read(p) }
