//go:build linux

package attack

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// http1 sends bytes on a connection of HTTP/1.1 and returns the status codes of all
// answers until the server hangs up, or there is no further one for a while.
func (a *assault) http1(text string, while time.Duration) (codes []int, hungUp bool) {
	a.Helper()
	conn, err := a.tls(&tls.Config{NextProtos: []string{"http/1.1"}})
	if err != nil {
		a.Fatalf("handshake: %v", err)
	}
	defer conn.Close()
	go func() { _, _ = io.WriteString(conn, text) }()
	in := bufio.NewReader(conn)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(while))
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			timeout, ok := err.(interface{ Timeout() bool })
			return codes, !ok || !timeout.Timeout()
		}
		codes = append(codes, resp.StatusCode)
		_, _ = io.Copy(io.Discard, resp.Body)
	}
}

// TestSmuggling sends messages whose end two servers could see at different places: a
// request that hides in the body of another must not be served.
func TestSmuggling(t *testing.T) {
	const hidden = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
	head := "POST /version HTTP/1.1\r\nHost: x\r\n"
	for name, c := range map[string]struct {
		text string
		most int  // answers
		ends bool // the server hangs up
		code int  // of the first answer, 0 if it does not matter
	}{
		// Of both, net/http goes by the coding alone, as RFC 9112 wants, and goes on.
		"length and chunked":           {head + "Content-Length: 38\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden, 2, false, 0},
		"chunked and length":           {head + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n" + hidden, 0, false, 0},
		"two lengths":                  {head + "Content-Length: 0\r\nContent-Length: 33\r\n\r\n" + hidden, 1, true, 400},
		"a list of lengths":            {head + "Content-Length: 0, 33\r\n\r\n" + hidden, 1, true, 400},
		"a length with a sign":         {head + "Content-Length: +0\r\n\r\n" + hidden, 1, true, 400},
		"a negative length":            {head + "Content-Length: -1\r\n\r\n" + hidden, 1, true, 400},
		"a hexadecimal length":         {head + "Content-Length: 0x21\r\n\r\n" + hidden, 1, true, 400},
		"a huge length":                {head + "Content-Length: 99999999999999999999\r\n\r\n" + hidden, 1, true, 400},
		"chunked twice":                {head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden, 1, true, 0},
		"chunked and identity":         {head + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + hidden, 1, true, 501},
		"an unknown coding":            {head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + hidden, 1, true, 501},
		"space before the colon":       {head + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + hidden, 1, true, 400},
		"tab before chunked":           {head + "Content-Length: 38\r\nTransfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n" + hidden, 2, false, 0},
		"a line that goes on":          {head + "X: y\r\n Content-Length: 33\r\n\r\n" + hidden, 2, false, 0},
		"a first line that goes on":    {"POST /version HTTP/1.1\r\n Host: x\r\n\r\n" + hidden, 1, true, 400},
		"a name with a zero byte":      {head + "Content-Length\x00: 33\r\n\r\n" + hidden, 1, true, 400},
		"a value with a zero byte":     {head + "Content-Length: 33\x00\r\n\r\n" + hidden, 1, true, 400},
		"a bare CR":                    {head + "X: y\rContent-Length: 33\r\n\r\n" + hidden, 1, true, 400},
		"a bare LF in a chunk size":    {head + "Transfer-Encoding: chunked\r\n\r\n0\n\r\n" + hidden, 1, true, 0},
		"a bare LF in an extension":    {head + "Transfer-Encoding: chunked\r\n\r\n0;x\n5c\r\n\r\n" + hidden, 1, true, 0},
		"a chunk without its end":      {head + "Transfer-Encoding: chunked\r\n\r\n1\r\nxx\r\n0\r\n\r\n" + hidden, 1, true, 0},
		"a huge chunk":                 {head + "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n\r\n" + hidden, 1, true, 0},
		"a negative chunk":             {head + "Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n" + hidden, 1, true, 0},
		"HTTP/1.0 chunked":             {"POST /version HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden, 1, true, 0},
		"no host":                      {"GET /version HTTP/1.1\r\n\r\n", 1, true, 400},
		"two hosts":                    {"GET /version HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 1, true, 400},
		"an upgrade to HTTP/2":         {"GET /version HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n", 1, false, 200},
		"a preface":                    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 1, true, 0},
		"an upgrade to anything":       {"GET /version HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: anything\r\n\r\n", 1, false, 200},
		"an upgrade without a session": {"GET /api/v1/namespaces/default/pods/x/exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n", 1, false, 403},
		"a method with a space":        {"GE T /version HTTP/1.1\r\nHost: x\r\n\r\n", 1, true, 400},
		"CONNECT":                      {"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\n\r\n", 1, false, 403},
		"an absolute URI":              {"GET http://127.0.0.1:22/version HTTP/1.1\r\nHost: x\r\n\r\n", 1, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &assault{T: t, s: victim}
			defer a.hangUp()
			codes, ended := a.http1(c.text, 2*time.Second)
			if len(codes) > c.most {
				t.Errorf("%d answers %v, want at most %d", len(codes), codes, c.most)
			}
			if c.ends && !ended {
				t.Errorf("answers %v, and the connection goes on", codes)
			}
			if c.code != 0 && (len(codes) == 0 || codes[0] != c.code) {
				t.Errorf("answers %v, want %d", codes, c.code)
			}
		})
	}
}

// TestHTTP1 sends much, or much of one kind, over HTTP/1.1.
func TestHTTP1(t *testing.T) {
	var many strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&many, "X%d: y\r\n", i)
	}
	const get = "GET /version HTTP/1.1\r\nHost: x\r\n"
	const post = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer jane\r\nContent-Type: application/json\r\n"
	for name, c := range map[string]struct {
		text  string
		price price
		code  int
	}{
		"pipelined requests":           {strings.Repeat(get+"\r\n", 2000), price{cpu: 20 * 1e6, held: 1 << 10, log: 16}, 200},
		"a huge header":                {get + "X: " + strings.Repeat("y", 2<<20) + "\r\n\r\n", price{cpu: 1e6, held: 4 << 10, log: 16}, 431},
		"a huge first line":            {"GET /" + strings.Repeat("y", 2<<20) + " HTTP/1.1\r\nHost: x\r\n\r\n", price{cpu: 1e6, held: 4 << 10, log: 16}, 431},
		"many headers":                 {get + many.String() + "\r\n", price{cpu: 3 * 1e6, held: 64 << 10, log: 16}, 0},
		"the same header again":        {get + strings.Repeat("x:\r\n", 100_000) + "\r\n", price{cpu: 3 * 1e6, held: 64 << 10, log: 16}, 0},
		"cookies":                      {get + strings.Repeat("Cookie: a\r\n", 50_000) + "\r\n", price{cpu: 3 * 1e6, held: 64 << 10, log: 16}, 0},
		"an endless chunked body":      {post + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("400\r\n"+strings.Repeat("x", 1<<10)+"\r\n", 8<<10), price{cpu: 1e6, held: 4 << 10, log: 16}, 0},
		"chunks of a byte":             {post + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1\r\nx\r\n", 200_000), price{cpu: 2 * 1e6, held: 4 << 10, log: 16}, 0},
		"chunk extensions":             {post + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1;"+strings.Repeat("e", 1000)+"\r\nx\r\n", 2000), price{cpu: 2 * 1e6, held: 4 << 10, log: 16}, 0},
		"a large body that is unread":  {"POST /version HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n" + strings.Repeat("x", 4<<20), price{cpu: 1e6, held: 4 << 10, log: 16}, 0},
		"endless trailers":             {post + "Transfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("x: y\r\n", 200_000), price{cpu: 2 * 1e6, held: 4 << 10, log: 16}, 0},
		"a body with expectations":     {post + "Expect: 100-continue\r\nContent-Length: 100000000\r\n\r\n", price{cpu: 1e6, held: 4 << 10, log: 16}, 0},
		"many connections with a byte": {"P", price{cpu: 1e6, held: 4 << 10, log: 16}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, c.price, func(a *assault) {
				wait := 300 * time.Millisecond
				if c.code == http.StatusRequestHeaderFieldsTooLarge {
					wait = patience // the server closes the connection
				}
				codes, _ := a.http1(c.text, wait)
				if c.code != 0 && (len(codes) == 0 || codes[0] != c.code) {
					a.Errorf("answers %v, want %d", codes, c.code)
				}
				a.hold()
			})
		})
	}
}
