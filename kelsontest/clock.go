package kelsontest

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Clock is the clock of a server: for the timestamps of objects (creationTimestamp,
// deletionTimestamp, managedFields, conditions and events of the server's own), for the
// validity of tokens, and for deletions after a time (finished jobs, certificate
// signing requests). It is the machine's clock until it is changed. Timeouts, leases
// and the expiry of stored events always use the machine's clock.
type Clock struct {
	mu     sync.Mutex
	frozen bool
	at     time.Time     // if frozen
	offset time.Duration // from the machine's clock, if not frozen
	jumped map[*func()]func()
}

// jumps implements controlplane.Config.Jumps.
func (c *Clock) jumps(f func()) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jumped == nil {
		c.jumped = map[*func()]func(){}
	}
	c.jumped[&f] = f
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.jumped, &f)
	}
}

// change sets the clock, and wakes those who wait for a time.
func (c *Clock) change(set func()) {
	c.mu.Lock()
	set()
	tell := slices.Collect(maps.Values(c.jumped))
	c.mu.Unlock()
	for _, f := range tell {
		f()
	}
}

// Now returns the time.
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

// Freeze stops the clock at a time, in the past or in the future.
func (c *Clock) Freeze(at time.Time) { c.change(func() { c.frozen, c.at = true, at }) }

// Advance moves the clock forward, or back, whether it is frozen or not.
func (c *Clock) Advance(d time.Duration) {
	c.change(func() {
		if c.frozen {
			c.at = c.at.Add(d)
		} else {
			c.offset += d
		}
	})
}

// Resume lets the clock run on from its current time.
func (c *Clock) Resume() {
	c.change(func() {
		if c.frozen {
			c.frozen, c.offset = false, time.Until(c.at)
		}
	})
}

// Reset sets the clock to that of the machine.
func (c *Clock) Reset() { c.change(func() { c.frozen, c.offset = false, 0 }) }
