package h2

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// FuzzConnection plays scripts of client actions against a connection. The server runs
// in a bubble of testing/synctest: its time-outs take no time, and a goroutine that is
// left at the end fails the test. Beside panics it looks for
//
//   - frames of the server that are malformed, too large, out of order, or more than the
//     windows that it was given allow
//   - responses that have anything of another stream in them: all that a handler sends is
//     a repetition of the number of its stream
//   - responses that do not come though the client has done everything for them
//   - counts of the connection that do not add up, and what is left of it at its end
//
// A script with raw bytes or frames can open streams and change windows behind the
// client's back; what depends on those is not looked at then.
//
// Which of two goroutines runs first is not decided by the script, so that to minimize
// an interesting one takes long and gains little:
//
//	go test -fuzz FuzzConnection -fuzzminimizetime 10x ./h2
func FuzzConnection(f *testing.F) {
	for _, script := range fuzzSeeds() {
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 4<<10 {
			return
		}
		synctest.Test(t, func(t *testing.T) { playScript(t, script) })
	})
}

// What a script does: an action byte, and what the action reads from what follows.
const (
	actRaw byte = iota
	actFrame
	actRequest
	actData
	actWindow
	actReset
	actTrailers
	actSettings
	actPing
	actSleep
	actSettle
	actDeaf
	actHalfClose
	actGoAway
	actSplitRequest
	actBomb
	actPieces
	actMistake
	actions
)

var fuzzPaths = []string{"/small", "/echo", "/large", "/slow", "/early", "/trailers", "/continue", "/panic", "/flush", "/wait", "/deadline", "/close", "/info", "/short"}

// fuzzSeeds are scripts with the attacks that this package has known.
func fuzzSeeds() [][]byte {
	request := func(path string, options byte) []byte {
		for i, p := range fuzzPaths {
			if p != path {
				continue
			}
			b := []byte{actRequest, byte(i), options}
			if options&2 != 0 {
				b = append(b, 255) // the declared length
			}
			return append(b, 0) // no padding
		}
		panic(path)
	}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	var all []byte
	for _, path := range fuzzPaths {
		all = append(all, request(path, 1)...)
	}
	reset := join(request("/small", 1), []byte{actReset, 0, 8})
	return [][]byte{
		all,
		bytes.Repeat(reset, 30),
		join([]byte{actSettings, 0, 0, 0}, all, []byte{actWindow, 255, 2, actSettle, actSettings, 0, 255, 255}),
		// Two responses of one size that wait for a window, one after the other.
		join([]byte{actSettings, 0, 0, 0}, request("/small", 1), []byte{actSettle, actWindow, 1, 3, actSettle}, request("/small", 1), []byte{actSettle, actSettings, 0, 0, 255}),
		join(request("/echo", 0), []byte{actData, 0, 9, 0, actData, 0, 9, 1}),
		join(request("/slow", 2), []byte{actData, 0, 255, 0, actTrailers, 0, 0}),
		join(request("/slow", 0), bytes.Repeat([]byte{actData, 0, 100, 0}, 5), []byte{actSleep, 6}, bytes.Repeat([]byte{actData, 0, 100, 0}, 5), []byte{actTrailers, 0, 0}),
		join(request("/trailers", 4), []byte{actData, 0, 3, 0, actTrailers, 0, 0, actSettle}),
		join(request("/large", 1), []byte{actDeaf, actSleep, 5, actDeaf, actWindow, 255, 4}),
		join(bytes.Repeat([]byte{actPing, 0}, 40), []byte{actDeaf}, bytes.Repeat([]byte{actPing, 0}, 40)),
		join(request("/wait", 1), []byte{actSleep, 7, actHalfClose}),
		join([]byte{actSplitRequest, 0, 1, 1, actBomb, 0, 200, 200, 0, actBomb, 1, 200, 200, 0}),
		join([]byte{actRaw, 9, 0, 0, 0, 4, 0, 0, 0, 0, 0, actFrame, 16, 0, 0, 4, 1, 2, 3, 4}),
		join(request("/early", 0), bytes.Repeat([]byte{actData, 0, 255, 0}, 10), []byte{actMistake, 0, 0}),
		join(request("/echo", 0), []byte{actMistake, 1, 0, actMistake, 2, 0, actMistake, 3, 0, actMistake, 4, 0, actMistake, 5, 0, 0, actMistake, 6, 0, 0}),
		join([]byte{actPieces, 1}, request("/echo", 0), []byte{actData, 0, 9, 1}),
		join(request("/continue", 1), []byte{actGoAway, actSleep, 3}),
		// All at once, with windows that many responses share.
		join([]byte{actPieces, 255}, all, all[:8], []byte{actSettle, actWindow, 255, 16, actWindow, 255, 16, actSettle}),
		join([]byte{actPieces, 255}, request("/large", 1), request("/large", 1), request("/large", 1), []byte{actWindow, 255, 16, actWindow, 2, 16, actSettle}),
		// A body that nobody has read when the stream ends.
		join(request("/wait", 0), []byte{actData, 0, 200, 0, actSettle, actReset, 0, 8, actSettle}),
		// Frames of the size that the client allows.
		join([]byte{actSettings, 1, 1, 0, actWindow, 255, 16}, request("/large", 1), []byte{actWindow, 0, 16, actSettle}),
	}
}

// fuzzTLS makes handshakes as cheap as they can be.
var fuzzTLS = sync.OnceValue(func() *tls.Config {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(1000 * time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		panic(err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: private}}, NextProtos: []string{"h2"},
		SessionTicketsDisabled: true, CurvePreferences: []tls.CurveID{tls.X25519}, InsecureSkipVerify: true,
		DynamicRecordSizingDisabled: true,
	}
})

// pattern is what all bodies of a stream consist of.
func pattern(id uint32, from, n int) []byte {
	unit := "<" + strconv.Itoa(int(id)) + ">"
	b := bytes.Repeat([]byte(unit), n/len(unit)+2)
	return b[from%len(unit):][:n]
}

// fuzzHandler answers with the number of the stream that the client says it is, and a
// repetition of it.
func fuzzHandler(w http.ResponseWriter, r *http.Request) {
	number, err := strconv.Atoi(r.Header.Get("X-Id"))
	if err != nil {
		return // it was not the script that asked
	}
	id := uint32(number)
	sent := 0
	send := func(n int) {
		k, _ := w.Write(pattern(id, sent, n))
		sent += k
	}
	w.Header().Set("X-Id", r.Header.Get("X-Id"))
	switch r.URL.Path {
	case "/small":
		send(100)
	case "/echo":
		_, _ = io.Copy(w, r.Body)
	case "/large":
		for range 3 {
			send(70_000)
		}
	case "/slow":
		buffer := make([]byte, 512)
		for {
			n, err := r.Body.Read(buffer)
			send(n)
			if err != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	case "/early":
		w.WriteHeader(http.StatusForbidden)
		send(50)
	case "/trailers":
		w.Header().Set("Trailer", "X-After")
		count := func() (n int) {
			for range r.Trailer {
				n++
			}
			return n
		}
		count()
		send(10)
		_, _ = io.Copy(io.Discard, r.Body)
		send(count())
		w.Header().Set("X-After", r.Header.Get("X-Id"))
	case "/continue":
		send(10)
		_ = http.NewResponseController(w).Flush()
		ctx := r.Context()
		w.(Continuer).Continue(func() {
			for range 5 {
				select {
				case <-ctx.Done():
					return
				case <-time.After(time.Millisecond):
				}
				send(20)
				_ = http.NewResponseController(w).Flush()
			}
		})
	case "/panic":
		send(5000)
		panic(http.ErrAbortHandler)
	case "/flush":
		for range 50 {
			send(7)
			_ = http.NewResponseController(w).Flush()
		}
	case "/wait":
		select {
		case <-r.Context().Done():
		case <-time.After(5 * time.Second):
		}
		send(10)
	case "/deadline":
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Second))
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(2 * time.Second))
		_, _ = io.Copy(io.Discard, r.Body)
		send(80_000)
	case "/close":
		w.Header().Set("Connection", "close")
		_ = r.Body.Close()
		send(20_000)
	case "/info":
		w.WriteHeader(http.StatusEarlyHints)
		send(100)
	case "/short":
		w.Header().Set("Content-Length", "100")
		send(60)
		_, _ = w.Write(make([]byte, 100)) // which is refused
	}
}

// fuzzClient is the client of a script, and what it knows of the connection.
type fuzzClient struct {
	*testing.T
	server *Server
	conn   *tls.Conn
	script []byte
	out    bytes.Buffer // written but not sent
	framer *http2.Framer
	block  bytes.Buffer
	coder  *hpack.Encoder
	pieces int  // bytes sent at a time, 0 for all
	corked bool // nothing is sent before the script waits
	next   uint32

	mu sync.Mutex
	// reads is what the reader waits for before each frame.
	deaf    bool
	hear    sync.Cond
	streams map[uint32]*fuzzStream
	order   []uint32
	tainted bool // the script has sent what is not looked at
	gone    bool // the client has hung up, or no longer sends
	over    error
	goAway  bool
	// granted is the window that the server was given on the connection, and got what
	// it has used of it.
	granted, got int64
	// initial are the initial windows that may be in force: the server has
	// acknowledged the first, and not the others.
	initial   []int64
	frameSize []int
}

// fuzzStream is a request of the script.
type fuzzStream struct {
	ended, headers, reset bool // by the server
	sentEnd, sentReset    bool // by the client
	granted, got          int64
	sent                  int64 // of the body
	length                int64 // that the response declares, -1 if none
	head                  bool
	short                 bool // the handler sends less than it declares
	bomb                  bool // it has no number, and may get 431
}

// fuzzListener gives away one connection.
type fuzzListener struct{ conn net.Conn }

func (l fuzzListener) Accept() (net.Conn, error) { return l.conn, nil }
func (l fuzzListener) Close() error              { return nil }
func (l fuzzListener) Addr() net.Addr            { return l.conn.LocalAddr() }

func playScript(t *testing.T, script []byte) {
	server := &Server{
		MaxStreams: 20, MaxHeaderBytes: 8 << 10, MaxHeaderFields: 100, MaxFrame: 20 << 10, StreamWindow: 20 << 10, ConnWindow: 70 << 10,
		IdleTimeout: 90 * time.Second, WriteTimeout: 20 * time.Second, ErrorLog: log.New(io.Discard, "", 0),
	}
	// There is enough for all, or for some, or for nothing.
	allowed := &testAllowance{limit: []int64{1 << 30, outBytes + 50<<10, 20 << 10, 0}[len(script)/2%4]}
	server.Unsent = allowed
	hs := &http.Server{Handler: http.HandlerFunc(fuzzHandler)}
	server.Configure(hs)
	near, far := net.Pipe()
	below := net.Conn(far)
	if len(script)%2 == 0 { // with and without writing in batches
		below, _ = Listen(fuzzListener{far}).Accept()
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		tc := tls.Server(below, fuzzTLS())
		if tc.Handshake() != nil {
			return
		}
		hs.TLSNextProto["h2"](hs, tc, hs.Handler)
	}()
	c := &fuzzClient{
		T: t, server: server, script: script, streams: map[uint32]*fuzzStream{}, next: 1, granted: defaultWindow,
		initial: []int64{defaultWindow}, frameSize: []int{defaultFrame},
	}
	c.hear.L = &c.mu
	c.conn = tls.Client(near, fuzzTLS())
	if err := c.conn.Handshake(); err != nil {
		t.Fatal(err)
	}
	c.framer = http2.NewFramer(&c.out, nil)
	c.framer.AllowIllegalWrites = true
	c.coder = hpack.NewEncoder(&c.block)
	read := make(chan struct{})
	go func() {
		defer close(read)
		c.read()
	}()
	c.out.WriteString(http2.ClientPreface)
	_ = c.framer.WriteSettings()
	c.mu.Lock()
	c.initial, c.frameSize = append(c.initial, defaultWindow), append(c.frameSize, defaultFrame)
	c.mu.Unlock()
	c.send()
	synctest.Wait()
	conn := server.only()

	for steps := 0; len(c.script) > 0 && steps < 500 && !t.Failed(); steps++ {
		if c.step(); !c.corked {
			c.send()
		}
	}
	c.send()
	synctest.Wait()
	c.check(conn)
	c.finish(conn)

	// The end: the client hangs up.
	c.mu.Lock()
	c.gone, c.deaf = true, false
	c.hear.Broadcast()
	c.mu.Unlock()
	_ = near.Close()
	<-served
	<-read
	time.Sleep(10 * time.Second) // handlers that wait
	synctest.Wait()
	if conn != nil {
		conn.checkEnd(t)
	}
	if held := allowed.held.Load(); held != 0 {
		t.Errorf("at the end %d bytes of the allowance are held", held)
	}
	if n := server.running.Load(); n != 0 {
		t.Errorf("at the end %d handlers count as running", n)
	}
}

// testAllowance is an Allowance with a limit in bytes.
type testAllowance struct {
	limit int64
	held  atomic.Int64
}

func (a *testAllowance) Take(n int) bool {
	if a.held.Add(int64(n)) > a.limit {
		a.held.Add(-int64(n))
		return false
	}
	return true
}

func (a *testAllowance) Return(n int) { a.held.Add(-int64(n)) }

// only returns the one connection of a server.
func (s *Server) only() *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		return c
	}
	return nil
}

// byte reads a byte of the script.
func (c *fuzzClient) byte() byte {
	if len(c.script) == 0 {
		return 0
	}
	b := c.script[0]
	c.script = c.script[1:]
	return b
}

func (c *fuzzClient) bytes(n int) []byte {
	b := c.script[:min(n, len(c.script))]
	c.script = c.script[len(b):]
	return b
}

// pick returns a stream of the script: the newest, or one that was opened earlier.
func (c *fuzzClient) pick() (uint32, *fuzzStream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	back := int(c.byte())
	if len(c.order) == 0 {
		return 0, nil
	}
	id := c.order[max(0, len(c.order)-1-back%20)]
	return id, c.streams[id]
}

// step does what the script says next.
func (c *fuzzClient) step() {
	switch action := c.byte() % actions; action {
	case actRaw:
		c.taint()
		c.out.Write(c.bytes(int(c.byte())))
	case actFrame:
		kind, flags, stream := http2.FrameType(c.byte()), http2.Flags(c.byte()), uint32(c.byte())
		payload := c.bytes(int(c.byte()))
		if kind != http2.FramePing {
			c.taint()
		}
		_ = c.framer.WriteRawFrame(kind, flags, stream, payload)
	case actRequest, actSplitRequest:
		c.request(action == actSplitRequest)
	case actData:
		id, st := c.pick()
		size, end := int(c.byte())*37, c.byte()%2 == 1
		if st == nil || st.sentEnd || st.sentReset {
			return
		}
		_ = c.framer.WriteData(id, end, pattern(id, int(st.sent), size))
		st.sent += int64(size)
		st.sentEnd = end
	case actWindow:
		c.window()
	case actReset:
		if id, st := c.pick(); st != nil && !st.sentReset {
			_ = c.framer.WriteRSTStream(id, http2.ErrCode(c.byte()))
			c.mu.Lock()
			st.sentReset = true
			c.mu.Unlock()
		}
	case actTrailers:
		if id, st := c.pick(); st != nil && !st.sentEnd && !st.sentReset {
			c.headers(id, true, false, "x-sum", "1", "x-other", "2")
			st.sentEnd = true
		}
	case actSettings:
		c.settings()
	case actPing:
		_ = c.framer.WritePing(c.byte()%2 == 1, [8]byte{1})
	case actSleep:
		c.send()
		time.Sleep(time.Millisecond << (c.byte() % 16))
	case actSettle:
		c.send()
		synctest.Wait()
	case actDeaf:
		c.mu.Lock()
		c.deaf = !c.deaf
		c.hear.Broadcast()
		c.mu.Unlock()
	case actHalfClose:
		c.send()
		c.mu.Lock()
		c.gone = true
		c.mu.Unlock()
		_ = c.conn.CloseWrite()
	case actGoAway:
		_ = c.framer.WriteGoAway(0, http2.ErrCodeNo, nil)
	case actBomb:
		c.bomb()
	case actPieces:
		if n := c.byte(); n < 128 {
			c.pieces = int(n)
		} else {
			c.corked = !c.corked
		}
	case actMistake:
		c.mistake()
	}
}

func (c *fuzzClient) taint() {
	c.mu.Lock()
	c.tainted = true
	c.mu.Unlock()
}

// headers writes a block of header fields, in frames of a few bytes if it is split.
func (c *fuzzClient) headers(id uint32, end, split bool, fields ...string) {
	c.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = c.coder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	block := c.block.Bytes()
	if !split {
		_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndStream: end, EndHeaders: true, PadLength: c.byte() % 8})
		return
	}
	step := int(c.byte()%16) + 1
	_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndStream: end})
	for len(block) > 0 {
		part := block[:min(step, len(block))]
		block = block[len(part):]
		_ = c.framer.WriteContinuation(id, len(block) == 0, part)
	}
}

func (c *fuzzClient) request(split bool) {
	path, options := fuzzPaths[int(c.byte())%len(fuzzPaths)], c.byte()
	id := c.next
	c.next += 2
	st := &fuzzStream{sentEnd: options&1 != 0, length: -1, short: path == "/short"}
	method := "POST"
	if options&16 != 0 {
		method, st.head = "HEAD", true
	}
	fields := []string{":method", method, ":scheme", "https", ":authority", "x", ":path", path, "x-id", strconv.Itoa(int(id))}
	if options&2 != 0 && !st.sentEnd {
		fields = append(fields, "content-length", strconv.Itoa(int(c.byte())*37))
	}
	if options&4 != 0 {
		fields = append(fields, "trailer", "x-sum, x-more")
	}
	if options&8 != 0 {
		fields = append(fields, "expect", "100-continue")
	}
	c.mu.Lock()
	c.streams[id] = st
	c.order = append(c.order, id)
	c.mu.Unlock()
	c.headers(id, st.sentEnd, split, fields...)
}

// bomb is a request with many header fields of a byte each.
func (c *fuzzClient) bomb() {
	name, n := []string{"cookie", "x-many", "trailer"}[c.byte()%3], int(c.byte())+int(c.byte())
	fields := []string{":method", "GET", ":scheme", "https", ":authority", "x", ":path", "/small"}
	for range n {
		fields = append(fields, name, "v")
	}
	id := c.next
	c.next += 2
	c.mu.Lock()
	c.streams[id] = &fuzzStream{sentEnd: true, length: -1, bomb: true}
	c.order = append(c.order, id)
	c.mu.Unlock()
	c.headers(id, true, false, fields...)
}

func (c *fuzzClient) window() {
	which, increment := c.byte(), uint32(1)<<(c.byte()%17)
	c.mu.Lock()
	defer c.mu.Unlock()
	if which == 255 {
		if c.granted+int64(increment) < maxWindow {
			c.granted += int64(increment)
			_ = c.framer.WriteWindowUpdate(0, increment)
		}
		return
	}
	if len(c.order) == 0 {
		return
	}
	id := c.order[max(0, len(c.order)-1-int(which)%20)]
	if st := c.streams[id]; st.granted < 1<<24 {
		st.granted += int64(increment)
		_ = c.framer.WriteWindowUpdate(id, increment)
	}
}

func (c *fuzzClient) settings() {
	kind := c.byte() % 4
	value := uint32(c.byte())<<8 | uint32(c.byte())
	c.mu.Lock()
	defer c.mu.Unlock()
	window, size := c.initial[len(c.initial)-1], c.frameSize[len(c.frameSize)-1]
	var settings []http2.Setting
	switch kind {
	case 0:
		window = int64(value)
		settings = append(settings, http2.Setting{ID: http2.SettingInitialWindowSize, Val: value})
	case 1:
		size = defaultFrame + int(value)
		settings = append(settings, http2.Setting{ID: http2.SettingMaxFrameSize, Val: uint32(size)})
	case 2:
		// The client's decoder allows tables of 4096 bytes in any case.
		settings = append(settings, http2.Setting{ID: http2.SettingHeaderTableSize, Val: min(value, 4096)})
	case 3:
		settings = append(settings, http2.Setting{ID: http2.SettingID(value), Val: value})
		if value <= 8 {
			return
		}
	}
	c.initial, c.frameSize = append(c.initial, window), append(c.frameSize, size)
	_ = c.framer.WriteSettings(settings...)
}

// mistake breaks a rule.
func (c *fuzzClient) mistake() {
	kind := c.byte() % 7
	id, st := c.pick()
	if st == nil {
		return
	}
	c.mu.Lock()
	st.sentReset, st.sentEnd = true, true // it may be reset now, or ended
	c.mu.Unlock()
	switch kind {
	case 0:
		_ = c.framer.WriteData(id, true, pattern(id, int(st.sent), 1))
	case 1:
		_ = c.framer.WriteWindowUpdate(id, 1<<31-1)
		st.granted = maxWindow
	case 2:
		_ = c.framer.WriteRawFrame(http2.FrameWindowUpdate, 0, id, make([]byte, 4))
	case 3:
		_ = c.framer.WritePriority(id, http2.PriorityParam{StreamDep: id})
	case 4:
		_ = c.framer.WriteRawFrame(http2.FramePriority, 0, id, make([]byte, 3))
	case 5:
		c.headers(id, false, false, "x", "y")
	case 6:
		c.headers(id, true, false, "X", "y")
	}
}

// send writes what was written to the connection.
func (c *fuzzClient) send() {
	b := bytes.Clone(c.out.Bytes())
	c.out.Reset()
	for len(b) > 0 {
		n := len(b)
		if c.pieces > 0 {
			n = min(n, max(c.pieces, len(b)/64)) // not too many records
		}
		// A server that does not read any longer has hung up, or will.
		_ = c.conn.SetWriteDeadline(time.Now().Add(time.Minute))
		if _, err := c.conn.Write(b[:n]); err != nil {
			return
		}
		b = b[n:]
	}
}

// read reads what the server sends, and checks it.
func (c *fuzzClient) read() {
	framer := http2.NewFramer(nil, c.conn)
	framer.SetMaxReadFrameSize(1<<24 - 1)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	framer.MaxHeaderListSize = 1 << 20
	for {
		c.mu.Lock()
		for c.deaf {
			c.hear.Wait()
		}
		c.mu.Unlock()
		frame, err := framer.ReadFrame()
		c.mu.Lock()
		if err != nil {
			var ofConn http2.ConnectionError
			var ofStream http2.StreamError
			if errors.As(err, &ofConn) || errors.As(err, &ofStream) || errors.Is(err, http2.ErrFrameTooLarge) {
				c.Errorf("the server has sent a malformed frame: %v (%v)", err, framer.ErrorDetail())
			}
			c.over = err
			c.mu.Unlock()
			_, _ = io.Copy(io.Discard, c.conn)
			return
		}
		if problem := c.received(frame); problem != "" {
			c.Errorf("%v: %s", frame.Header(), problem)
		}
		c.mu.Unlock()
	}
}

// received notes a frame of the server, and tells what is wrong with it.
func (c *fuzzClient) received(frame http2.Frame) string {
	h := frame.Header()
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() && len(c.initial) > 1 {
			c.initial, c.frameSize = c.initial[1:], c.frameSize[1:]
		}
		return ""
	case *http2.GoAwayFrame:
		c.goAway = true
		return ""
	case *http2.PingFrame, *http2.WindowUpdateFrame, *http2.UnknownFrame:
		return ""
	}
	st := c.streams[h.StreamID]
	if c.tainted {
		return ""
	}
	if st == nil {
		return "a frame for a stream that was never opened"
	}
	if _, ok := frame.(*http2.RSTStreamFrame); ok {
		st.reset = true
		return ""
	}
	if st.ended || st.reset {
		return "a frame after the end of the stream"
	}
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		status := f.PseudoValue("status")
		if strings.HasPrefix(status, "1") {
			return ""
		}
		if st.headers && !f.StreamEnded() {
			return "header fields twice"
		}
		if !st.headers && status == "" {
			return "no status"
		}
		st.headers = true
		st.ended = f.StreamEnded()
		for _, field := range f.RegularFields() {
			switch field.Name {
			case "x-id", "x-after":
				if field.Value != strconv.Itoa(int(h.StreamID)) {
					return fmt.Sprintf("%s is %s", field.Name, field.Value)
				}
			case "content-length":
				st.length, _ = strconv.ParseInt(field.Value, 10, 64)
			}
		}
	case *http2.DataFrame:
		return c.receivedData(st, f)
	default:
		return "a frame that servers do not send"
	}
	return ""
}

func (c *fuzzClient) receivedData(st *fuzzStream, f *http2.DataFrame) string {
	n, most := int64(f.Length), int64(0)
	for _, w := range c.initial {
		most = max(most, w)
	}
	size := 0
	for _, s := range c.frameSize {
		size = max(size, s)
	}
	data := f.Data()
	switch {
	case !st.headers:
		return "a body before the header"
	case st.head && n > 0:
		return "a body of a response to HEAD"
	case int(n) > size:
		return fmt.Sprintf("more than the %d bytes that a frame may have", size)
	case n > 0 && c.got+n > c.granted:
		return fmt.Sprintf("%d bytes, of which the window of the connection allows %d", c.got+n, c.granted)
	case n > 0 && st.got+n > st.granted+most:
		return fmt.Sprintf("%d bytes, of which the window of the stream allows %d", st.got+n, st.granted+most)
	case !st.bomb && !bytes.Equal(data, pattern(f.StreamID, int(st.got), len(data))):
		return fmt.Sprintf("a body that is not of the stream: %.60q after %d bytes", data, st.got)
	}
	c.got += n
	st.got += n
	st.ended = f.StreamEnded()
	if st.length >= 0 && (st.got > st.length || st.ended && st.got < st.length && !st.short) {
		return fmt.Sprintf("%d bytes, and %d were declared", st.got, st.length)
	}
	return ""
}

// finish does everything that the responses to the script still need, and waits for
// them.
func (c *fuzzClient) finish(conn *conn) {
	c.mu.Lock()
	if c.deaf || c.gone || c.tainted || c.over != nil || c.goAway || c.Failed() {
		c.mu.Unlock()
		return
	}
	if more := maxWindow - 1 - c.granted; more > 0 {
		c.granted += more
		_ = c.framer.WriteWindowUpdate(0, uint32(more))
	}
	for id, st := range c.streams {
		if st.ended || st.reset || st.sentReset {
			continue
		}
		st.granted += 1 << 24
		_ = c.framer.WriteWindowUpdate(id, 1<<24)
	}
	c.mu.Unlock()
	for id, st := range c.streams {
		if !st.sentEnd && !st.sentReset {
			_ = c.framer.WriteData(id, true, nil) // or a mistake, which resets it
		}
	}
	c.send()
	synctest.Wait()
	time.Sleep(20 * time.Second) // for handlers that are slow; less than StallTimeout
	synctest.Wait()
	c.check(conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over != nil || c.goAway {
		return
	}
	for id, st := range c.streams {
		if !st.ended && !st.reset && !st.sentReset {
			c.Errorf("stream %d has no response: %+v", id, *st)
		}
	}
}

// check looks at the counts of a connection on which nothing happens.
func (c *fuzzClient) check(conn *conn) {
	if conn == nil {
		return
	}
	c.mu.Lock()
	tainted := c.tainted
	c.mu.Unlock()
	conn.mu.Lock()
	defer conn.mu.Unlock()
	unread, pending, headers, large := 0, 0, 0, 0
	for id, st := range conn.streams {
		unread += st.body.len()
		headers += st.headerBytes
		if st.pending != nil {
			pending += st.pendingHeld
			if st.pendingHeld < len(*st.pending) {
				c.Errorf("stream %d counts %d bytes as pending, and has %d", id, st.pendingHeld, len(*st.pending))
			}
		}
		if st.large {
			large++
		}
		if n := cap(st.body.data); n > 4*c.server.StreamWindow {
			c.Errorf("stream %d has %d bytes of memory for its body", id, n)
		}
	}
	switch {
	case conn.pendingBytes != pending:
		c.Errorf("%d bytes count as pending, and are %d", conn.pendingBytes, pending)
	case conn.large != large:
		c.Errorf("%d responses count as large, and are %d", conn.large, large)
	case conn.headerBytes < headers:
		c.Errorf("%d bytes of header fields count, and are at least %d", conn.headerBytes, headers)
	case len(conn.streams) > c.server.MaxStreams || conn.handlers > c.server.MaxStreams:
		c.Errorf("%d streams, %d handlers", len(conn.streams), conn.handlers)
	case conn.queued() > maxQueued+maxOut:
		c.Errorf("%d bytes are to be written", conn.queued())
	case conn.err != nil || conn.ending:
	case conn.ahead+conn.credit+unread > c.server.ConnWindow || !tainted && conn.ahead+conn.credit+unread != c.server.ConnWindow:
		c.Errorf("the client may send %d bytes, will be told of %d, and %d are unread: want %d together", conn.ahead, conn.credit, unread, c.server.ConnWindow)
	}
}

// TestNothingStartsForOneThatContinues: a handler that returns and continues makes no room
// for a request that waits.
func TestNothingStartsForOneThatContinues(t *testing.T) {
	waits := &stream{}
	c := &conn{srv: &Server{MaxStreams: 1}, handlers: 2, waiting: []*stream{waits}} // the one that continues, and the one that returns
	if st, _ := c.next(); st != nil || c.handlers != 1 {
		t.Errorf("beside a handler that continues another one starts: %v, %d handlers", st, c.handlers)
	}
	if st, wait := c.next(); st != waits || wait || c.handlers != 1 {
		t.Errorf("after it got %v, %v, %d handlers", st, wait, c.handlers)
	}
}

// checkEnd looks at what is left of a connection that is over.
func (c *conn) checkEnd(t *testing.T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.streams) > 0 || c.handlers != 0 || c.idle != 0 || c.pendingBytes != 0 || c.large != 0 || len(c.waiting) > 0 || c.writing || c.ctx.Err() != context.Canceled {
		t.Errorf("at the end there are %d streams, %d handlers, %d idle goroutines, %d pending bytes, %d large responses, %d waiting requests, writing %v, context %v",
			len(c.streams), c.handlers, c.idle, c.pendingBytes, c.large, len(c.waiting), c.writing, c.ctx.Err())
	}
	if c.headerBytes != 0 {
		t.Errorf("at the end %d bytes of header fields count", c.headerBytes)
	}
}
