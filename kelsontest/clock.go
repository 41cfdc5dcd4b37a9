package kelsontest

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Clock is what a server goes by when it stamps objects (creationTimestamp,
// deletionTimestamp, managedFields, conditions and events of its own), judges
// tokens, and deletes what was to be kept for a time (finished jobs, certificate
// signing requests). It shows the time of the machine until it is told otherwise.
// Time-outs, leases and the expiry of stored events go by the machine in any case.
type Clock struct {
	mu     sync.Mutex
	frozen bool
	at     time.Time     // if it is frozen
	offset time.Duration // if it is not
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

// change sets the clock, and tells those who wait for a time.
func (c *Clock) change(set func()) {
	c.mu.Lock()
	set()
	tell := slices.Collect(maps.Values(c.jumped))
	c.mu.Unlock()
	for _, f := range tell {
		f()
	}
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
func (c *Clock) Freeze(at time.Time) { c.change(func() { c.frozen, c.at = true, at }) }

// Advance puts the clock forward, or back, whether it stands or not.
func (c *Clock) Advance(d time.Duration) {
	c.change(func() {
		if c.frozen {
			c.at = c.at.Add(d)
		} else {
			c.offset += d
		}
	})
}

// Resume lets the clock go on from what it shows.
func (c *Clock) Resume() {
	c.change(func() {
		if c.frozen {
			c.frozen, c.offset = false, time.Until(c.at)
		}
	})
}

// Reset brings the clock back to the time of the machine.
func (c *Clock) Reset() { c.change(func() { c.frozen, c.offset = false, 0 }) }
