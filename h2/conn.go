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
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// Windows and frames of a client that has not said otherwise.
	defaultWindow = 1<<16 - 1
	defaultFrame  = 16 << 10
	maxWindow     = math.MaxInt32
	defaultTable  = 4096
	// maxIdleWorkers is how many goroutines of a connection wait for the next
	// request: one that has served some has the stack for more.
	maxIdleWorkers = 4

	// readBuffer holds a few small frames, so that they are read together.
	readBuffer = 512

	prefaceTimeout = 10 * time.Second
	// goAwayGrace is how long requests are served that a client sends before it knows of
	// a GOAWAY.
	goAwayGrace = 250 * time.Millisecond
	// closeTimeout is how long a client has to read what was written last.
	closeTimeout = time.Second
)

var errClosed = errors.New("http2: the connection is closed")

// conn is a connection. One goroutine, the read loop in run, reads it; handlers of
// its streams and the goroutines of sendLater write it.
type conn struct {
	// Set by newConn and not changed.
	srv     *Server
	ctx     context.Context
	cancel  context.CancelFunc
	handler http.Handler
	tls     *tls.Conn
	net     net.Conn   // below TLS
	batch   *batchConn // net, if it is one
	state   *tls.ConnectionState
	remote  string
	// work is where idle goroutines get the next stream. It has room for all of them.
	work chan *stream

	// Used by the read loop only.
	in      *bufio.Reader
	decoder *hpack.Decoder
	fields  headerFields
	names   map[string]string // canonical names of header fields, by wire name
	entered uint64            // from arrivals.enter, for the request that is being read
	poller

	// aheadOfOthers says that requests do not wait in Server.arrivals.
	aheadOfOthers atomic.Bool

	// Used by the goroutine that writes only, see writing.
	deadlineSet time.Time

	privileged atomic.Bool // by the user of the newest request that has one; see Privileged

	// mu guards everything below, and the streams.
	mu       sync.Mutex
	err      error        // why nothing can be written any longer
	out      *[]byte      // frames that no goroutine has begun to write
	writing  bool         // a goroutine writes
	writable sync.Cond    // there may be room in out, or a window
	grown    bool         // a window is larger, and those who wait were not told
	written  uint64       // how often something was written
	block    bytes.Buffer // header fields that are being encoded
	encoder  *hpack.Encoder
	// tableSize is the size of the encoder's dynamic table.
	tableSize uint32

	streams     map[uint32]*stream
	last        uint32 // the newest stream of the client
	large       int    // streams with a large response
	handlers    int    // goroutines that run a handler
	running     int    // handlers that count for Server.MaxHandlers
	waiting     []*stream
	idle        int       // goroutines that wait at work
	used        time.Time // when it had its last request
	idleTimer   *time.Timer
	headerBytes int // of requests whose handlers have not returned
	budget      controlBudget
	reset       *resetStreams // nil until there is one

	// What the client accepts.
	maxFrame      int
	initialWindow int64
	window        int64
	pendingBytes  int  // that all streams hold, see stream.pendingHeld
	granted       bool // buffers may be large, see room
	// What the client may send: credit has not been announced to it yet.
	ahead, credit int
	acknowledged  bool // the client knows our settings

	graceTimer *time.Timer // runs from the first GOAWAY to the last
	leaving    bool        // the last GOAWAY was sent: newer streams are not served
	greeted    bool        // SETTINGS were sent, which must be the first frame
	shutDown   bool        // shutdown was called before that
	ending     bool        // nothing will be sent any longer
}

func newConn(ctx context.Context, s *Server, tc *tls.Conn, handler http.Handler) *conn {
	state := tc.ConnectionState()
	c := &conn{
		srv: s, handler: handler, tls: tc, net: tc.NetConn(), state: &state, remote: tc.RemoteAddr().String(),
		work: make(chan *stream, maxIdleWorkers), in: bufio.NewReaderSize(tc, readBuffer), names: map[string]string{}, used: time.Now(),
		streams: map[uint32]*stream{}, maxFrame: defaultFrame, initialWindow: defaultWindow, window: defaultWindow, ahead: s.ConnWindow, tableSize: defaultTable,
	}
	c.poller.wake = make(chan struct{}, 1)
	if c.batch, _ = c.net.(*batchConn); c.batch != nil {
		c.batch.shouldPoll, c.batch.pause = c.shouldPoll, c.pause
	}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.writable.L = &c.mu
	c.encoder = hpack.NewEncoder(&c.block)
	c.decoder = hpack.NewDecoder(defaultTable, c.fields.add)
	c.decoder.SetMaxStringLength(s.MaxHeaderBytes)
	return c
}

// run serves the connection until it is over.
func (c *conn) run() {
	defer c.close()
	_ = c.net.SetReadDeadline(time.Now().Add(prefaceTimeout))
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c.in, preface); err != nil || string(preface) != http2.ClientPreface {
		return
	}
	c.mu.Lock()
	c.addSettings()
	c.greeted = true
	if c.shutDown {
		c.serveNoMore()
	}
	c.sendLater()
	if c.srv.IdleTimeout > 0 {
		c.idleTimer = time.AfterFunc(c.srv.IdleTimeout, c.closeIfIdle)
	}
	c.mu.Unlock()

	err := c.readFirst()
	for {
		for err == nil {
			err = c.readFrame()
		}
		if err = c.recoverFrom(err); err != nil {
			return
		}
	}
}

// recoverFrom does what an error of a frame asks for: it resets a stream, or tells the
// client why the connection ends. It returns nil if more frames are to be read.
func (c *conn) recoverFrom(err error) error {
	var ofStream http2.StreamError
	if errors.As(err, &ofStream) {
		c.mu.Lock()
		err = c.refuse(ofStream)
		c.sendLater()
		c.mu.Unlock()
	}
	var ofConn http2.ConnectionError
	if errors.As(err, &ofConn) {
		c.giveUp(http2.ErrCode(ofConn))
	}
	return err
}

// readFirst reads the first frame, which has the settings of the client.
func (c *conn) readFirst() error {
	head, err := c.in.Peek(frameHeaderLen)
	if err != nil {
		return err
	}
	if h := parseFrameHeader(head); h.kind != http2.FrameSettings || h.flags.Has(http2.FlagSettingsAck) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	err = c.readFrame()
	_ = c.net.SetReadDeadline(time.Time{})
	return err
}

// addSettings tells the client our settings.
func (c *conn) addSettings() {
	settings := []http2.Setting{
		{ID: http2.SettingMaxFrameSize, Val: uint32(c.srv.MaxFrame)},
		{ID: http2.SettingMaxConcurrentStreams, Val: uint32(c.srv.MaxStreams)},
		{ID: http2.SettingMaxHeaderListSize, Val: uint32(c.srv.MaxHeaderBytes)},
		{ID: http2.SettingInitialWindowSize, Val: uint32(c.srv.firstWindow())},
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

// setting applies a setting of the client.
func (c *conn) setting(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingHeaderTableSize:
		// The table only ever gets smaller. To enlarge it again before the next header
		// block takes two updates in that block, which Go's decoder refuses if the table
		// is not empty between them.
		if s.Val < c.tableSize {
			c.tableSize = s.Val
			c.encoder.SetMaxDynamicTableSize(s.Val)
		}
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
		c.flushAllPending()
		c.writable.Broadcast()
	}
	return nil
}

// windowUpdate enlarges a window of the client.
func (c *conn) windowUpdate(stream, increment uint32) error {
	if stream == 0 {
		if increment == 0 {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		if c.window += int64(increment); c.window > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.flushAllPending()
		c.windowGrew()
		return nil
	}
	st := c.streams[stream]
	switch {
	case st == nil && c.isIdle(stream):
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case st == nil:
		return nil // it has ended
	case increment == 0:
		return http2.StreamError{StreamID: stream, Code: http2.ErrCodeProtocol}
	}
	if st.window += int64(increment); st.window > maxWindow {
		return http2.StreamError{StreamID: stream, Code: http2.ErrCodeFlowControl}
	}
	c.flushPending(st)
	c.windowGrew()
	return nil
}

// windowGrew wakes handlers that wait for a window. If more frames have been read
// already, shouldPoll does it after the last of them: each handler would send as
// little as one frame allows.
func (c *conn) windowGrew() {
	if c.batch != nil {
		c.grown = true
	} else {
		c.writable.Broadcast()
	}
}

// isIdle reports whether a stream was never opened.
func (c *conn) isIdle(stream uint32) bool { return stream > c.last || stream%2 == 0 }

// receive takes n bytes from the window that the client has on the connection.
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

// refuse resets a stream on which the client has made a mistake. That many of them
// end the connection is what makes it useless to provoke resets.
func (c *conn) refuse(err http2.StreamError) error {
	if c.ending || c.err != nil {
		return nil
	}
	if st := c.streams[err.StreamID]; st != nil {
		c.resetStream(st, err.Code)
	} else {
		c.resetUnserved(err.StreamID, err.Code)
	}
	return c.budget.spend(resetCost)
}

// resetUnserved resets a stream that has no handler.
func (c *conn) resetUnserved(id uint32, code http2.ErrCode) {
	c.addReset(id, code)
	c.remember(id, c.srv.firstWindow())
}

// remember notes that a stream was reset, on which the client may send n bytes more.
func (c *conn) remember(id uint32, n int) {
	if c.reset == nil {
		c.reset = &resetStreams{}
	}
	c.reset.add(id, n)
}

// giveUp tells the client which rule it has broken, and ends the connection.
func (c *conn) giveUp(code http2.ErrCode) {
	c.mu.Lock()
	c.addGoAway(code)
	for _, st := range c.streams {
		c.closeStream(st, errClosed)
	}
	c.ending = true
	c.sendLater()
	if !c.writing {
		c.afterSend()
	}
	c.mu.Unlock()
	c.linger()
}

// linger reads until the client hangs up, or for a moment: a connection that is
// closed with something unread loses what the client has not read.
func (c *conn) linger() {
	_ = c.net.SetReadDeadline(time.Now().Add(closeTimeout))
	_, _ = io.Copy(io.Discard, io.LimitReader(c.in, int64(c.srv.ConnWindow)))
}

// addGoAway tells the client that no stream after the last one is served.
func (c *conn) addGoAway(code http2.ErrCode) {
	c.addGoAwayFrame(c.last, code)
	c.leaving = true
}

func (c *conn) addGoAwayFrame(last uint32, code http2.ErrCode) {
	var payload [8]byte
	binary.BigEndian.PutUint32(payload[:], last)
	binary.BigEndian.PutUint32(payload[4:], uint32(code))
	c.addFrame(http2.FrameGoAway, 0, 0, payload[:]...)
}

// shutdown lets open streams finish, and ends the connection.
func (c *conn) shutdown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.greeted {
		c.shutDown = true
		return
	}
	if c.err == nil && !c.ending {
		c.serveNoMore()
		c.sendLater()
	}
}

// serveNoMore sends the last GOAWAY, and ends the connection if there is no stream.
func (c *conn) serveNoMore() {
	if !c.leaving {
		c.addGoAway(http2.ErrCodeNo)
	}
	c.endIfDone()
}

// leave sends GOAWAY: the client is to send further requests elsewhere. Those that it
// sends before it knows are served for goAwayGrace; after that the connection ends
// when there is no stream left.
func (c *conn) leave() {
	if c.leaving || c.graceTimer != nil {
		return
	}
	c.addGoAwayFrame(maxWindow, http2.ErrCodeNo)
	c.graceTimer = time.AfterFunc(goAwayGrace, c.shutdown)
}

// endIfDone ends a connection that has sent GOAWAY, if there is no stream left.
func (c *conn) endIfDone() {
	if c.leaving && len(c.streams) == 0 {
		c.ending = true
		if !c.writing && c.queued() == 0 {
			c.afterSend()
		}
	}
}

// afterSend is called when everything is written. A connection that is ending is
// closed for writing then; the read loop sees the client do the same, or stops after
// closeTimeout.
func (c *conn) afterSend() {
	if c.queued() == 0 {
		c.endGrant()
	}
	if c.ending && c.err == nil {
		c.err = errClosed
		go func() {
			_ = c.tls.CloseWrite()
			_ = c.net.SetReadDeadline(time.Now().Add(closeTimeout))
		}()
	}
}

// closeIfIdle ends a connection that has had no request for IdleTimeout.
func (c *conn) closeIfIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch left := c.srv.IdleTimeout - time.Since(c.used); {
	case c.err != nil || c.leaving:
	case len(c.streams) > 0:
		c.idleTimer.Reset(c.srv.IdleTimeout)
	case left > 0:
		c.idleTimer.Reset(left)
	default:
		c.serveNoMore()
		c.sendLater()
	}
}

// fail ends the connection at once.
func (c *conn) fail(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.cancel()
	// Closing TLS would write, and wait for the goroutine that is writing.
	_ = c.net.Close()
	c.writable.Broadcast()
	for _, st := range c.streams {
		st.arrived.Broadcast()
	}
}

// close releases everything that belongs to the connection. Handlers that still run
// see the end of their contexts.
func (c *conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, timer := range []*time.Timer{c.idleTimer, c.graceTimer} {
		if timer != nil {
			timer.Stop()
		}
	}
	for _, st := range c.streams {
		c.closeStream(st, errClosed)
	}
	for _, st := range c.waiting {
		c.releaseHeader(st)
	}
	c.waiting = nil
	if c.err == nil {
		c.err = errClosed
	}
	c.endGrant()
	c.cancel()
	_ = c.net.Close()
	c.writable.Broadcast()
	if c.out != nil && !c.writing {
		recycle(c.out)
		c.out = nil
	}
}
