package h2

import (
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

const (
	frameHeaderLen = 9
	// maxRecord is what fits into a TLS record.
	maxRecord = 16 << 10
	// maxOut is how much waits to be written before handlers wait.
	maxOut = 128 << 10
	// maxQueued is how much more of small frames, of which clients cause some,
	// waits before the connection is given up.
	maxQueued = 1 << 20
	// smallBuffer is room for a small answer.
	smallBuffer = 8 << 10
	// maxRounds is how often a handler writes what others add before it goes on
	// with its own work.
	maxRounds = 4
)

// Buffers are shared by all connections: an idle one has none. Large ones have
// room for what TLS adds.
var (
	smallBuffers = sync.Pool{New: func() any { b := make([]byte, 0, smallBuffer); return &b }}
	largeBuffers = sync.Pool{New: func() any { b := make([]byte, 0, maxOut+32<<10); return &b }}
)

// recycle takes a buffer that nobody uses.
func recycle(b *[]byte) {
	*b = (*b)[:0]
	switch {
	case cap(*b) < maxOut:
		smallBuffers.Put(b)
	case cap(*b) < maxQueued:
		largeBuffers.Put(b)
	}
}

var errClosed = errors.New("http2: the connection is closed")

// room makes room for n bytes in c.out.
func (c *conn) room(n int) {
	switch {
	case c.out == nil && n <= smallBuffer:
		c.out = smallBuffers.Get().(*[]byte)
	case c.out == nil:
		c.out = largeBuffers.Get().(*[]byte)
	case cap(*c.out)-len(*c.out) < n && cap(*c.out) < maxOut:
		small := c.out
		c.out = largeBuffers.Get().(*[]byte)
		*c.out = append(*c.out, *small...)
		recycle(small)
	}
}

// queued is how much waits to be written.
func (c *conn) queued() int {
	if c.out == nil {
		return 0
	}
	return len(*c.out)
}

// addFrame adds a frame to what is to be written.
func (c *conn) addFrame(kind http2.FrameType, flags http2.Flags, stream uint32, payload ...byte) {
	c.addFrameOf(kind, flags, stream, nil, payload)
}

// addFrameOf is addFrame with a payload in two parts.
func (c *conn) addFrameOf(kind http2.FrameType, flags http2.Flags, stream uint32, first, payload []byte) {
	n := len(first) + len(payload)
	c.room(frameHeaderLen + n)
	*c.out = append(*c.out, byte(n>>16), byte(n>>8), byte(n), byte(kind), byte(flags),
		byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
	*c.out = append(*c.out, first...)
	*c.out = append(*c.out, payload...)
}

func (c *conn) addReset(stream uint32, code http2.ErrCode) {
	var payload [4]byte
	binary.BigEndian.PutUint32(payload[:], uint32(code))
	c.addFrame(http2.FrameRSTStream, 0, stream, payload[:]...)
}

func (c *conn) addWindow(stream uint32, n int) {
	var payload [4]byte
	binary.BigEndian.PutUint32(payload[:], uint32(n))
	c.addFrame(http2.FrameWindowUpdate, 0, stream, payload[:]...)
}

// addHeaders adds a block of header fields that is in c.block.
func (c *conn) addHeaders(stream uint32, end bool) {
	block := c.block.Bytes()
	kind, flags := http2.FrameHeaders, http2.Flags(0)
	if end {
		flags = http2.FlagHeadersEndStream
	}
	for {
		part := block[:min(len(block), c.maxFrame)]
		block = block[len(part):]
		if len(block) == 0 {
			flags |= http2.FlagHeadersEndHeaders
		}
		c.addFrame(kind, flags, stream, part...)
		if len(block) == 0 {
			break
		}
		kind, flags = http2.FrameContinuation, 0
	}
	c.block.Reset()
}

// addData adds first and then p as frames of a stream. It waits for room and windows,
// and what there is is written meanwhile; if it fails, the client may have got a part.
// Unless it is all, it returns what is left of p when that is worth no frame yet.
func (c *conn) addData(st *stream, first, p []byte, all, end bool) (rest []byte, err error) {
	for {
		if err := st.failed(); err != nil {
			return nil, err
		}
		have := len(first) + len(p)
		if !all && len(first) == 0 && have <= maxBuffered {
			return p, nil
		}
		n := min(have, c.maxFrame, int(c.window), int(st.window))
		if have > 0 && (n <= 0 || c.queued() >= maxOut) {
			if !c.send() {
				c.wait(&c.writable, st.writeDeadline)
			}
			if st.late(st.writeDeadline) {
				c.resetStream(st, http2.ErrCodeInternal)
			}
			continue
		}
		n = max(n, 0)
		if n < have {
			n = c.aligned(n)
		}
		flags := http2.Flags(0)
		if end && n == have {
			flags = http2.FlagDataEndStream
		}
		ofFirst := min(n, len(first))
		c.addFrameOf(http2.FrameData, flags, st.id, first[:ofFirst], p[:n-ofFirst])
		first, p = first[ofFirst:], p[n-ofFirst:]
		c.window -= int64(n)
		st.window -= int64(n)
		if n == have {
			return nil, nil
		}
	}
}

// aligned is how much of n to take so that the frame ends where a TLS record does:
// clients get whole frames, and no record is short. It is not worth a small frame.
func (c *conn) aligned(n int) int {
	begin := c.queued() + frameHeaderLen
	if end := (begin + n) / maxRecord * maxRecord; end-begin >= n/4 {
		return end - begin
	}
	return n
}

// wait waits for a condition, and not beyond a deadline.
func (c *conn) wait(cond *sync.Cond, deadline time.Time) {
	if !deadline.IsZero() {
		timer := time.AfterFunc(time.Until(deadline), func() {
			c.mu.Lock()
			cond.Broadcast()
			c.mu.Unlock()
		})
		defer timer.Stop()
	}
	cond.Wait()
}

// send writes what is to be written, unless somebody does: they will write this
// too. It reports whether it has written. c.mu is held, but not meanwhile.
func (c *conn) send() bool {
	if c.writing || c.queued() == 0 || c.err != nil {
		return false
	}
	c.writing = true
	if c.sendRounds(maxRounds); c.queued() > 0 && c.err == nil {
		go c.sendRest()
		return true
	}
	c.writing = false
	c.sent()
	return true
}

// sendLater is send for those who must not wait.
func (c *conn) sendLater() {
	if c.queued() > maxQueued {
		c.fail(errors.New("http2: too much to be written"))
	}
	if !c.writing && c.queued() > 0 && c.err == nil {
		c.writing = true
		go c.sendRest()
	}
}

func (c *conn) sendRest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.queued() > 0 && c.err == nil {
		c.sendRounds(maxRounds)
	}
	c.writing = false
	c.sent()
}

func (c *conn) sendRounds(rounds int) {
	for ; rounds > 0 && c.queued() > 0 && c.err == nil; rounds-- {
		out := c.out
		c.out = nil
		c.mu.Unlock()
		err := c.write(*out)
		recycle(out)
		c.mu.Lock()
		if err != nil {
			c.fail(err)
		}
		c.writable.Broadcast()
	}
}

// deadlineStep is how exact the deadline of a write is.
const deadlineStep = time.Second

// write writes to the client. Only one goroutine is here at a time.
func (c *conn) write(p []byte) error {
	if now := time.Now(); c.srv.WriteTimeout > 0 && now.Sub(c.deadlineSet) > deadlineStep {
		c.deadlineSet = now
		if err := c.net.SetWriteDeadline(now.Add(c.srv.WriteTimeout + deadlineStep)); err != nil {
			return err
		}
	}
	if len(p) <= maxRecord || c.gather == nil {
		_, err := c.tls.Write(p)
		return err
	}
	// A buffer can be larger than maxOut by what does not wait for room.
	for len(p) > 0 {
		part := p[:min(len(p), maxOut)]
		p = p[len(part):]
		c.gather.hold()
		_, err := c.tls.Write(part)
		if err = errors.Join(err, c.gather.release()); err != nil {
			return err
		}
	}
	return nil
}

// fail ends the connection at once.
func (c *conn) fail(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.cancel()
	// Not TLS's way, which writes, and waits for those who do.
	_ = c.net.Close()
	c.writable.Broadcast()
	for _, st := range c.streams {
		st.arrived.Broadcast()
	}
}
