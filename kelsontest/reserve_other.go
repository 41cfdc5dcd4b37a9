//go:build !unix

package kelsontest

import "net"

// A reservation is a port that was free a moment ago.
type reservation struct{ port int }

func reserve(host string) (*reservation, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	return &reservation{listener.Addr().(*net.TCPAddr).Port}, listener.Close()
}

func (r *reservation) free() {}
