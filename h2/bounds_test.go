package h2_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/h2"
	"github.com/apikeel/kelson/internal/polltest"
)

// frames reads frames until the test has seen what it wants, or fails it.
func (p *peer) frames(want string, until func(http2.Frame) bool) {
	p.Helper()
	for {
		frame, err := p.framer.ReadFrame()
		if err != nil {
			p.Fatalf("got %v, want %s", err, want)
		}
		if until(frame) {
			return
		}
	}
}

// ping waits until the server has handled everything that was sent before. It fails
// for a frame that the test does not expect meanwhile.
func (p *peer) ping(unwanted func(http2.Frame) bool) {
	p.Helper()
	if err := p.framer.WritePing(false, [8]byte{'p'}); err != nil {
		p.Fatal(err)
	}
	p.frames("an answer to PING", func(f http2.Frame) bool {
		if unwanted != nil && unwanted(f) {
			p.Fatalf("got %v", f)
		}
		ping, ok := f.(*http2.PingFrame)
		return ok && ping.IsAck()
	})
}

func isError(f http2.Frame) bool {
	switch f.(type) {
	case *http2.RSTStreamFrame, *http2.GoAwayFrame:
		return true
	}
	return false
}

// TestTrailersAppearWhenTheBodyEnds: a handler may read Request.Trailer at any time.
// What arrives is put there when the handler reads the end of the body, not before.
func TestTrailersAppearWhenTheBodyEnds(t *testing.T) {
	looked, sent := make(chan struct{}), make(chan struct{})
	got := make(chan http.Header, 1)
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {
		for done := false; !done; {
			if values := r.Clone(r.Context()).Trailer["X-Sum"]; values != nil {
				t.Errorf("trailers before the end of the body: %q", values)
			}
			select {
			case looked <- struct{}{}:
			case <-sent:
				done = true
			}
		}
		_, _ = io.Copy(io.Discard, r.Body)
		got <- r.Trailer
	})
	p := dial(t, ts)
	if err := p.begin(1, false, "trailer", "x-sum"); err != nil {
		t.Fatal(err)
	}
	<-looked
	_ = p.coder.WriteField(hpack.HeaderField{Name: "x-sum", Value: "7"})
	_ = p.coder.WriteField(hpack.HeaderField{Name: "x-other", Value: "8"})
	_ = p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block.Bytes(), EndStream: true, EndHeaders: true})
	p.ping(nil)
	for range 10 {
		<-looked
	}
	close(sent)
	if trailer := <-got; trailer.Get("X-Sum") != "7" || trailer.Get("X-Other") != "" {
		t.Errorf("trailers %v, want the one that was announced", trailer)
	}
}

// TestHeaderFieldsAreBounded: the number of fields is bounded, whatever their size,
// and so is the number of trailers that a request announces.
func TestHeaderFieldsAreBounded(t *testing.T) {
	cookie := make(chan string, 1)
	s := newServer()
	s.MaxHeaderBytes = 1 << 20
	ts := serve(t, s, func(w http.ResponseWriter, r *http.Request) { cookie <- r.Header.Get("Cookie") })
	for name, c := range map[string]struct {
		fields []string
		want   string
	}{
		"fields":        {crumbs("x", 995), "200"},
		"many fields":   {crumbs("x", 1001), "431"},
		"cookies":       {crumbs("cookie", 995), "200"},
		"many cookies":  {crumbs("cookie", 30000), "431"},
		"trailers":      {[]string{"trailer", strings.Repeat("a,", 900)}, "200"},
		"many trailers": {[]string{"trailer", strings.Repeat("a,", 2000)}, "431"},
	} {
		t.Run(name, func(t *testing.T) {
			p := dial(t, ts)
			if err := p.begin(1, true, c.fields...); err != nil {
				t.Fatal(err)
			}
			if got := p.outcome(); got != c.want {
				t.Fatalf("got %v, want %s", got, c.want)
			}
			if c.want != "200" {
				return
			}
			want := ""
			if c.fields[0] == "cookie" {
				want = strings.TrimSuffix(strings.Repeat("a; ", 995), "; ")
			}
			if got := <-cookie; got != want {
				t.Errorf("cookie of %d bytes, want %d", len(got), len(want))
			}
		})
	}
}

func crumbs(name string, n int) (fields []string) {
	for range n {
		fields = append(fields, name, "a")
	}
	return fields
}

// TestHeadersOfAllRequestsAreBounded: requests that wait do not hold more headers
// than a connection may have together.
func TestHeadersOfAllRequestsAreBounded(t *testing.T) {
	release := make(chan struct{})
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) { <-release })
	p := dial(t, ts)
	big := strings.Repeat("y", 50<<10)
	for i := range uint32(3) {
		if err := p.begin(2*i+1, true, "y", big); err != nil {
			t.Fatal(err)
		}
	}
	p.frames("REFUSED_STREAM for the third", func(f http2.Frame) bool {
		reset, ok := f.(*http2.RSTStreamFrame)
		return ok && reset.StreamID == 5 && reset.ErrCode == http2.ErrCodeRefusedStream
	})
	close(release)
	ended := 0
	p.frames("two answers", func(f http2.Frame) bool {
		if _, ok := f.(*http2.MetaHeadersFrame); ok {
			ended++
		}
		return ended == 2
	})
	if err := p.begin(7, true, "y", big); err != nil {
		t.Fatal(err)
	}
	p.frames("an answer when there is room again", func(f http2.Frame) bool {
		_, ok := f.(*http2.MetaHeadersFrame)
		return ok
	})
}

// TestContinuationsAreBounded: a header block has a bounded number of frames and bytes.
func TestContinuationsAreBounded(t *testing.T) {
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {})
	for name, size := range map[string]int{"empty": 0, "full": 16 << 10} {
		t.Run(name, func(t *testing.T) {
			p := dial(t, ts)
			_ = p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1})
			for range 1000 {
				if p.framer.WriteContinuation(1, false, make([]byte, size)) != nil {
					break
				}
			}
			if got := p.outcome(); got != http2.ConnectionError(http2.ErrCodeEnhanceYourCalm) {
				if err, ok := got.(error); !ok || !isClosed(err) {
					t.Errorf("got %v, want ENHANCE_YOUR_CALM", got)
				}
			}
		})
	}
}

// isClosed reports whether an error is the end of a connection that the server closed.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || strings.Contains(err.Error(), "reset by peer") || strings.Contains(err.Error(), "broken pipe")
}

// TestEarlyResponseIgnoresTheRestOfTheBody: what a client sends of a body before it
// knows of the response is dropped without another word, also trailers.
func TestEarlyResponseIgnoresTheRestOfTheBody(t *testing.T) {
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusForbidden) })
	p := dial(t, ts)
	if err := p.begin(1, false); err != nil {
		t.Fatal(err)
	}
	p.frames("the response", func(f http2.Frame) bool {
		if isError(f) {
			t.Fatalf("got %v with the response", f)
		}
		headers, ok := f.(*http2.MetaHeadersFrame)
		return ok && headers.StreamEnded()
	})
	for range 4 {
		_ = p.framer.WriteData(1, false, make([]byte, 10<<10))
	}
	_ = p.coder.WriteField(hpack.HeaderField{Name: "x", Value: "y"})
	_ = p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block.Bytes(), EndStream: true, EndHeaders: true})
	p.block.Reset()
	p.ping(isError)
}

// TestRefusedUploadEnds: a client that goes on sending a body after the response is
// told to stop after a while, and one reset is enough.
func TestRefusedUploadEnds(t *testing.T) {
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusForbidden) })
	p := dial(t, ts)
	if err := p.begin(1, false); err != nil {
		t.Fatal(err)
	}
	connection, stream, sent, reset := 65535, 64<<10, 0, false
	for !reset {
		for connection >= 10<<10 && stream >= 10<<10 {
			_ = p.framer.WriteData(1, false, make([]byte, 10<<10))
			connection, stream, sent = connection-10<<10, stream-10<<10, sent+10<<10
		}
		p.frames("a window, or the reset", func(f http2.Frame) bool {
			switch f := f.(type) {
			case *http2.WindowUpdateFrame:
				if f.StreamID == 0 {
					connection += int(f.Increment)
				} else {
					stream += int(f.Increment)
				}
				return true
			case *http2.RSTStreamFrame:
				reset = true
				if f.ErrCode != http2.ErrCodeNo {
					t.Errorf("got %v, want NO_ERROR", f.ErrCode)
				}
				return true
			}
			return false
		})
	}
	if sent < 1<<20 || sent > 8<<20 {
		t.Errorf("%d bytes were taken, want about 4 MB", sent)
	}
	// What is on its way then is not answered.
	_ = p.framer.WriteData(1, false, make([]byte, min(stream, connection)))
	p.ping(isError)
}

// TestWindowsComeBack: what a client sends, dropped or read, padding included, is
// given back to its windows.
func TestWindowsComeBack(t *testing.T) {
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Read") != "" {
			_, _ = io.Copy(io.Discard, r.Body)
		}
	})
	p := dial(t, ts)
	connection, stream := 65535, map[uint32]int{}
	send := func(id uint32, end bool, size, pad int) {
		t.Helper()
		for n := size + pad + 1; connection < n || stream[id] < n; {
			p.frames("a window", func(f http2.Frame) bool {
				switch f := f.(type) {
				case *http2.WindowUpdateFrame:
					if f.StreamID == 0 {
						connection += int(f.Increment)
					} else {
						stream[f.StreamID] += int(f.Increment)
					}
					return true
				}
				return false
			})
		}
		connection -= size + pad + 1
		stream[id] -= size + pad + 1
		if err := p.framer.WriteDataPadded(id, end, make([]byte, size), make([]byte, pad)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint32(4) {
		id := 2*i + 1
		stream[id] = 64 << 10
		var fields []string
		if i%2 == 0 {
			fields = []string{"read", "1"}
		}
		if err := p.begin(id, false, fields...); err != nil {
			t.Fatal(err)
		}
		for range 100 { // 1.2 MB, windows are 64 KB and 256 KB
			send(id, false, 12<<10, 200)
		}
		send(id, true, 0, 0)
	}
	p.ping(func(f http2.Frame) bool { _, ok := f.(*http2.GoAwayFrame); return ok })
}

// TestStalledClientHoldsNoHandler: a client without a window gets small responses when
// it has one, and no handler waits for it meanwhile.
func TestStalledClientHoldsNoHandler(t *testing.T) {
	var running atomic.Int64
	returned := make(chan struct{}, 100)
	body := bytes.Repeat([]byte("0123456789"), 1000)
	s := newServer()
	ts := serve(t, s, func(w http.ResponseWriter, r *http.Request) {
		running.Add(1)
		_, _ = w.Write(body)
		w.(http.Flusher).Flush()
		_, _ = w.Write(body)
		running.Add(-1)
		returned <- struct{}{}
	})
	p := dial(t, ts)
	_ = p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	const n = 40
	for i := range uint32(n) {
		if err := p.begin(2*i+1, true); err != nil {
			t.Fatal(err)
		}
	}
	for range n {
		select {
		case <-returned:
		case <-time.After(patience):
			t.Fatalf("%d handlers wait for a client without a window", running.Load())
		}
	}
	// One byte, then half, then all.
	_ = p.framer.WriteWindowUpdate(0, 1<<20)
	got := map[uint32]*bytes.Buffer{}
	for i := range uint32(n) {
		got[2*i+1] = &bytes.Buffer{}
		_ = p.framer.WriteWindowUpdate(2*i+1, 1)
		_ = p.framer.WriteWindowUpdate(2*i+1, uint32(len(body)))
		_ = p.framer.WriteWindowUpdate(2*i+1, uint32(len(body)))
	}
	ended := 0
	p.frames("all responses", func(f http2.Frame) bool {
		if data, ok := f.(*http2.DataFrame); ok {
			got[data.StreamID].Write(data.Data())
			if data.StreamEnded() {
				ended++
			}
		} else if isError(f) {
			t.Fatalf("got %v", f)
		}
		return ended == n
	})
	for id, b := range got {
		if !bytes.Equal(b.Bytes(), append(bytes.Clone(body), body...)) {
			t.Errorf("stream %d: %d bytes, want %d", id, b.Len(), 2*len(body))
		}
	}
}

// TestPendingTrailers: trailers come after a body that had to wait for a window.
func TestPendingTrailers(t *testing.T) {
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-End")
		_, _ = w.Write(make([]byte, 10<<10))
		w.(http.Flusher).Flush()
		w.Header().Set("X-End", "yes")
	})
	p := dial(t, ts)
	_ = p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	if err := p.begin(1, true); err != nil {
		t.Fatal(err)
	}
	p.frames("headers", func(f http2.Frame) bool { _, ok := f.(*http2.MetaHeadersFrame); return ok })
	p.ping(func(f http2.Frame) bool { _, ok := f.(*http2.MetaHeadersFrame); return ok })
	_ = p.framer.WriteWindowUpdate(1, 20<<10)
	size := 0
	p.frames("trailers", func(f http2.Frame) bool {
		switch f := f.(type) {
		case *http2.DataFrame:
			size += len(f.Data())
		case *http2.MetaHeadersFrame:
			return f.StreamEnded() && f.RegularFields()[0].Value == "yes"
		}
		return false
	})
	if size != 10<<10 {
		t.Errorf("%d bytes before the trailers, want %d", size, 10<<10)
	}
}

// TestStalledStreamIsReset: a client that grants no window loses the stream, whether
// its handler waits or has returned.
func TestStalledStreamIsReset(t *testing.T) {
	for _, size := range []int{1 << 10, 1 << 20} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			s := newServer()
			s.StallTimeout = 50 * time.Millisecond
			returned := make(chan struct{})
			ts := serve(t, s, func(w http.ResponseWriter, r *http.Request) {
				defer close(returned)
				_, _ = w.Write(make([]byte, size))
			})
			p := dial(t, ts)
			_ = p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			if err := p.begin(1, true); err != nil {
				t.Fatal(err)
			}
			p.frames("RST_STREAM", func(f http2.Frame) bool { _, ok := f.(*http2.RSTStreamFrame); return ok })
			<-returned
			p.ping(isError)
		})
	}
}

// TestGoAwayComesBeforeTheBody: the last response of a connection says so at its
// beginning, so that a client that does not read it cannot send more requests.
func TestGoAwayComesBeforeTheBody(t *testing.T) {
	var requests atomic.Int64
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		w.Header().Set("Connection", "close")
		_, _ = w.Write(make([]byte, 10<<10))
	})
	p := dial(t, ts)
	_ = p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	if err := p.begin(1, true); err != nil {
		t.Fatal(err)
	}
	for _, last := range []uint32{1<<31 - 1, 1} {
		p.frames("GOAWAY", func(f http2.Frame) bool {
			goaway, ok := f.(*http2.GoAwayFrame)
			if ok && goaway.LastStreamID != last {
				t.Fatalf("got GOAWAY of stream %d, want %d", goaway.LastStreamID, last)
			}
			return ok
		})
	}
	for i := range uint32(10) {
		if err := p.begin(2*i+3, true); err != nil {
			t.Fatal(err)
		}
	}
	p.ping(nil)
	if n := requests.Load(); n != 1 {
		t.Errorf("%d requests were served, want 1", n)
	}
	_ = p.framer.WriteWindowUpdate(1, 20<<10)
	p.frames("the end of the response", func(f http2.Frame) bool {
		data, ok := f.(*http2.DataFrame)
		return ok && data.StreamEnded()
	})
}

// TestControlFramesAreBounded: frames that only cause work end the connection when
// there are too many, and do not when a client sends as many as real ones do.
func TestControlFramesAreBounded(t *testing.T) {
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	for name, send := range map[string]func(p *peer, i int) error{
		"PING":             func(p *peer, i int) error { return p.framer.WritePing(true, [8]byte{}) },
		"SETTINGS":         func(p *peer, i int) error { return p.framer.WriteSettings() },
		"PRIORITY":         func(p *peer, i int) error { return p.framer.WritePriority(1, http2.PriorityParam{StreamDep: 3}) },
		"unknown":          func(p *peer, i int) error { return p.framer.WriteRawFrame(0xb, 0, 1, nil) },
		"WINDOW_UPDATE":    func(p *peer, i int) error { return p.framer.WriteWindowUpdate(0, 1) },
		"empty DATA":       func(p *peer, i int) error { return p.framer.WriteData(1, false, nil) },
		"RST_STREAM":       func(p *peer, i int) error { return p.framer.WriteRSTStream(1, http2.ErrCodeCancel) },
		"DATA after reset": func(p *peer, i int) error { return errors.Join(p.framer.WriteWindowUpdate(1, 0)) },
		"self-dependencies": func(p *peer, i int) error {
			return p.framer.WriteRawFrame(http2.FramePriority, 0, uint32(2*i+3), []byte{0, byte((2*i + 3) >> 16), byte((2*i + 3) >> 8), byte(2*i + 3), 0})
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := dial(t, ts)
			if err := p.begin(1, false); err != nil {
				t.Fatal(err)
			}
			go func() {
				for i := range 100_000 {
					if send(p, i) != nil {
						return
					}
				}
			}()
			for {
				frame, err := p.framer.ReadFrame()
				if err != nil {
					if !isClosed(err) {
						t.Fatalf("got %v, want ENHANCE_YOUR_CALM", err)
					}
					return
				}
				if f, ok := frame.(*http2.GoAwayFrame); ok {
					if f.ErrCode != http2.ErrCodeEnhanceYourCalm {
						t.Fatalf("got %v, want ENHANCE_YOUR_CALM", f.ErrCode)
					}
					return
				}
			}
		})
	}
}

// TestBodiesThatWaitAreShort: a client may send 64 KiB of a body before a handler reads it,
// and StreamWindow from then on.
func TestBodiesThatWaitAreShort(t *testing.T) {
	const first, whole = 64 << 10, 256 << 10
	s := newServer()
	s.StreamWindow, s.ConnWindow = whole, 1<<20
	read := make(chan struct{})
	ts := serve(t, s, func(w http.ResponseWriter, r *http.Request) {
		<-read
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, strconv.FormatInt(n, 10))
	})
	p := dial(t, ts)
	p.frames("SETTINGS", func(f http2.Frame) bool {
		settings, ok := f.(*http2.SettingsFrame)
		if !ok {
			return false
		}
		if window, _ := settings.Value(http2.SettingInitialWindowSize); window != first {
			t.Errorf("the first window is %d bytes, want %d", window, first)
		}
		return true
	})
	if err := p.begin(1, false, "content-length", strconv.Itoa(whole)); err != nil {
		t.Fatal(err)
	}
	if err := p.framer.WriteData(1, false, make([]byte, 16<<10)); err != nil {
		t.Fatal(err)
	}
	granted := 0
	p.ping(func(f http2.Frame) bool {
		update, ok := f.(*http2.WindowUpdateFrame)
		return ok && update.StreamID == 1
	})
	close(read)
	p.frames("a larger window", func(f http2.Frame) bool {
		if update, ok := f.(*http2.WindowUpdateFrame); ok && update.StreamID == 1 {
			granted += int(update.Increment)
		}
		return granted >= whole-first
	})
	for sent := 16 << 10; sent < whole; sent += 16 << 10 {
		if err := p.framer.WriteData(1, sent+16<<10 == whole, make([]byte, 16<<10)); err != nil {
			t.Fatal(err)
		}
	}
	p.frames("the length of the body", func(f http2.Frame) bool {
		data, ok := f.(*http2.DataFrame)
		if ok && len(data.Data()) > 0 && string(data.Data()) != strconv.Itoa(whole) {
			t.Errorf("the handler has read %s bytes, want %d", data.Data(), whole)
		}
		return ok && len(data.Data()) > 0
	})
}

// TestBodyOfTheFirstWindow: a client that cannot end a body while its window is used up,
// such as nghttp2, gets more of it when the handler reads.
func TestBodyOfTheFirstWindow(t *testing.T) {
	const first = 64 << 10
	s := newServer()
	s.StreamWindow, s.ConnWindow = 4*first, 1<<20
	ts := serve(t, s, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	p := dial(t, ts)
	if err := p.begin(1, false, "content-length", strconv.Itoa(first)); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if err := p.framer.WriteData(1, false, make([]byte, first/4)); err != nil {
			t.Fatal(err)
		}
	}
	p.frames("a larger window", func(f http2.Frame) bool {
		update, ok := f.(*http2.WindowUpdateFrame)
		return ok && update.StreamID == 1
	})
}

// TestUnsentIsBounded: small responses that clients have no window for, or do not take from
// their sockets, hold no more than is allowed on all connections together. The handlers of
// others wait, and all responses are complete in the end, or reset.
func TestUnsentIsBounded(t *testing.T) {
	const conns, streams, size = 20, 20, 60_000
	for _, window := range []uint32{0, 1 << 20} {
		t.Run(fmt.Sprintf("window %d", window), func(t *testing.T) {
			unsent := &budget.New(budget.MinLimit).Unsent
			var running, answered atomic.Int64
			s := newServer()
			s.Unsent = unsent
			ts := serve(t, s, func(w http.ResponseWriter, r *http.Request) {
				running.Add(1)
				defer running.Add(-1)
				defer answered.Add(1)
				_, _ = w.Write(make([]byte, size))
			})
			peers := make([]*peer, conns)
			for i := range peers {
				p := dial(t, ts)
				peers[i] = p
				_ = p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
				if window > 0 {
					_ = p.framer.WriteWindowUpdate(0, streams*size)
				}
				for stream := range uint32(streams) {
					if err := p.begin(2*stream+1, true); err != nil {
						t.Fatal(err)
					}
				}
			}
			// With a window, the sockets may take all.
			polltest.Until(t, "handlers wait", func() bool {
				return running.Load()+answered.Load() == conns*streams && (running.Load() > 0 || window > 0)
			})
			held := unsent.Held()
			if limit := int64(budget.MinLimit) / 50; held > limit || held == 0 && window == 0 {
				t.Errorf("%d bytes are held, want some and at most %d", held, limit)
			}
			for _, p := range peers {
				if window == 0 {
					_ = p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: size})
					_ = p.framer.WriteWindowUpdate(0, streams*size)
				}
				got, ended := map[uint32]int{}, 0
				p.frames("all responses", func(f http2.Frame) bool {
					switch f := f.(type) {
					case *http2.RSTStreamFrame: // its handler had returned, and there was no room for the rest
						if ended++; f.ErrCode != http2.ErrCodeEnhanceYourCalm || window > 0 {
							t.Errorf("stream %d was reset: %v", f.StreamID, f.ErrCode)
						}
					case *http2.DataFrame:
						if got[f.StreamID] += len(f.Data()); !f.StreamEnded() {
							break
						}
						if ended++; got[f.StreamID] != size {
							t.Errorf("got %d bytes of a response, want %d", got[f.StreamID], size)
						}
					}
					return ended == streams
				})
			}
			polltest.Until(t, "all is given back", func() bool { return unsent.Held() == 0 && running.Load() == 0 })
		})
	}
}

// TestCrowdIsHeldBack: when many handlers run, a connection that has some of them gets no
// more, and others get theirs.
func TestCrowdIsHeldBack(t *testing.T) {
	const most = 16
	var running, lasts atomic.Int64
	done := make(chan struct{})
	s := newServer()
	s.MaxHandlers = most
	ts := serve(t, s, func(w http.ResponseWriter, r *http.Request) {
		w.(h2.Privileged).SetPrivileged(r.Header.Get("X-Privileged") != "")
		if r.Header.Get("X-Lasts") != "" {
			w.(h2.Laster).Lasts()
			lasts.Add(1)
			<-done
			return
		}
		running.Add(1)
		defer running.Add(-1)
		<-done
	})
	for i := range int64(2) { // responses that last do not count
		lasting := dial(t, ts)
		for stream := range uint32(most) {
			if err := lasting.begin(2*stream+1, true, "x-lasts", "1"); err != nil {
				t.Fatal(err)
			}
		}
		lasting.ping(isError)
		polltest.Until(t, "handlers of responses that last run", func() bool { return lasts.Load() == (i+1)*most })
	}
	crowd, other := dial(t, ts), dial(t, ts)
	refused := 0
	count := func(f http2.Frame) bool {
		if reset, ok := f.(*http2.RSTStreamFrame); ok {
			if refused++; reset.ErrCode != http2.ErrCodeRefusedStream {
				t.Errorf("got %v, want REFUSED_STREAM", reset.ErrCode)
			}
		}
		return false
	}
	for stream := range uint32(most + 10) {
		if err := crowd.begin(2*stream+1, true); err != nil {
			t.Fatal(err)
		}
	}
	crowd.ping(count)
	polltest.Until(t, "handlers run", func() bool { return running.Load() == most })
	if refused != 10 {
		t.Errorf("%d requests were refused, want 10", refused)
	}
	refused = 0
	for stream := range uint32(6) {
		if err := other.begin(2*stream+1, true); err != nil {
			t.Fatal(err)
		}
	}
	other.ping(count)
	polltest.Until(t, "handlers of another client run", func() bool { return running.Load() == most+4 })
	if refused != 2 {
		t.Errorf("another client: %d of 6 requests were refused, want 2", refused)
	}
	// A privileged connection gets a quarter more than all others, and no more than that.
	refused = 0
	privileged := dial(t, ts)
	if err := privileged.begin(1, true, "x-privileged", "1"); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, "the first handler of an administrator runs", func() bool { return running.Load() == most+5 })
	for stream := range uint32(6) {
		if err := privileged.begin(2*stream+3, true, "x-privileged", "1"); err != nil {
			t.Fatal(err)
		}
	}
	privileged.ping(count)
	polltest.Until(t, "handlers of an administrator run", func() bool { return running.Load() == most+4+4 })
	if refused != 3 {
		t.Errorf("an administrator: %d of 7 requests were refused, want 3", refused)
	}
	close(done)
	answered := 0
	crowd.frames("the other responses", func(f http2.Frame) bool {
		if f.Header().Type == http2.FrameHeaders {
			answered++
		}
		return answered == most
	})
	if err := crowd.begin(2*(most+10)+1, true); err != nil {
		t.Fatal(err)
	}
	crowd.frames("a response", func(f http2.Frame) bool {
		return f.Header().Type == http2.FrameHeaders && f.Header().StreamID == 2*(most+10)+1
	})
}

// TestCrowdKeepsItsConnection: a client whose requests are refused because many handlers run has
// made no mistake. Its connection, with the responses that it waits for, does not end however
// often that happens, as on the connection of a proxy with many clients.
func TestCrowdKeepsItsConnection(t *testing.T) {
	const most, further = 4, 4000
	done := make(chan struct{})
	s := newServer()
	s.MaxHandlers = most
	ts := serve(t, s, func(http.ResponseWriter, *http.Request) { <-done })
	c := dial(t, ts)
	refused, answered, next := 0, 0, uint32(1)
	count := func(f http2.Frame) bool {
		switch f := f.(type) {
		case *http2.RSTStreamFrame:
			refused++
		case *http2.GoAwayFrame:
			t.Fatalf("after %d refusals the connection ends: %v", refused, f.ErrCode)
		case *http2.HeadersFrame, *http2.MetaHeadersFrame:
			answered++
		}
		return false
	}
	for range most + further {
		if err := c.begin(next, true); err != nil {
			t.Fatal(err)
		}
		if next += 2; next%101 == 0 {
			c.ping(count)
		}
	}
	c.ping(count)
	if refused != further {
		t.Errorf("%d requests were refused, want %d", refused, further)
	}
	close(done)
	c.frames("the responses", func(f http2.Frame) bool { return count(f) || answered == most })
}

// TestArrivingRequestsTakeTurns: of many requests only a few are looked at at a time; those on
// the connection of somebody who goes ahead do not wait.
func TestArrivingRequestsTakeTurns(t *testing.T) {
	const most, streams = 2, 50
	var begun atomic.Int64
	arrive, answer := make(chan struct{}), make(chan struct{})
	s := newServer()
	s.MaxArriving = most
	ts := serve(t, s, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Ahead") != "" {
			w.(h2.Arrival).EndArrival(true)
			return
		}
		begun.Add(1)
		<-arrive
		w.(h2.Arrival).EndArrival(false)
		w.(h2.Arrival).EndArrival(false) // counts once
		<-answer
	})
	ahead := dial(t, ts)
	get := func(stream uint32) {
		t.Helper()
		if err := ahead.begin(stream, true, "x-ahead", "1"); err != nil {
			t.Fatal(err)
		}
		ahead.frames("a response", func(f http2.Frame) bool {
			return f.Header().Type == http2.FrameHeaders && f.Header().StreamID == stream
		})
	}
	get(1)
	crowds := []*peer{dial(t, ts), dial(t, ts)}
	for _, crowd := range crowds {
		for stream := range uint32(streams) {
			if err := crowd.begin(2*stream+1, true); err != nil {
				t.Fatal(err)
			}
		}
	}
	polltest.Until(t, "handlers run", func() bool { return begun.Load() >= most })
	stream := uint32(1)
	for before := int64(-1); begun.Load() != before; { // a busy machine may take long enough for others to begin
		if stream += 2; stream > 21 {
			t.Fatal("requests that go ahead wait for others")
		}
		before = begun.Load()
		get(stream)
	}
	arrive <- struct{}{}
	polltest.Until(t, "another handler runs", func() bool { return begun.Load() > most })
	close(arrive)
	polltest.Until(t, "all handlers run", func() bool { return begun.Load() == 2*streams })
	close(answer)
	for _, crowd := range crowds {
		answered := 0
		crowd.frames("all responses", func(f http2.Frame) bool {
			if f.Header().Type == http2.FrameHeaders {
				answered++
			}
			return answered == streams
		})
	}
}

// TestStalled: a response tells how long its client has read nothing.
func TestStalled(t *testing.T) {
	writers := make(chan h2.Staller, 1)
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {
		writers <- w.(h2.Staller)
		_, _ = w.Write(make([]byte, 1<<20))
	})
	p := dial(t, ts)
	if err := p.begin(1, true); err != nil {
		t.Fatal(err)
	}
	w := <-writers
	polltest.Until(t, "the response waits", func() bool { return w.Stalled() > 0 })
	for _, stream := range []uint32{0, 1} {
		if err := p.framer.WriteWindowUpdate(stream, 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	p.frames("the end", func(f http2.Frame) bool {
		return f.Header().Flags.Has(http2.FlagDataEndStream) && f.Header().Type == http2.FrameData
	})
	polltest.Until(t, "the response does not wait", func() bool { return w.Stalled() == 0 })
}
