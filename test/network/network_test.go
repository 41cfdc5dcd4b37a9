// Package network runs the programs and suites of others against the server's
// connections: h2spec, curl, h2load, Node, nginx and HAProxy. It is a module of
// its own, since nobody who uses the server needs h2spec.
//
// A test whose program is not installed is skipped, and says what to install.
package network

import (
	"net"
	"strconv"
	"testing"
)

// address is the host and the port of a URL.
func address(t *testing.T, url string) (host string, port int) {
	t.Helper()
	host, text, err := net.SplitHostPort(url[len("https://"):])
	if err != nil {
		t.Fatal(err)
	}
	if port, err = strconv.Atoi(text); err != nil {
		t.Fatal(err)
	}
	return host, port
}
