package h2

import (
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

const (
	// maxRecord is what fits into a TLS record.
	maxRecord = 16 << 10
	// maxOut is how much waits to be written before handlers wait.
	maxOut = 128 << 10
	// maxQueued is how much more of small frames, of which clients cause some,
	// waits before the connection is given up.
	maxQueued = 1 << 20
	// smallBuffer is room for a small response.
	smallBuffer = 8 << 10
	// maxRounds is how often a handler writes what others add before it goes on
	// with its own work.
	maxRounds = 4
	// maxPending is how much of a response waits for the client's window without its
	// handler, and maxConnPending how much of all responses of a connection.
	maxPending     = 64 << 10
	maxConnPending = 1 << 20
	// pendingOverhead is what a stream takes that is open for what is pending of it, and
	// outBytes what the large buffers of a connection take: one that is written, and one
	// that is filled meanwhile.
	pendingOverhead = 2 << 10
	outBytes        = 2 * (maxOut + 32<<10)
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
	switch c := cap(*b); {
	case c < smallBuffer:
	case c < maxOut/4:
		smallBuffers.Put(b)
	case c >= maxOut && c < 2*maxOut:
		largeBuffers.Put(b)
	}
}

// makeRoom makes room for n bytes in c.out.
func (c *conn) makeRoom(n int) {
	switch {
	case c.out == nil && (n <= smallBuffer || !c.granted):
		c.out = smallBuffers.Get().(*[]byte)
	case c.out == nil:
		c.out = largeBuffers.Get().(*[]byte)
	case cap(*c.out)-len(*c.out) < n && cap(*c.out) < maxOut && c.granted:
		small := c.out
		c.out = largeBuffers.Get().(*[]byte)
		*c.out = append(*c.out, *small...)
		recycle(small)
	}
}

// room returns how much of n bytes of a response may be added to what waits to be written.
// For large buffers there is an allowance, which is given back when all is written.
func (c *conn) room(n int) int {
	waiting := c.queued()
	if !c.granted && waiting+frameHeaderLen+n > smallBuffer {
		c.granted = c.srv.take(outBytes)
	}
	switch {
	case c.granted && waiting < maxOut:
		return n
	case waiting < smallBuffer:
		return min(n, smallBuffer)
	}
	return 0
}

// endGrant gives back the allowance for large buffers.
func (c *conn) endGrant() {
	if c.granted {
		c.granted = false
		c.srv.giveBack(outBytes)
	}
}

// queued returns how many bytes wait to be written.
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
	c.makeRoom(frameHeaderLen + n)
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
// A small rest for which the client has no window is left to flushPending instead.
// Unless it is all, addData returns what is left of p when that is worth no frame yet.
func (c *conn) addData(st *stream, first, p []byte, all, end bool) (rest []byte, err error) {
	var stalled time.Time // when the client has granted no window for too long
	defer func() { st.stalled = time.Time{} }()
	for {
		if err := st.failed(); err != nil {
			return nil, err
		}
		have := len(first) + len(p)
		if !all && len(first) == 0 && have <= maxBuffered {
			return p, nil
		}
		c.flushPending(st)
		n := min(have, c.maxFrame, int(c.window), int(st.window))
		if n > 0 && st.pending == nil {
			n = c.room(n)
		}
		if st.pending != nil || have > 0 && n <= 0 {
			kept, denied := c.addPending(st, first, p, end)
			switch {
			case kept:
				return nil, nil
			case denied && end && !st.large:
				// The handler has returned. To wait here would cost more than the response, and
				// nothing would bound how many do.
				c.resetStream(st, http2.ErrCodeEnhanceYourCalm)
			default:
				c.waitWritable(st, &stalled)
			}
			continue
		}
		stalled, st.stalled = time.Time{}, time.Time{}
		n = max(n, 0)
		if n < have {
			n = c.alignToRecord(n)
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

// waitWritable writes what there is, or waits until there is room or a window. It
// resets the stream if that takes too long; stalled is when, and zero when a wait
// begins.
func (c *conn) waitWritable(st *stream, stalled *time.Time) {
	if c.send() {
		return
	}
	if stalled.IsZero() {
		st.stalled = time.Now()
		*stalled = st.stalled.Add(c.srv.StallTimeout)
	}
	c.wait(&c.writable, earlier(st.writeDeadline, *stalled))
	if isOver(st.writeDeadline) || isOver(*stalled) {
		c.resetStream(st, http2.ErrCodeInternal)
	}
}

// waitPending waits until nothing of a stream is pending.
func (c *conn) waitPending(st *stream) error {
	var stalled time.Time
	defer func() { st.stalled = time.Time{} }()
	for {
		if err := st.failed(); err != nil {
			return err
		}
		if c.flushPending(st); st.pending == nil {
			return nil
		}
		c.waitWritable(st, &stalled)
	}
}

// earlier returns the earlier of two times, either of which may be zero.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// addPending keeps a part of a response until the client has a window for it, so that
// the handler can return and give back what it holds. It reports whether there was room,
// which there is for small responses and the end of large ones, or whether the server's
// allowance is used up.
func (c *conn) addPending(st *stream, first, p []byte, end bool) (kept, denied bool) {
	n := len(first) + len(p)
	total, held := n, n+pendingOverhead
	if st.pending != nil {
		total, held = n+len(*st.pending), n
	}
	if total > maxPending || c.pendingBytes+held > maxConnPending || st.large && !end {
		return false, false
	}
	if held > 0 && !c.srv.take(held) {
		return false, true
	}
	if st.pending == nil {
		st.pending = new([]byte)
	}
	*st.pending = append(append(*st.pending, first...), p...)
	st.pendingEnd = end
	st.pendingHeld += held
	c.pendingBytes += held
	return true, false
}

// flushPending adds what is pending of a stream, as far as windows and room allow.
func (c *conn) flushPending(st *stream) {
	if st.pending == nil || st.closed != nil {
		return
	}
	for {
		left := *st.pending
		n := min(len(left), c.maxFrame, int(c.window), int(st.window))
		if n > 0 {
			n = c.room(n)
		}
		if len(left) > 0 && n <= 0 {
			return
		}
		n = max(n, 0)
		flags := http2.Flags(0)
		if st.pendingEnd && n == len(left) {
			flags = http2.FlagDataEndStream
		}
		c.addFrame(http2.FrameData, flags, st.id, left[:n]...)
		c.window -= int64(n)
		st.window -= int64(n)
		if *st.pending = left[n:]; n == len(left) {
			break
		}
	}
	c.dropPending(st)
	if st.answered {
		c.finishStream(st)
	}
}

// flushAllPending is flushPending for all streams.
func (c *conn) flushAllPending() {
	if c.pendingBytes == 0 {
		return
	}
	for _, st := range c.streams {
		c.flushPending(st)
	}
}

// dropPending forgets what is pending of a stream.
func (c *conn) dropPending(st *stream) {
	if st.pending != nil {
		c.pendingBytes -= st.pendingHeld
		c.srv.giveBack(st.pendingHeld)
		st.pending, st.pendingHeld = nil, 0
	}
}

// alignToRecord returns how much of n to take so that the frame ends where a TLS
// record does: clients get whole frames, and no record is short. It is not worth a
// small frame.
func (c *conn) alignToRecord(n int) int {
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

// send writes what is to be written, unless another goroutine is writing, which will
// write this too. It reports whether it has written. c.mu is held, but not meanwhile.
func (c *conn) send() bool {
	if c.writing || c.queued() == 0 || c.err != nil {
		return false
	}
	c.writing = true
	if c.writeRounds(maxRounds); c.queued() > 0 && c.err == nil {
		go c.writeAll()
		return true
	}
	c.writing = false
	c.afterSend()
	return true
}

// sendLater is send for callers that must not wait.
func (c *conn) sendLater() {
	if c.queued() > maxQueued {
		c.fail(errors.New("http2: too much to be written"))
	}
	if !c.writing && c.queued() > 0 && c.err == nil {
		c.writing = true
		go c.writeAll()
	}
}

// writeAll writes until there is nothing left.
func (c *conn) writeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.queued() > 0 && c.err == nil {
		c.writeRounds(maxRounds)
	}
	c.writing = false
	c.afterSend()
}

// writeRounds writes what is to be written, and as often as it says what was added
// meanwhile.
func (c *conn) writeRounds(rounds int) {
	for ; rounds > 0 && c.queued() > 0 && c.err == nil; rounds-- {
		out := c.out
		c.out = nil
		c.mu.Unlock()
		err := c.write(*out)
		recycle(out)
		c.mu.Lock()
		c.written++
		if err != nil {
			c.fail(err)
		} else {
			c.flushAllPending()
		}
		c.writable.Broadcast()
	}
}

// deadlineStep is how exact the deadline of a write is.
const deadlineStep = time.Second

// write writes to the client. Only one goroutine is here at a time, see conn.writing.
func (c *conn) write(p []byte) error {
	if now := time.Now(); c.srv.WriteTimeout > 0 && now.Sub(c.deadlineSet) > deadlineStep {
		c.deadlineSet = now
		if err := c.net.SetWriteDeadline(now.Add(c.srv.WriteTimeout + deadlineStep)); err != nil {
			return err
		}
	}
	if len(p) <= maxRecord || c.batch == nil {
		_, err := c.tls.Write(p)
		return err
	}
	// A buffer can be larger than maxOut by what does not wait for room.
	for len(p) > 0 {
		part := p[:min(len(p), maxOut)]
		p = p[len(part):]
		c.batch.begin()
		_, err := c.tls.Write(part)
		if err = errors.Join(err, c.batch.end()); err != nil {
			return err
		}
	}
	return nil
}
