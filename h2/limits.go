package h2

import (
	"time"

	"golang.org/x/net/http2"
)

const (
	// maxSettings is how many settings one SETTINGS frame may have.
	maxSettings = 100
	// ordinaryBlock is how much of a header block is kept without asking
	// Server.HeaderBlocks.
	ordinaryBlock = 16 << 10
	// maxContinuations is how many CONTINUATION frames a header block may have.
	maxContinuations = 128
	// maxHeldHeaders bounds the header fields of all requests of a connection that
	// have not ended, as a multiple of MaxHeaderBytes.
	maxHeldHeaders = 2
	// maxWaiting bounds the requests that wait for a handler, as a multiple of
	// MaxStreams. A client gets there only by resetting requests whose handlers run.
	maxWaiting = 4
	// tinyWindow is the increment below which a WINDOW_UPDATE costs a control token:
	// clients that read send larger ones.
	tinyWindow = 256
	// maxDrained is how much of a body is dropped after the response to it, and
	// drainTimeout for how long, before the stream is reset.
	maxDrained   = 4 << 20
	drainTimeout = 5 * time.Second
	// maxRemembered is how many streams that the server has reset a connection
	// remembers.
	maxRemembered = 64

	// A connection has controlBurst tokens, and gets controlRate a second back. A
	// frame that only causes work takes a token, one that resets a stream resetCost.
	controlBurst = 10_000
	controlRate  = 2_000
	resetCost    = 4
)

// A controlBudget bounds how many frames of a client cause work without asking for
// anything. It is a token bucket that begins full.
type controlBudget struct {
	used int // tokens that are not there
	last time.Time
}

// spend takes n tokens. If there are not as many, the connection is to be closed.
func (b *controlBudget) spend(n int) error {
	if b.used += n; b.used <= controlBurst/2 {
		return nil // not worth a look at the clock
	}
	now := time.Now()
	if b.last.IsZero() {
		b.last = now
	}
	const period = time.Second / controlRate
	returned := now.Sub(b.last) / period
	b.last = b.last.Add(returned * period)
	b.used = int(max(time.Duration(b.used)-returned, 0))
	if b.used > controlBurst {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}

// resetStreams remembers the streams that the server has reset last. What their
// client sent before it knew is dropped; without the memory it would be answered with
// another RST_STREAM, which some clients take for a failure of the response that
// they have just read.
type resetStreams struct {
	ring [maxRemembered]struct {
		id   uint32
		left int // bytes that the client may still send, by the window it has
	}
	next int
}

func (r *resetStreams) add(id uint32, left int) {
	r.ring[r.next].id, r.ring[r.next].left = id, left
	r.next = (r.next + 1) % len(r.ring)
}

// take reports whether n bytes on a stream are to be dropped without a word.
func (r *resetStreams) take(id uint32, n int) bool {
	if r == nil {
		return false
	}
	for i := range r.ring {
		if e := &r.ring[i]; e.id == id {
			e.left -= n
			return e.left >= 0
		}
	}
	return false
}
