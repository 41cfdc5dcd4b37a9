package h2

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

var errFinished = errors.New("http2: the request is over")

// stream is a request and its response. Everything is guarded by the mutex of the
// connection, except where a comment says otherwise.
type stream struct {
	c      *conn
	id     uint32
	cancel context.CancelFunc
	req    *http.Request
	// handle serves the stream: the handler of the connection, unless something is
	// wrong with the request.
	handle http.Handler
	// headerBytes is what the header of the request adds to conn.headerBytes.
	headerBytes int

	// entered is from arrivals.enter, 0 if the request has arrived or does not count.
	entered  uint64
	counted  bool  // the handler counts in conn.running and Server.running
	window   int64 // what the client accepts
	large    bool  // the response
	answered bool  // the handler has returned, and the response is complete
	closed   error // why there is no stream any longer
	// pending is the part of a response for which the client has no window, nil if
	// there is none. With pendingEnd it is the last part.
	pending    *[]byte
	pendingEnd bool
	// pendingHeld is what counts for it, also of what is written already, until nothing is
	// pending.
	pendingHeld int
	// draining says that the response has been sent, and that the rest of the body is
	// dropped as it comes. drained is how much was.
	draining bool
	drained  int
	// timer resets a stream whose handler has returned, if the client does not take
	// what is pending, or does not end the body.
	timer *time.Timer

	ahead, credit   int   // bytes that the client may send; credit has not been announced
	declared        int64 // the length of the body, -1 if it is not known
	bodySize        int64 // bytes of it that have come
	body            bodyBuffer
	trailer         http.Header // trailers that have come and that the handler does not see yet
	requestTrailer  http.Header // Request.Trailer, which belongs to the handler
	received        bool        // the whole request has come
	wide            bool        // the window of the body is StreamWindow: the handler reads it
	abandoned       bool        // nobody will read the rest of the body
	expectsContinue bool        // the client sends the body when it is told to
	arrived         sync.Cond   // more of the body may have come
	stalled         time.Time   // since when the response waits for the client, zero if it does not
	readDeadline    time.Time
	writeDeadline   time.Time

	response response
}

// failed returns why nothing can be written to the stream.
func (st *stream) failed() error {
	switch {
	case st.c.err != nil:
		return st.c.err
	case st.closed != nil:
		return st.closed
	case st.answered:
		return errFinished
	}
	return nil
}

// isOver reports whether a deadline is set and has passed.
func isOver(deadline time.Time) bool { return !deadline.IsZero() && !time.Now().Before(deadline) }

// start has a stream served, as soon as a handler may run.
func (c *conn) start(st *stream) error {
	if c.handlers >= c.srv.MaxStreams && len(c.waiting) >= maxWaiting*c.srv.MaxStreams {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	c.headerBytes += st.headerBytes
	if c.handlers >= c.srv.MaxStreams {
		// The client has fewer streams: it has reset some whose handlers still run.
		c.waiting = append(c.waiting, st)
		return nil
	}
	c.handlers++
	c.count(st)
	st.entered, c.entered = c.entered, 0
	if c.idle > 0 {
		c.idle--
		c.work <- st
		return nil
	}
	go c.serve(st)
	return nil
}

// count counts the handler of a stream for MaxHandlers, until stopCounting is called.
func (c *conn) count(st *stream) {
	st.counted = true
	c.running++
	c.srv.running.Add(1)
}

func (c *conn) stopCounting(st *stream) {
	if st.counted {
		st.counted = false
		c.running--
		c.srv.running.Add(-1)
	}
}

// releaseHeader is called when the request of a stream is garbage.
func (c *conn) releaseHeader(st *stream) {
	c.headerBytes -= st.headerBytes
	st.headerBytes = 0
}

// handlerStack is how much stack a handler has room for from the start, with what Go rounds up to:
// 16 KB.
const handlerStack = 12 << 10

// growStack makes room for a handler on the stack of a goroutine, at once, if there is not: that of
// a new one is small, and the garbage collector halves that of one that waits. A stack that is doubled
// deep within the handler, perhaps several times, is copied and looked through each time. The room is
// that of the frame of this function. With 0 it is not used, or it would have to be cleared.
//
//go:noinline
func growStack(i int) byte {
	if i > 0 {
		var room [handlerStack]byte
		return room[i]
	}
	return 0
}

// serve serves one stream after the other.
func (c *conn) serve(st *stream) {
	for st != nil {
		growStack(0)
		st.serve()
		c.mu.Lock()
		c.stopCounting(st)
		c.releaseHeader(st)
		entered := st.entered
		st.entered = 0
		next, wait := c.next()
		c.mu.Unlock()
		c.srv.leave(entered)
		if wait {
			select {
			case next = <-c.work:
			case <-c.ctx.Done():
				c.mu.Lock()
				select {
				case next = <-c.work:
				default:
					c.idle--
				}
				c.mu.Unlock()
			}
		}
		st = next
	}
}

// next returns what a goroutine does that has served a stream: serve another, wait
// for one, or end.
func (c *conn) next() (st *stream, wait bool) {
	// There is one more handler than MaxStreams if one has returned that continues.
	for len(c.waiting) > 0 && c.handlers <= c.srv.MaxStreams {
		st, c.waiting = c.waiting[0], c.waiting[1:]
		if st.closed == nil {
			c.count(st)
			return st, false
		}
		c.releaseHeader(st)
	}
	c.handlers--
	if c.err != nil || c.idle >= maxIdleWorkers {
		return nil, false
	}
	c.idle++
	return nil, true
}

// serve runs the handler.
func (st *stream) serve() {
	complete := false
	defer func() {
		if !complete {
			st.abort(recover())
		}
	}()
	st.handle.ServeHTTP(&st.response, st.req)
	if st.response.continuation == nil {
		st.response.finish()
		st.cancel()
	} else {
		c := st.c
		c.mu.Lock()
		st.req, st.handle = nil, nil
		st.response.dropHeader()
		c.handlers++ // the goroutine that returns and the one that continues
		c.mu.Unlock()
		go c.resume(st)
	}
	complete = true
}

// resume runs the continuation of a response whose handler has returned.
func (c *conn) resume(st *stream) {
	if next := st.resume(); next != nil {
		c.serve(next)
	}
}

func (st *stream) resume() (next *stream) {
	complete := false
	defer func() {
		if !complete {
			st.abort(recover())
		}
		st.c.mu.Lock()
		defer st.c.mu.Unlock()
		if s, wait := st.c.next(); wait {
			st.c.idle-- // goroutines that have served handlers have larger stacks
		} else {
			next = s
		}
	}()
	st.response.continuation()
	st.response.finish()
	st.cancel()
	complete = true
	return nil
}

// abort ends a stream whose handler has panicked.
func (st *stream) abort(cause any) {
	defer st.cancel()
	if cause != nil && cause != http.ErrAbortHandler && st.c.srv.ErrorLog != nil {
		stack := make([]byte, 64<<10)
		stack = stack[:runtime.Stack(stack, false)]
		st.c.srv.ErrorLog.Printf("http2: panic serving %s: %v\n%s", st.c.remote, cause, stack)
	}
	st.c.mu.Lock()
	st.c.resetStream(st, http2.ErrCodeInternal)
	st.c.send()
	st.c.mu.Unlock()
}

// finishStream is called when the handler has returned and its response is complete:
// all of it has been added to conn.out, or the last part is pending.
func (c *conn) finishStream(st *stream) {
	st.answered = true
	st.req, st.handle, st.response.header = nil, nil, nil // the stream may live on for a while
	switch {
	case st.closed != nil:
	case st.pending != nil:
		st.resetAfter(c.srv.StallTimeout, http2.ErrCodeCancel)
	case !st.received:
		c.drain(st)
	default:
		c.closeStream(st, nil)
	}
}

// drain drops the rest of a body after the response. To reset the stream at once would
// be allowed, and net/http does it, but curl and others that read response and reset
// together report a failure instead of the response. Clients that read it stop by
// themselves, or come to the end of the body.
func (c *conn) drain(st *stream) {
	st.draining, st.abandoned = true, true
	c.endLarge(st)
	c.dropBody(st)
	st.resetAfter(drainTimeout, http2.ErrCodeNo)
}

// dropBody drops what has come of a body, and lets the client send as much more.
func (c *conn) dropBody(st *stream) {
	n := st.body.drop()
	c.give(n)
	if st.draining {
		if st.drained += n; st.drained > maxDrained {
			c.resetStream(st, http2.ErrCodeNo)
			return
		}
		c.giveStream(st, n)
	}
}

// resetAfter resets a stream whose handler has returned if it has not ended then.
func (st *stream) resetAfter(d time.Duration, code http2.ErrCode) {
	st.stopTimer()
	st.timer = time.AfterFunc(d, func() {
		st.c.mu.Lock()
		defer st.c.mu.Unlock()
		st.c.resetStream(st, code)
		st.c.sendLater()
	})
}

func (st *stream) stopTimer() {
	if st.timer != nil {
		st.timer.Stop()
		st.timer = nil
	}
}

// endBody notes that the whole request has come.
func (c *conn) endBody(st *stream) {
	st.received = true
	st.arrived.Broadcast()
	if st.draining {
		c.closeStream(st, nil)
	}
}

// resetStream ends a stream before its time.
func (c *conn) resetStream(st *stream, code http2.ErrCode) {
	if st.closed != nil {
		return
	}
	c.addReset(st.id, code)
	c.remember(st.id, st.ahead)
	c.closeStream(st, http2.StreamError{StreamID: st.id, Code: code})
}

// closeStream forgets a stream. The cause is nil for one that has ended well.
func (c *conn) closeStream(st *stream, cause error) {
	if _, ok := c.streams[st.id]; !ok {
		return
	}
	delete(c.streams, st.id)
	st.stopTimer()
	c.endLarge(st)
	if st.closed = cause; cause == nil {
		st.closed = errFinished
	} else {
		st.cancel()
	}
	c.dropPending(st)
	c.give(st.body.drop())
	st.abandoned, st.draining = true, false
	st.arrived.Broadcast()
	c.writable.Broadcast()
	if len(c.streams) == 0 {
		c.used = time.Now()
		c.endIfDone()
	}
}

// endLarge is called when a response is sent that may have been a large one.
func (c *conn) endLarge(st *stream) {
	if st.large {
		st.large = false
		if c.large--; c.large == 0 {
			c.stopPolling()
		}
	}
}
