package h2_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/apikeel/kelson/internal/randomtest"
)

// peer is a client that does what clients should not.
type peer struct {
	*testing.T
	*tls.Conn
	framer *http2.Framer
	block  bytes.Buffer
	coder  *hpack.Encoder
}

func dial(t *testing.T, ts *httptest.Server) *peer {
	conn, err := tls.Dial("tcp", ts.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	p := &peer{T: t, Conn: conn}
	p.greet()
	return p
}

func (p *peer) greet() {
	if _, err := io.WriteString(p.Conn, http2.ClientPreface); err != nil {
		p.Fatal(err)
	}
	p.framer = http2.NewFramer(p.Conn, p.Conn)
	p.framer.AllowIllegalWrites = true
	p.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.coder = hpack.NewEncoder(&p.block)
	if err := p.framer.WriteSettings(); err != nil {
		p.Fatal(err)
	}
}

// begin sends the headers of a request.
func (p *peer) begin(stream uint32, end bool, fields ...string) error {
	all := append([]string{":method", "POST", ":path", "/", ":scheme", "https", ":authority", "x"}, fields...)
	for i := 0; i < len(all); i += 2 {
		_ = p.coder.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]})
	}
	block := bytes.Clone(p.block.Bytes())
	p.block.Reset()
	first := block[:min(len(block), 16<<10)]
	err := p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndStream: end, EndHeaders: len(first) == len(block)})
	for block = block[len(first):]; len(block) > 0 && err == nil; {
		next := block[:min(len(block), 16<<10)]
		block = block[len(next):]
		err = p.framer.WriteContinuation(stream, len(block) == 0, next)
	}
	return err
}

// outcome reads until a stream or the connection ends.
func (p *peer) outcome() any {
	for {
		frame, err := p.framer.ReadFrame()
		if err != nil {
			return err
		}
		switch f := frame.(type) {
		case *http2.RSTStreamFrame:
			return f.ErrCode
		case *http2.GoAwayFrame:
			return http2.ConnectionError(f.ErrCode)
		case *http2.MetaHeadersFrame:
			return f.PseudoValue("status")
		}
	}
}

// TestMistakes checks what clients hear that break the rules.
func TestMistakes(t *testing.T) {
	wait := make(chan struct{})
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Wait") != "" {
			select {
			case <-wait:
			case <-r.Context().Done():
			}
		}
		_, _ = io.Copy(io.Discard, r.Body)
	})
	defer close(wait)
	for name, c := range map[string]struct {
		do   func(p *peer)
		want any
	}{
		"good":                {func(p *peer) { _ = p.begin(1, true) }, "200"},
		"even stream":         {func(p *peer) { _ = p.begin(2, true) }, http2.ConnectionError(http2.ErrCodeProtocol)},
		"old stream":          {func(p *peer) { _ = p.begin(5, false, "wait", "1"); _ = p.begin(3, true) }, http2.ConnectionError(http2.ErrCodeProtocol)},
		"data of no stream":   {func(p *peer) { _ = p.framer.WriteData(7, false, []byte("x")) }, http2.ConnectionError(http2.ErrCodeProtocol)},
		"window of no stream": {func(p *peer) { _ = p.framer.WriteWindowUpdate(7, 1) }, http2.ConnectionError(http2.ErrCodeProtocol)},
		"reset of no stream":  {func(p *peer) { _ = p.framer.WriteRSTStream(7, 0) }, http2.ConnectionError(http2.ErrCodeProtocol)},
		"push":                {func(p *peer) { _ = p.framer.WriteRawFrame(http2.FramePushPromise, 4, 1, make([]byte, 4)) }, http2.ConnectionError(http2.ErrCodeProtocol)},
		"large frame":         {func(p *peer) { _ = p.framer.WriteRawFrame(http2.FramePing, 0, 0, make([]byte, 100<<10)) }, http2.ConnectionError(http2.ErrCodeFrameSize)},
		"connection window":   {func(p *peer) { _ = p.framer.WriteWindowUpdate(0, 1<<31-1) }, http2.ConnectionError(http2.ErrCodeFlowControl)},
		"stream window":       {func(p *peer) { _ = p.begin(1, true, "wait", "1"); _ = p.framer.WriteWindowUpdate(1, 1<<31-1) }, http2.ErrCodeFlowControl},
		"initial window": {func(p *peer) {
			_ = p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31})
		}, http2.ConnectionError(http2.ErrCodeFlowControl)},
		"too much data": {func(p *peer) {
			_ = p.begin(1, false, "wait", "1")
			_ = p.framer.WriteData(1, false, make([]byte, 60<<10))
			_ = p.framer.WriteData(1, false, make([]byte, 60<<10))
		}, http2.ErrCodeFlowControl},
		"data after the end": {func(p *peer) { _ = p.begin(1, true, "wait", "1"); _ = p.framer.WriteData(1, false, []byte("x")) }, http2.ErrCodeStreamClosed},
		"more than declared": {func(p *peer) {
			_ = p.begin(1, false, "content-length", "1")
			_ = p.framer.WriteData(1, false, []byte("xy"))
		}, http2.ErrCodeProtocol},
		"less than declared": {func(p *peer) {
			_ = p.begin(1, false, "content-length", "3")
			_ = p.framer.WriteData(1, true, []byte("xy"))
		}, http2.ErrCodeProtocol},
		"blank before a value":    {func(p *peer) { _ = p.begin(1, true, "x", " a") }, http2.ErrCodeProtocol},
		"tab after a value":       {func(p *peer) { _ = p.begin(1, true, "x", "a\t") }, http2.ErrCodeProtocol},
		"blank in a value":        {func(p *peer) { _ = p.begin(1, true, "x", "a \tb", "y", "") }, "200"},
		"blank alone":             {func(p *peer) { _ = p.begin(1, true, "x", " ") }, "200"},
		"declared and none":       {func(p *peer) { _ = p.begin(1, true, "content-length", "3") }, http2.ErrCodeProtocol},
		"two lengths":             {func(p *peer) { _ = p.begin(1, false, "content-length", "3", "content-length", "4") }, http2.ErrCodeProtocol},
		"not a length":            {func(p *peer) { _ = p.begin(1, false, "content-length", "-3") }, http2.ErrCodeProtocol},
		"trailers without an end": {func(p *peer) { _ = p.begin(1, false, "wait", "1"); _ = p.begin(1, false) }, http2.ErrCodeProtocol},
		"empty name":              {func(p *peer) { _ = p.begin(1, true, "", "1") }, http2.ErrCodeProtocol},
		"upper case":              {func(p *peer) { _ = p.begin(1, true, "Wait", "1") }, http2.ErrCodeProtocol},
		"pseudo header later":     {func(p *peer) { _ = p.begin(1, true, "wait", "1", ":path", "/x") }, http2.ErrCodeProtocol},
		"unknown pseudo header":   {func(p *peer) { _ = p.begin(1, true, ":odd", "1") }, http2.ErrCodeProtocol},
		"extended connect":        {func(p *peer) { _ = p.begin(1, true, ":protocol", "websocket") }, http2.ErrCodeProtocol},
		"hop-by-hop header":       {func(p *peer) { _ = p.begin(1, true, "connection", "close") }, "400"},
		"too many headers": {func(p *peer) {
			_ = p.begin(1, true, slices.Repeat([]string{"y", strings.Repeat("y", 10<<10)}, 7)...)
		}, "431"},
		"depends on itself": {func(p *peer) {
			_ = p.begin(1, true, "wait", "1")
			_ = p.framer.WriteRawFrame(http2.FramePriority, 0, 1, []byte{0, 0, 0, 1, 0})
		}, http2.ErrCodeProtocol},
		"no settings first":         {func(p *peer) {}, nil},
		"continuation of nothing":   {func(p *peer) { _ = p.framer.WriteContinuation(1, true, nil) }, http2.ConnectionError(http2.ErrCodeProtocol)},
		"settings that are no list": {func(p *peer) { _ = p.framer.WriteRawFrame(http2.FrameSettings, 0, 0, make([]byte, 5)) }, http2.ConnectionError(http2.ErrCodeFrameSize)},
	} {
		t.Run(name, func(t *testing.T) {
			if c.want == nil {
				conn, err := tls.Dial("tcp", ts.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				p := &peer{T: t, Conn: conn}
				_, _ = io.WriteString(conn, http2.ClientPreface)
				p.framer = http2.NewFramer(conn, conn)
				_ = p.framer.WritePing(false, [8]byte{})
				if got := p.outcome(); got != http2.ConnectionError(http2.ErrCodeProtocol) {
					t.Error(got)
				}
				return
			}
			p := dial(t, ts)
			c.do(p)
			if got := p.outcome(); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
	if resp, _ := get(t, ts, "/"); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}

// TestTooManyStreams has a client with more requests than it may.
func TestTooManyStreams(t *testing.T) {
	s := newServer()
	s.MaxStreams = 2
	release := make(chan struct{})
	ts := serve(t, s, func(w http.ResponseWriter, r *http.Request) { <-release })
	defer close(release)
	p := dial(t, ts)
	for i := range uint32(3) {
		if err := p.begin(2*i+1, true); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.outcome(); got != http2.ErrCodeRefusedStream {
		t.Error(got)
	}
}

// TestRapidReset has a client that gives up requests as fast as it sends them.
func TestRapidReset(t *testing.T) {
	s := newServer()
	s.MaxStreams = 4
	var running, most atomic.Int64
	release := make(chan struct{})
	ts := serve(t, s, func(w http.ResponseWriter, r *http.Request) {
		most.Store(max(most.Load(), running.Add(1)))
		<-release
		running.Add(-1)
	})
	defer close(release)
	p := dial(t, ts)
	for i := range uint32(100) {
		if p.begin(2*i+1, true) != nil || p.framer.WriteRSTStream(2*i+1, http2.ErrCodeCancel) != nil {
			break // it was cut off
		}
	}
	if got := p.outcome(); got != http2.ConnectionError(http2.ErrCodeEnhanceYourCalm) && !errors.Is(got.(error), io.EOF) {
		t.Error(got)
	}
	if most.Load() > 4 {
		t.Errorf("%d requests at a time", most.Load())
	}
}

// TestFlood has a client that causes answers and reads none.
func TestFlood(t *testing.T) {
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {})
	p := dial(t, ts)
	var pings bytes.Buffer
	for framer := http2.NewFramer(&pings, nil); pings.Len() < 1<<20; {
		_ = framer.WritePing(false, [8]byte{})
	}
	var err error
	for err == nil {
		_, err = p.Write(pings.Bytes())
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("it was not cut off")
	}
	if resp, _ := get(t, ts, "/"); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}

// TestRandomFrames sends what is almost HTTP/2.
func TestRandomFrames(t *testing.T) {
	var valid, block bytes.Buffer
	framer, coder := http2.NewFramer(&valid, nil), hpack.NewEncoder(&block)
	_ = framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
	for _, field := range [][2]string{{":method", "POST"}, {":path", "/"}, {":scheme", "https"}, {":authority", "x"}, {"content-length", "3"}} {
		_ = coder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	_ = framer.WriteData(1, true, []byte("abc"))
	_ = framer.WriteWindowUpdate(1, 5)
	_ = framer.WritePing(false, [8]byte{})
	_ = framer.WriteRSTStream(1, 0)
	_ = framer.WriteGoAway(1, 0, nil)

	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	random := randomtest.New(t)
	for range 200 {
		data := bytes.Clone(valid.Bytes())
		for range random.IntN(4) {
			data[random.IntN(len(data))] = byte(random.Int())
		}
		from, to := random.IntN(len(data)), random.IntN(len(data))
		from, to = min(from, to), max(from, to)
		switch random.IntN(4) {
		case 0:
			data = data[:to]
		case 1:
			data = append(data, data[from:to]...)
		case 2:
			data = append(data[:from], data[to:]...)
		}
		conn, err := tls.Dial("tcp", ts.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = conn.Write(append([]byte(http2.ClientPreface), data...))
		_ = conn.CloseWrite()
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("a connection does not end: %x", data)
		}
		conn.Close()
	}
	if resp, _ := get(t, ts, "/"); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}
