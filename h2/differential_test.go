package h2_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// FuzzLikeNetHTTP sends the same header fields, body and trailers to this server and to that of
// net/http: handlers get the same request, or both servers refuse it. Only isStricter says what
// this server may refuse alone. Fields and trailers are lines of name=value; "-" is a pseudo
// header field that is not sent.
func FuzzLikeNetHTTP(f *testing.F) {
	add := func(method, path, scheme, authority, fields, body, trailers string) {
		f.Add(method, path, scheme, authority, fields, body, trailers)
	}
	add("GET", "/apis/a%2Fb/%2e%2e//c?x=1&x=2;y", "https", "example.com", "accept=a\naccept=b\nx-many=1\nx-many=2", "", "")
	add("POST", "/", "https", "example.com", "content-type=a\ncontent-type=b\ncontent-length=4", "body", "")
	for _, path := range []string{"*", "", "-", "x", "//host/x", "https://other/x?y",
		"/%", "/%00", "/a b", "/#f", "/?#f", "/ü", "/\x7f", "?x"} {
		add("GET", path, "https", "example.com", "", "", "")
	}
	for _, method := range []string{"get", "HEAD", "CONNECT", "", "-", "G T", "OPTIONS", "PATCH", "\x80"} {
		add(method, "/", "https", "example.com", "", "", "")
	}
	add("CONNECT", "-", "-", "example.com:1", "", "", "")
	add("CONNECT", "/", "https", "example.com", ":protocol=websocket", "", "")
	for _, scheme := range []string{"http", "HTTPS", "ftp", "", "-"} {
		add("GET", "/", scheme, "example.com", "", "", "")
	}
	for _, authority := range []string{"-", "", "admin@example.com", "a b", "a/b", "a:b:c", "[::1]", "a,b"} {
		add("GET", "/", "https", authority, "", "", "")
		add("GET", "/", "https", authority, "host=other", "", "")
		add("GET", "/", "https", authority, "host=one\nhost=two", "", "")
	}
	for _, fields := range []string{
		"authorization=a\nauthorization=b", "impersonate-user=\nimpersonate-user=admin", "X-Upper=1", "a b=1", "=1", "x=", "x=\x00", "x=a\nb", "x= a", "x=a\t",
		"cookie=a\ncookie=b\ncookie=", "connection=close", "keep-alive=1", "proxy-connection=x", "transfer-encoding=chunked", "upgrade=websocket",
		"te=trailers", "te=gzip", "te=trailers\nte=trailers", "te=", "te=Trailers", ":method=POST", ":path=/other", "x=1\n:authority=b", ":unknown=1", ":=1",
		"x_remote_user=a\nx-remote-user=b", "impersonate-extra-a%2fb=1\nimpersonate-extra-a%2Fb=2", "expect=100-continue", "expect=100-Continue", "expect=other",
		"expect=x, 100-continue", "expect=x\nexpect=100-continue", "trailer=X-Sum", "http2-settings=a", "ü=1", "x=ü", "x=\xff",
		"content-length=0", "content-length=",
	} {
		add("GET", "/", "https", "example.com", fields, "", "")
		add("POST", "/", "https", "example.com", fields, "body", "")
	}
	for _, length := range []string{"4", "04", "+4", "-4", "4 ", "3", "5", "4,4", "4\ncontent-length=4", "4\ncontent-length=5", "5\ncontent-length=4",
		"0x4", "9223372036854775808", "18446744073709551620"} {
		add("POST", "/", "https", "example.com", "content-length="+length, "body", "")
		add("POST", "/", "https", "example.com", "content-length="+length, "", "")
		add("POST", "/", "https", "example.com", "content-length="+length, "body", "x-sum=1")
	}
	for _, trailers := range []string{"x-sum=1", "x-sum=1\nx-sum=2\nother=1", "content-length=1", "host=a", "authorization=a", ":path=/", "X-Sum=1",
		"x-sum= 1", "transfer-encoding=chunked"} {
		for _, announced := range []string{"x=", "trailer=X-Sum", "trailer=x-sum, Host\ntrailer=Authorization,Content-Length,,", "trailer=x sum"} {
			add("POST", "/", "https", "example.com", announced, "body", trailers)
		}
	}
	ours, theirs := differential{ts: serve(f, newServer(), describeRequest)}, differential{ts: serve(f, nil, describeRequest)}
	defer ours.close()
	defer theirs.close()
	f.Fuzz(func(t *testing.T, method, path, scheme, authority, fields, body, trailers string) {
		if len(method)+len(path)+len(scheme)+len(authority)+len(fields)+len(body)+len(trailers) > 4<<10 {
			return
		}
		var block []hpack.HeaderField
		for _, pseudo := range []hpack.HeaderField{
			{Name: ":method", Value: method}, {Name: ":path", Value: path}, {Name: ":scheme", Value: scheme}, {Name: ":authority", Value: authority},
		} {
			if pseudo.Value != "-" {
				block = append(block, pseudo)
			}
		}
		block = append(block, fieldsOf(fields)...)
		got, want := ours.ask(t, block, body, fieldsOf(trailers)), theirs.ask(t, block, body, fieldsOf(trailers))
		if got != want && (got != refused || !isStricter(block, fieldsOf(trailers), body)) {
			t.Errorf("got\n%s\nwant, as of net/http,\n%s", got, want)
		}
	})
}

func fieldsOf(text string) (fields []hpack.HeaderField) {
	for line := range strings.SplitSeq(text, "\n") {
		if name, value, ok := strings.Cut(line, "="); ok {
			fields = append(fields, hpack.HeaderField{Name: name, Value: value})
		}
	}
	return fields
}

// isStricter reports whether fields break a rule that net/http does not know: a value has blanks
// around it, a length is no number, or not that of the body, or trailers that were not announced
// have names that trailers may not have.
func isStricter(fields, trailers []hpack.HeaderField, body string) bool {
	for _, f := range fields {
		if strings.Trim(f.Value, " \t") != f.Value || f.Name == "content-length" && f.Value != fmt.Sprint(len(body)) {
			return true
		}
	}
	for _, f := range trailers {
		if strings.Trim(f.Value, " \t") != f.Value || !httpguts.ValidTrailerHeader(textproto.CanonicalMIMEHeaderKey(f.Name)) {
			return true
		}
	}
	return false
}

// describeRequest answers with all that a handler gets to see of a request.
func describeRequest(w http.ResponseWriter, r *http.Request) {
	var b strings.Builder
	header := func(h http.Header) {
		for _, name := range slices.Sorted(maps.Keys(h)) {
			// net/http leaves what it has read as Host among the headers, and takes names of
			// trailers that it refuses when they come.
			if name != "Host" && httpguts.ValidTrailerHeader(name) || h[name] != nil && name != "Host" {
				fmt.Fprintf(&b, "%s: %q\n", name, h[name])
			}
		}
	}
	fmt.Fprintf(&b, "%q %#v %q %q %s %d\n", r.Method, *r.URL, r.Host, r.RequestURI, r.Proto, r.ContentLength)
	header(r.Header)
	b.WriteString("trailers\n")
	header(r.Trailer)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	fmt.Fprintf(&b, "%q\n", body)
	header(r.Trailer)
	w.Header().Set("Content-Type", "text/plain")
	_, _ = io.WriteString(w, b.String())
}

// refused is what comes of a request that no handler gets.
const refused = "refused"

// differential is a connection to a server, which is opened again when the server has closed it.
type differential struct {
	ts     *httptest.Server
	conn   *tls.Conn
	framer *http2.Framer
	block  bytes.Buffer
	coder  *hpack.Encoder
	stream uint32
}

func (d *differential) close() {
	if d.conn != nil {
		d.conn.Close()
		d.conn = nil
	}
}

func (d *differential) dial(t *testing.T) {
	conn, err := tls.Dial("tcp", d.ts.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	d.conn, d.stream = conn, 1
	d.block.Reset()
	d.coder = hpack.NewEncoder(&d.block)
	d.framer = http2.NewFramer(conn, conn)
	d.framer.AllowIllegalWrites = true
	d.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, _ = io.WriteString(conn, http2.ClientPreface)
	_ = d.framer.WriteSettings()
	_ = d.framer.WriteWindowUpdate(0, 1<<30)
}

func (d *differential) encode(fields []hpack.HeaderField) []byte {
	d.block.Reset()
	for _, field := range fields {
		_ = d.coder.WriteField(field)
	}
	return d.block.Bytes()
}

// ask sends a request and returns what the handler has seen of it, or refused.
func (d *differential) ask(t *testing.T, fields []hpack.HeaderField, body string, trailers []hpack.HeaderField) string {
	isNew := d.conn == nil
	if isNew {
		d.dial(t)
	}
	answer := d.try(fields, body, trailers)
	if d.conn == nil && !isNew {
		// Perhaps the server has closed the connection for what was sent before.
		d.dial(t)
		answer = d.try(fields, body, trailers)
	}
	return answer
}

func (d *differential) try(fields []hpack.HeaderField, body string, trailers []hpack.HeaderField) string {
	_ = d.conn.SetDeadline(time.Now().Add(patience))
	id := d.stream
	d.stream += 2
	_ = d.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: d.encode(fields), EndHeaders: true, EndStream: body == "" && len(trailers) == 0,
	})
	if body != "" || len(trailers) > 0 {
		_ = d.framer.WriteData(id, len(trailers) == 0, []byte(body))
	}
	if len(trailers) > 0 {
		_ = d.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: d.encode(trailers), EndHeaders: true, EndStream: true})
	}
	var answer strings.Builder
	for {
		frame, err := d.framer.ReadFrame()
		if err != nil {
			d.close()
			return refused
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = d.framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				_ = d.framer.WritePing(true, f.Data)
			}
		case *http2.GoAwayFrame:
			d.close()
			return refused
		case *http2.RSTStreamFrame:
			if f.StreamID == id {
				return refused
			}
		case *http2.MetaHeadersFrame:
			if f.StreamID != id {
				continue
			}
			switch f.PseudoValue("status") {
			case "100":
			case "200":
				if f.StreamEnded() {
					return answer.String()
				}
			default: // not from the handler; whether a reset comes first is a matter of time
				return refused
			}
		case *http2.DataFrame:
			if f.StreamID != id {
				continue
			}
			answer.Write(f.Data())
			if f.StreamEnded() {
				return answer.String()
			}
		}
	}
}
