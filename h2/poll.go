package h2

import "time"

const (
	// While a large response is sent to a client whose windows have at least
	// pollWindow, the connection is read every pollInterval only.
	pollWindow   = 1 << 20
	pollInterval = time.Millisecond
	// maxIdlePolls is after how many polls without progress of the response it is read
	// in the ordinary way again.
	maxIdlePolls = 8
)

// A poller is the part of a connection that decides how it is read. A client that
// reads a large response sends a WINDOW_UPDATE every few KB, and to be woken for each
// costs as much as to send the response: as long as the windows have room, they are
// looked at every pollInterval. A client that reads nothing sends nothing either, so
// when the response makes no progress the reader waits without polling.
type poller struct {
	timer       *time.Timer
	wake        chan struct{} // ends a pause
	lastWritten uint64        // conn.written at the last poll
	idlePolls   int           // polls since it has changed
}

// shouldPoll is called when everything that has arrived is read.
func (c *conn) shouldPoll() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.grown {
		c.grown = false
		c.writable.Broadcast()
	}
	if c.large == 0 || c.initialWindow < pollWindow || c.window < pollWindow || c.err != nil || c.ctx.Err() != nil {
		return false
	}
	if c.idlePolls++; c.written != c.lastWritten {
		c.lastWritten, c.idlePolls = c.written, 0
	}
	return c.idlePolls < maxIdlePolls
}

// pause waits until the next poll.
func (c *conn) pause() {
	if c.timer == nil {
		c.timer = time.NewTimer(pollInterval)
	} else {
		c.timer.Reset(pollInterval)
	}
	select {
	case <-c.timer.C:
	case <-c.wake:
	case <-c.ctx.Done():
	}
}

// stopPolling ends a pause: there is no large response any longer.
func (c *conn) stopPolling() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
