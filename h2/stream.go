package h2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// stream is a request and its answer. Everything is guarded by the mutex of the
// connection.
type stream struct {
	c      *conn
	id     uint32
	cancel context.CancelFunc
	req    *http.Request
	// handle is who answers: the handler of the connection, unless something is
	// wrong with the request.
	handle http.Handler

	window   int64 // what the client takes
	large    bool  // the answer
	answered bool  // the answer is complete
	closed   error // why there is no stream any longer

	ahead, credit int    // what the client may send; credit it does not know of yet
	declared      int64  // the length of the body, -1 if it is not known
	bodySize      int64  // how much of it has come
	body          []byte // what has come and was not read
	read          int    // how much of body was
	received      bool   // all has come
	abandoned     bool   // nobody will read it
	wantsGoAhead  bool   // the client sends the body if it is told to
	arrived       sync.Cond
	readDeadline  time.Time
	writeDeadline time.Time

	response response
}

// failed is why nothing can be written to the stream.
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

// late reports whether a deadline is over.
func (st *stream) late(deadline time.Time) bool {
	return !deadline.IsZero() && st.closed == nil && !time.Now().Before(deadline)
}

// start has a stream served, when it is its turn.
func (c *conn) start(st *stream) error {
	if c.handlers >= c.srv.MaxStreams {
		// The client has fewer streams: it has given up some whose handlers run.
		if len(c.waiting) >= maxQueue*c.srv.MaxStreams {
			return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
		}
		c.waiting = append(c.waiting, st)
		return nil
	}
	c.handlers++
	if c.idle > 0 {
		c.idle--
		c.work <- st // which has room for all that wait there
		return nil
	}
	go c.serve(st)
	return nil
}

// serve serves one stream after the other.
func (c *conn) serve(st *stream) {
	for st != nil {
		st.serve()
		c.mu.Lock()
		next, wait := c.next()
		c.mu.Unlock()
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

// next returns what a goroutine that has served a stream does: another, wait for
// one, or nothing.
func (c *conn) next() (st *stream, wait bool) {
	for len(c.waiting) > 0 {
		st, c.waiting = c.waiting[0], c.waiting[1:]
		if st.closed == nil {
			return st, false
		}
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
	if st.response.rest == nil {
		st.response.finish()
		st.cancel()
	} else {
		c := st.c
		c.mu.Lock()
		st.req, st.handle = nil, nil
		st.response.shrink()
		c.handlers++ // there are two for a moment
		c.mu.Unlock()
		go c.goOn(st)
	}
	complete = true
}

// goOn runs what is left of an answer when the handler has returned.
func (c *conn) goOn(st *stream) {
	if next := st.goOn(); next != nil {
		c.serve(next)
	}
}

func (st *stream) goOn() (next *stream) {
	complete := false
	defer func() {
		if !complete {
			st.abort(recover())
		}
		st.c.mu.Lock()
		defer st.c.mu.Unlock()
		if s, wait := st.c.next(); wait {
			st.c.idle-- // those who have served have larger stacks
		} else {
			next = s
		}
	}()
	st.response.rest()
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

// finishStream is called when the whole answer is on its way.
func (c *conn) finishStream(st *stream) {
	st.answered = true
	if st.closed != nil {
		return
	}
	if !st.received {
		c.addReset(st.id, http2.ErrCodeNo) // the rest of the body is not wanted
	}
	c.closeStream(st, nil)
}

// resetStream ends a stream before its time.
func (c *conn) resetStream(st *stream, code http2.ErrCode) {
	if st.closed != nil || st.answered {
		return
	}
	c.addReset(st.id, code)
	c.closeStream(st, http2.StreamError{StreamID: st.id, Code: code})
}

// closeStream forgets a stream. The cause is nil for one that has ended well.
func (c *conn) closeStream(st *stream, cause error) {
	if _, ok := c.streams[st.id]; !ok {
		return
	}
	delete(c.streams, st.id)
	if st.large {
		if c.large--; c.large == 0 {
			select {
			case c.quick <- struct{}{}:
			default:
			}
		}
	}
	if st.closed = cause; cause == nil {
		st.closed = errFinished
	} else {
		st.cancel()
	}
	c.give(len(st.body) - st.read)
	st.body, st.read, st.abandoned = nil, 0, true
	st.arrived.Broadcast()
	c.writable.Broadcast()
	if len(c.streams) == 0 {
		c.used = time.Now()
		c.ended()
	}
}

var errFinished = errors.New("http2: the request is over")

// bodyReader is the body of a request.
type bodyReader struct{ st *stream }

func (b bodyReader) Read(p []byte) (int, error) {
	st := b.st
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.wantsGoAhead && !st.response.begun && st.failed() == nil {
		st.wantsGoAhead = false
		st.response.addInformation(http.StatusContinue, nil)
		c.send()
	}
	for {
		if n := copy(p, st.body[st.read:]); n > 0 {
			st.consumed(n)
			return n, nil
		}
		switch {
		case len(p) == 0:
			return 0, nil
		case st.abandoned && st.closed == nil:
			return 0, http.ErrBodyReadAfterClose
		case st.closed != nil:
			return 0, st.closed
		case st.received:
			return 0, io.EOF
		case c.err != nil:
			return 0, c.err
		case st.late(st.readDeadline):
			return 0, os.ErrDeadlineExceeded
		}
		c.wait(&st.arrived, st.readDeadline)
	}
}

// consumed counts what was read of the body, and lets the client send more.
func (st *stream) consumed(n int) {
	if st.read += n; st.read == len(st.body) {
		st.body, st.read = st.body[:0], 0
	}
	st.c.give(n)
	if st.credit += n; !st.received && st.credit >= st.c.srv.StreamWindow/2 {
		st.c.addWindow(st.id, st.credit)
		st.ahead += st.credit
		st.credit = 0
	}
	st.c.send()
}

func (b bodyReader) Close() error {
	st := b.st
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	if !st.abandoned {
		st.abandoned = true
		st.c.give(len(st.body) - st.read)
		st.body, st.read = nil, 0
	}
	return nil
}
