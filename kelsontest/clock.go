package kelsontest

import (
	"sync"
	"time"
)

// Clock is what a server goes by when it stamps objects (creationTimestamp,
// deletionTimestamp, managedFields, conditions of its own) and judges tokens. It
// shows the time of the machine until it is told otherwise. It moves no timers:
// time-outs, expiry of stored events and the like go on as usual.
type Clock struct {
	mu     sync.Mutex
	frozen bool
	at     time.Time     // if it is frozen
	offset time.Duration // if it is not
}

// Now tells the time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

func (c *Clock) now() time.Time {
	if c.frozen {
		return c.at
	}
	return time.Now().Add(c.offset)
}

// Freeze makes the clock stand at a time, in the past or in the future.
func (c *Clock) Freeze(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen, c.at = true, at
}

// Advance puts the clock forward, or back, whether it stands or not.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.frozen {
		c.at = c.at.Add(d)
	} else {
		c.offset += d
	}
}

// Resume lets the clock go on from what it shows.
func (c *Clock) Resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.frozen {
		c.frozen, c.offset = false, time.Until(c.at)
	}
}

// Reset brings the clock back to the time of the machine.
func (c *Clock) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen, c.offset = false, 0
}
