package h2

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// Windows and frames of a client that has not said otherwise.
	defaultWindow = 1<<16 - 1
	defaultFrame  = 16 << 10
	maxWindow     = math.MaxInt32
	// maxSettings and maxQueue bound what one client can ask for: settings in a
	// frame, and requests that wait for their turn as a multiple of MaxStreams:
	// those that it has given up still run.
	maxSettings = 100
	maxQueue    = 4
	// maxIdleWorkers is how many goroutines of a connection wait for the next
	// request: one that has served some has the stack for more.
	maxIdleWorkers = 4

	// readBuffer holds a few small frames, so that they are read together.
	readBuffer = 512

	// largeWrite is what the handler of a large answer writes at a time. While there
	// is one, a client whose windows have at least calmWindow is listened to every
	// calmFor only.
	largeWrite = 64 << 10
	calmWindow = 1 << 20
	calmFor    = time.Millisecond

	prefaceTimeout = 10 * time.Second
	// closeTimeout is how long a client has to read the last words.
	closeTimeout = time.Second
)

// conn is a connection. Its reader is the only one to use what is above mu.
type conn struct {
	srv     *Server
	ctx     context.Context
	cancel  context.CancelFunc
	handler http.Handler
	tls     *tls.Conn
	net     net.Conn // below TLS
	gather  *gather  // net, if it is one
	state   *tls.ConnectionState
	remote  string
	in      *bufio.Reader
	framer  *http2.Framer
	names   map[string]string // of headers, as net/http writes them

	// pause ends what calm waits for, and quick does before its time.
	pause *time.Timer
	quick chan struct{}
	// deadlineSet belongs to whoever writes.
	deadlineSet time.Time
	// work is where goroutines without a request get one.
	work chan *stream

	mu       sync.Mutex
	err      error        // why nothing can be written any longer
	out      *[]byte      // frames that nobody has begun to write
	writing  bool         // somebody writes
	writable sync.Cond    // there may be room, or a window
	wider    bool         // there is, and nobody was told
	block    bytes.Buffer // header fields that are being encoded
	encoder  *hpack.Encoder

	streams  map[uint32]*stream
	last     uint32 // the newest stream of the client
	large    int    // streams with a large answer
	handlers int    // that run
	waiting  []*stream
	idle     int       // goroutines that wait at work
	used     time.Time // when it had its last request
	sleeper  *time.Timer

	// What the client can take.
	maxFrame      int
	initialWindow int64
	window        int64
	// What it may send: credit is what it does not know of yet.
	ahead, credit int
	acknowledged  bool // it knows our settings

	leaving bool // GOAWAY was sent
	ending  bool // nothing will be sent any longer
}

func newConn(ctx context.Context, s *Server, tc *tls.Conn, handler http.Handler) *conn {
	state := tc.ConnectionState()
	c := &conn{
		srv: s, handler: handler, tls: tc, net: tc.NetConn(), state: &state, remote: tc.RemoteAddr().String(),
		in: bufio.NewReaderSize(tc, readBuffer), names: map[string]string{}, work: make(chan *stream, maxIdleWorkers), quick: make(chan struct{}, 1), used: time.Now(),
		streams: map[uint32]*stream{}, maxFrame: defaultFrame, initialWindow: defaultWindow, window: defaultWindow, ahead: s.ConnWindow,
	}
	if c.gather, _ = c.net.(*gather); c.gather != nil {
		c.gather.busy, c.gather.pause = c.busy, c.calm
	}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.writable.L = &c.mu
	c.encoder = hpack.NewEncoder(&c.block)
	c.framer = http2.NewFramer(nil, c.in)
	c.framer.SetReuseFrames()
	c.framer.SetMaxReadFrameSize(uint32(s.MaxFrame))
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.framer.MaxHeaderListSize = uint32(s.MaxHeaderBytes)
	return c
}

// run serves the connection until it is over.
func (c *conn) run() {
	defer c.close()
	preface := make([]byte, len(http2.ClientPreface))
	_ = c.net.SetReadDeadline(time.Now().Add(prefaceTimeout))
	if _, err := io.ReadFull(c.in, preface); err != nil || string(preface) != http2.ClientPreface {
		return
	}
	c.mu.Lock()
	c.greet()
	c.sendLater()
	if c.srv.IdleTimeout > 0 {
		c.sleeper = time.AfterFunc(c.srv.IdleTimeout, c.sleep)
	}
	c.mu.Unlock()

	err := c.begin()
	for {
		if err == nil {
			err = c.windows()
		}
		if err == nil {
			var frame http2.Frame
			if frame, err = c.framer.ReadFrame(); err == nil {
				err = c.process(frame)
			}
		}
		var ofStream http2.StreamError
		var ofConn http2.ConnectionError
		switch {
		case err == nil:
		case errors.As(err, &ofStream):
			c.mu.Lock()
			c.refuse(ofStream)
			c.sendLater()
			c.mu.Unlock()
			err = nil
		case errors.As(err, &ofConn):
			c.giveUp(http2.ErrCode(ofConn))
			return
		case errors.Is(err, http2.ErrFrameTooLarge):
			c.giveUp(http2.ErrCodeFrameSize)
			return
		default:
			return
		}
	}
}

// begin reads the first frame, which has the settings of the client.
func (c *conn) begin() error {
	frame, err := c.framer.ReadFrame()
	if err != nil {
		return err
	}
	_ = c.net.SetReadDeadline(time.Time{})
	if settings, ok := frame.(*http2.SettingsFrame); !ok || settings.IsAck() {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return c.process(frame)
}

// windows takes the WINDOW_UPDATE frames that come next. A client that reads a
// large answer sends two every few KB, and the framer makes garbage of each.
func (c *conn) windows() error {
	const size = frameHeaderLen + 4
	for {
		b, err := c.in.Peek(frameHeaderLen)
		if err != nil {
			return err
		}
		if n := int(b[0])<<16 | int(b[1])<<8 | int(b[2]); n != 4 || http2.FrameType(b[3]) != http2.FrameWindowUpdate {
			return nil
		}
		if b, err = c.in.Peek(size); err != nil {
			return err
		}
		stream := binary.BigEndian.Uint32(b[5:]) & maxWindow
		increment := binary.BigEndian.Uint32(b[frameHeaderLen:]) & maxWindow
		if increment == 0 {
			return nil // the framer knows what to say
		}
		_, _ = c.in.Discard(size)
		c.mu.Lock()
		switch {
		case c.ending: // what is read is read so that the client gets to read all
		case c.err != nil:
			err = c.err
		case !c.leaving || stream <= c.last:
			err = c.windowUpdate(stream, increment)
		}
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// busy is called when everything that came is read, and reports whether the client is
// sent a large answer. It tells of every few
// kilobytes that it has read then, and to be woken for each costs as much as to send
// them: as long as its windows have room they are only looked at now and then.
func (c *conn) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wider {
		c.wider = false
		c.writable.Broadcast()
	}
	return c.large > 0 && c.initialWindow >= calmWindow && c.window >= calmWindow && c.err == nil && c.ctx.Err() == nil
}

// calm waits for now and then.
func (c *conn) calm() {
	if c.pause == nil {
		c.pause = time.NewTimer(calmFor)
	} else {
		c.pause.Reset(calmFor)
	}
	select {
	case <-c.pause.C:
	case <-c.quick:
	case <-c.ctx.Done():
	}
}

// greet tells the client the settings.
func (c *conn) greet() {
	settings := []http2.Setting{
		{ID: http2.SettingMaxFrameSize, Val: uint32(c.srv.MaxFrame)},
		{ID: http2.SettingMaxConcurrentStreams, Val: uint32(c.srv.MaxStreams)},
		{ID: http2.SettingMaxHeaderListSize, Val: uint32(c.srv.MaxHeaderBytes)},
		{ID: http2.SettingInitialWindowSize, Val: uint32(c.srv.StreamWindow)},
	}
	var payload []byte
	for _, s := range settings {
		payload = binary.BigEndian.AppendUint16(payload, uint16(s.ID))
		payload = binary.BigEndian.AppendUint32(payload, s.Val)
	}
	c.addFrame(http2.FrameSettings, 0, 0, payload...)
	if more := c.srv.ConnWindow - defaultWindow; more > 0 {
		c.addWindow(0, more)
	}
}

// process handles a frame. Errors of other types than those of http2 end the
// connection without a word.
func (c *conn) process(frame http2.Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return nil // what is read is read so that the client gets to read all
	}
	if c.err != nil {
		return c.err
	}
	defer c.sendLater()
	if id := frame.Header().StreamID; c.leaving && id > c.last {
		// It was sent before the client knew, and is not worked on.
		if data, ok := frame.(*http2.DataFrame); ok {
			return c.discard(int(data.Length))
		}
		return nil
	}
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.MetaHeadersFrame:
		return c.headers(f)
	case *http2.DataFrame:
		return c.data(f)
	case *http2.WindowUpdateFrame:
		return c.windowUpdate(f.StreamID, f.Increment)
	case *http2.RSTStreamFrame:
		if f.StreamID > c.last || f.StreamID%2 == 0 {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		if st := c.streams[f.StreamID]; st != nil {
			c.closeStream(st, http2.StreamError{StreamID: st.id, Code: f.ErrCode})
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			c.addFrame(http2.FramePing, http2.FlagPingAck, 0, f.Data[:]...)
		}
	case *http2.GoAwayFrame:
		c.leave()
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

func (c *conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		c.acknowledged = true
		return nil
	}
	if f.NumSettings() > maxSettings {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	err := f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		switch s.ID {
		case http2.SettingHeaderTableSize:
			c.encoder.SetMaxDynamicTableSize(s.Val)
		case http2.SettingMaxFrameSize:
			c.maxFrame = min(int(s.Val), maxOut/2)
		case http2.SettingInitialWindowSize:
			growth := int64(s.Val) - c.initialWindow
			c.initialWindow = int64(s.Val)
			for _, st := range c.streams {
				if st.window += growth; st.window > maxWindow {
					return http2.ConnectionError(http2.ErrCodeFlowControl)
				}
			}
			c.writable.Broadcast()
		}
		return nil
	})
	if err == nil {
		c.addFrame(http2.FrameSettings, http2.FlagSettingsAck, 0)
	}
	return err
}

func (c *conn) windowUpdate(stream, increment uint32) error {
	if stream == 0 {
		if c.window += int64(increment); c.window > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.widened()
		return nil
	}
	st := c.streams[stream]
	if st == nil {
		if stream > c.last || stream%2 == 0 {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		return nil // it has just ended
	}
	if st.window += int64(increment); st.window > maxWindow {
		return http2.StreamError{StreamID: stream, Code: http2.ErrCodeFlowControl}
	}
	c.widened()
	return nil
}

// widened tells those who write that a window is wider. If there are many such news,
// they are told when all are read: they would send as little as each allows.
func (c *conn) widened() {
	if c.gather != nil { // which tells when they are
		c.wider = true
	} else {
		c.writable.Broadcast()
	}
}

// receive counts what a client sends.
func (c *conn) receive(n int) error {
	if c.ahead -= n; c.ahead < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	return nil
}

// give lets the client send n bytes more on the connection, in steps that are
// worth a frame.
func (c *conn) give(n int) {
	if c.credit += n; c.credit >= c.srv.ConnWindow/4 {
		c.addWindow(0, c.credit)
		c.ahead += c.credit
		c.credit = 0
	}
}

// discard takes n bytes that nobody wants.
func (c *conn) discard(n int) error {
	if err := c.receive(n); err != nil {
		return err
	}
	c.give(n)
	return nil
}

func (c *conn) data(f *http2.DataFrame) error {
	size := int(f.Length) // with padding
	st := c.streams[f.StreamID]
	switch {
	case st == nil && (f.StreamID > c.last || f.StreamID%2 == 0):
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case st == nil || st.received:
		if err := c.discard(size); err != nil {
			return err
		}
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeStreamClosed}
	}
	if err := c.receive(size); err != nil {
		return err
	}
	if st.ahead -= size; st.ahead < 0 {
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeFlowControl}
	}
	data := f.Data()
	c.give(size - len(data))
	st.bodySize += int64(len(data))
	if st.declared >= 0 && (st.bodySize > st.declared || f.StreamEnded() && st.bodySize < st.declared) {
		c.give(len(data))
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
	}
	if st.abandoned {
		c.give(len(data))
	} else if len(data) > 0 {
		if st.body == nil && st.declared > 0 {
			st.body = make([]byte, 0, min(int(st.declared), c.srv.StreamWindow))
		}
		st.body = append(st.body, data...)
	}
	st.received = f.StreamEnded()
	st.arrived.Broadcast()
	return nil
}

// refuse ends a stream that the client has made a mistake with.
func (c *conn) refuse(err http2.StreamError) {
	if st := c.streams[err.StreamID]; st != nil {
		c.resetStream(st, err.Code)
		return
	}
	c.addReset(err.StreamID, err.Code)
}

// giveUp says what was wrong, and ends the connection.
func (c *conn) giveUp(code http2.ErrCode) {
	c.mu.Lock()
	c.addGoAway(code)
	for _, st := range c.streams {
		c.closeStream(st, errClosed)
	}
	c.ending = true
	c.sendLater()
	if !c.writing {
		c.sent()
	}
	c.mu.Unlock()
	c.linger()
}

// linger reads until the client hangs up, or for a moment: a connection that is
// closed with something unread loses what the client has not read.
func (c *conn) linger() {
	_ = c.net.SetReadDeadline(time.Now().Add(closeTimeout))
	_, _ = io.Copy(io.Discard, c.in)
}

func (c *conn) addGoAway(code http2.ErrCode) {
	var payload [8]byte
	binary.BigEndian.PutUint32(payload[:], c.last)
	binary.BigEndian.PutUint32(payload[4:], uint32(code))
	c.addFrame(http2.FrameGoAway, 0, 0, payload[:]...)
	c.leaving = true
}

// shutdown lets the streams finish that there are.
func (c *conn) shutdown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leave()
	c.sendLater()
}

// leave tells the client to go elsewhere, and ends the connection when there is
// no stream left.
func (c *conn) leave() {
	if !c.leaving {
		c.addGoAway(http2.ErrCodeNo)
	}
	c.ended()
}

// ended ends a connection that is to end, if there is no stream left.
func (c *conn) ended() {
	if c.leaving && len(c.streams) == 0 {
		c.ending = true
		if !c.writing && c.queued() == 0 {
			c.sent()
		}
	}
}

// sent is called when everything is written. The end of a connection is that we
// hang up; the reader sees the client do the same, or is not patient.
func (c *conn) sent() {
	if c.ending && c.err == nil {
		c.err = errClosed
		go func() {
			_ = c.tls.CloseWrite()
			_ = c.net.SetReadDeadline(time.Now().Add(closeTimeout))
		}()
	}
}

// sleep ends a connection that has had no request for long.
func (c *conn) sleep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch left := c.srv.IdleTimeout - time.Since(c.used); {
	case c.err != nil || c.leaving:
	case len(c.streams) > 0:
		c.sleeper.Reset(c.srv.IdleTimeout)
	case left > 0:
		c.sleeper.Reset(left)
	default:
		c.leave()
		c.sendLater()
	}
}

// close is the end of everything that belongs to the connection, except for
// handlers, which notice.
func (c *conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sleeper != nil {
		c.sleeper.Stop()
	}
	for _, st := range c.streams {
		c.closeStream(st, errClosed)
	}
	c.waiting = nil
	if c.err == nil {
		c.err = errClosed
	}
	c.cancel()
	_ = c.net.Close()
	c.writable.Broadcast()
	if c.out != nil && !c.writing {
		recycle(c.out)
		c.out = nil
	}
}
