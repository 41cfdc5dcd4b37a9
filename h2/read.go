package h2

import (
	"encoding/binary"
	"io"
	"time"

	"golang.org/x/net/http2"
)

const frameHeaderLen = 9

// frameHeader is what every frame begins with.
type frameHeader struct {
	length int
	kind   http2.FrameType
	flags  http2.Flags
	stream uint32
}

func parseFrameHeader(b []byte) frameHeader {
	return frameHeader{
		length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]), kind: http2.FrameType(b[3]), flags: http2.Flags(b[4]),
		stream: binary.BigEndian.Uint32(b[5:]) & maxWindow,
	}
}

// readFrame reads a frame and does what it asks for. It fails with an
// http2.StreamError or http2.ConnectionError for a client that breaks the rules, and
// with another error for a connection that is over. No frame is kept in memory as a
// whole: small ones are looked at in the read buffer, others are read piece by piece.
func (c *conn) readFrame() error {
	head, err := c.in.Peek(frameHeaderLen)
	if err != nil {
		return err
	}
	h := parseFrameHeader(head)
	if h.length > c.srv.MaxFrame {
		return http2.ConnectionError(http2.ErrCodeFrameSize)
	}
	_, _ = c.in.Discard(frameHeaderLen)
	switch h.kind {
	case http2.FrameWindowUpdate:
		return c.readWindowUpdate(h)
	case http2.FrameData:
		return c.readData(h)
	case http2.FrameHeaders:
		return c.readHeaders(h)
	case http2.FrameSettings:
		return c.readSettings(h)
	case http2.FramePing:
		return c.readPing(h)
	case http2.FrameRSTStream:
		return c.readReset(h)
	case http2.FramePriority:
		return c.readPriority(h)
	case http2.FrameGoAway:
		return c.readGoAway(h)
	case http2.FramePushPromise, http2.FrameContinuation:
		// Clients do not push, and readHeaders reads what continues a header block.
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return c.skipUnknown(h)
}

// payload returns the payload of a frame that must have n bytes, which are valid
// until the next read.
func (c *conn) payload(h frameHeader, n int) ([]byte, error) {
	if h.length != n {
		return nil, http2.ConnectionError(http2.ErrCodeFrameSize)
	}
	b, err := c.in.Peek(n)
	if err == nil {
		_, _ = c.in.Discard(n)
	}
	return b, err
}

// skip drops n bytes.
func (c *conn) skip(n int) error {
	_, err := io.CopyN(io.Discard, c.in, int64(n))
	return err
}

// handle runs f under the lock, and has what it adds written. It does not on a
// connection that is over: frames that still come are read so that the client gets
// to read everything.
func (c *conn) handle(f func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return nil
	}
	if c.err != nil {
		return c.err
	}
	err := f()
	c.sendLater()
	return err
}

func (c *conn) readWindowUpdate(h frameHeader) error {
	p, err := c.payload(h, 4)
	if err != nil {
		return err
	}
	increment := binary.BigEndian.Uint32(p) & maxWindow
	return c.handle(func() error {
		if increment < tinyWindow {
			if err := c.budget.spend(1); err != nil {
				return err
			}
		}
		if c.leaving && h.stream > c.last {
			return nil // sent before the client knew that the stream is not served
		}
		return c.windowUpdate(h.stream, increment)
	})
}

func (c *conn) readSettings(h frameHeader) error {
	switch {
	case h.stream != 0:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case h.flags.Has(http2.FlagSettingsAck) && h.length > 0, h.length%6 != 0:
		return http2.ConnectionError(http2.ErrCodeFrameSize)
	case h.length > 6*maxSettings:
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	settings := make([]byte, h.length)
	if _, err := io.ReadFull(c.in, settings); err != nil {
		return err
	}
	return c.handle(func() error {
		if err := c.budget.spend(1 + len(settings)/60); err != nil {
			return err
		}
		if h.flags.Has(http2.FlagSettingsAck) {
			c.acknowledged = true
			return nil
		}
		for ; len(settings) > 0; settings = settings[6:] {
			s := http2.Setting{ID: http2.SettingID(binary.BigEndian.Uint16(settings)), Val: binary.BigEndian.Uint32(settings[2:])}
			if err := c.setting(s); err != nil {
				return err
			}
		}
		c.addFrame(http2.FrameSettings, http2.FlagSettingsAck, 0)
		return nil
	})
}

func (c *conn) readPing(h frameHeader) error {
	if h.stream != 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	p, err := c.payload(h, 8)
	if err != nil {
		return err
	}
	return c.handle(func() error {
		if !h.flags.Has(http2.FlagPingAck) {
			c.addFrame(http2.FramePing, http2.FlagPingAck, 0, p...)
		}
		return c.budget.spend(1)
	})
}

func (c *conn) readReset(h frameHeader) error {
	p, err := c.payload(h, 4)
	if err != nil {
		return err
	}
	code := http2.ErrCode(binary.BigEndian.Uint32(p))
	return c.handle(func() error {
		switch st := c.streams[h.stream]; {
		case st != nil:
			c.closeStream(st, http2.StreamError{StreamID: st.id, Code: code})
		case c.leaving && h.stream > c.last:
		case c.isIdle(h.stream):
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		return c.budget.spend(resetCost)
	})
}

func (c *conn) readPriority(h frameHeader) error {
	if h.stream == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if h.length != 5 {
		if err := c.skip(h.length); err != nil {
			return err
		}
		return http2.StreamError{StreamID: h.stream, Code: http2.ErrCodeFrameSize}
	}
	p, err := c.payload(h, 5)
	if err != nil {
		return err
	}
	dependency := binary.BigEndian.Uint32(p) & maxWindow
	return c.handle(func() error {
		if dependency == h.stream {
			return http2.StreamError{StreamID: h.stream, Code: http2.ErrCodeProtocol}
		}
		return c.budget.spend(1)
	})
}

func (c *conn) readGoAway(h frameHeader) error {
	switch {
	case h.stream != 0:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case h.length < 8:
		return http2.ConnectionError(http2.ErrCodeFrameSize)
	}
	if err := c.skip(h.length); err != nil {
		return err
	}
	return c.handle(func() error {
		c.serveNoMore()
		return c.budget.spend(1)
	})
}

// skipUnknown drops a frame of a type that HTTP/2 does not have.
func (c *conn) skipUnknown(h frameHeader) error {
	if err := c.skip(h.length); err != nil {
		return err
	}
	return c.handle(func() error { return c.budget.spend(1) })
}

// padding reads how many bytes of padding follow the n that are left of a frame.
func (c *conn) padding(h frameHeader, n int) (pad, left int, err error) {
	if !h.flags.Has(http2.FlagDataPadded) {
		return 0, n, nil
	}
	if n == 0 {
		return 0, 0, http2.ConnectionError(http2.ErrCodeFrameSize)
	}
	b, err := c.in.ReadByte()
	if err != nil {
		return 0, 0, err
	}
	if pad = int(b); pad > n-1 {
		return 0, 0, http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return pad, n - 1 - pad, nil
}

// readData reads a part of a request's body.
func (c *conn) readData(h frameHeader) error {
	if h.stream == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	pad, size, err := c.padding(h, h.length)
	if err != nil {
		return err
	}
	var st *stream
	var mistake error
	err = c.handle(func() (err error) {
		if size == 0 && !h.flags.Has(http2.FlagDataEndStream) {
			if err := c.budget.spend(1); err != nil {
				return err
			}
		}
		if st, mistake, err = c.beginData(h, size); st == nil {
			c.give(h.length)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := c.readBody(st, size); err != nil {
		return err
	}
	if err := c.skip(pad); err != nil || st == nil {
		if err == nil {
			err = mistake
		}
		return err
	}
	if h.flags.Has(http2.FlagDataEndStream) {
		return c.handle(func() error {
			c.endBody(st)
			return nil
		})
	}
	return nil
}

// beginData accounts for a DATA frame with size bytes of data. It returns no stream
// if the data is to be dropped, and then, if the client is to hear of it, why.
func (c *conn) beginData(h frameHeader, size int) (st *stream, mistake, err error) {
	if err := c.receive(h.length); err != nil {
		return nil, nil, err
	}
	if c.leaving && h.stream > c.last {
		return nil, nil, nil // sent before the client knew that the stream is not served
	}
	of := func(code http2.ErrCode) error { return http2.StreamError{StreamID: h.stream, Code: code} }
	st = c.streams[h.stream]
	switch {
	case st == nil && c.isIdle(h.stream):
		return nil, nil, http2.ConnectionError(http2.ErrCodeProtocol)
	case st == nil && c.reset.take(h.stream, h.length):
		return nil, nil, nil
	case st == nil || st.received:
		return nil, of(http2.ErrCodeStreamClosed), nil
	}
	if st.ahead -= h.length; st.ahead < 0 {
		return nil, of(http2.ErrCodeFlowControl), nil
	}
	st.bodySize += int64(size)
	if st.declared >= 0 && (st.bodySize > st.declared || h.flags.Has(http2.FlagDataEndStream) && st.bodySize < st.declared) {
		return nil, of(http2.ErrCodeProtocol), nil
	}
	// Padding needs no reader.
	c.give(h.length - size)
	c.giveStream(st, h.length-size)
	return st, nil, nil
}

// readBody reads n bytes for a stream, or drops them if there is none. A handler
// gets what has come before the rest of the frame has.
func (c *conn) readBody(st *stream, n int) error {
	if st == nil || n == 0 {
		return c.skip(n)
	}
	buffer := smallBuffers.Get().(*[]byte)
	defer recycle(buffer)
	for n > 0 {
		read, err := c.in.Read((*buffer)[:min(n, cap(*buffer))])
		if err != nil {
			return err
		}
		n -= read
		c.mu.Lock()
		st.body.add((*buffer)[:read], st.declared)
		if st.abandoned {
			c.dropBody(st)
		}
		st.arrived.Broadcast()
		c.sendLater()
		c.mu.Unlock()
	}
	return nil
}

// headerDeadline bounds the time for a header block of which not all is there. The
// function that it returns ends it.
func (c *conn) headerDeadline() (done func()) {
	_ = c.net.SetReadDeadline(time.Now().Add(c.srv.HeaderTimeout))
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.ending { // which has a deadline of its own
			_ = c.net.SetReadDeadline(time.Time{})
		}
	}
}
