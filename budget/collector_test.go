package budget

import (
	"runtime"
	"testing"
	"time"
)

// TestRoomForGarbage checks how much garbage there may be: a busy server with a small heap has
// more than its percentage, one that starts, rests or has a large heap does not.
func TestRoomForGarbage(t *testing.T) {
	const mega = 1 << 20
	start := time.Unix(0, 0)
	longAgo, last := start.Add(-time.Minute), heapCount{allocated: 100 * mega, at: start.Add(time.Second)}
	soon, later := last.at.Add(time.Second), last.at.Add(time.Minute)
	for name, test := range map[string]struct {
		started time.Time
		now     heapCount
		want    int64
	}{
		"small and busy":    {longAgo, heapCount{used: 16 * mega, allocated: 120 * mega, at: soon}, 200},
		"middling and busy": {longAgo, heapCount{used: 40 * mega, allocated: 120 * mega, at: soon}, 80},
		"bytes and busy":    {longAgo, heapCount{used: 80 * mega, scanned: 12 * mega, allocated: 120 * mega, at: soon}, 40},
		"large and busy":    {longAgo, heapCount{used: 800 * mega, scanned: 150 * mega, allocated: 900 * mega, at: soon}, 37},
		"huge and busy":     {longAgo, heapCount{used: 8 << 30, scanned: 100 * mega, allocated: 200 * mega, at: soon}, 25},
		"objects and busy":  {longAgo, heapCount{used: 800 * mega, scanned: 700 * mega, allocated: 900 * mega, at: soon}, 100},
		"small and at rest": {longAgo, heapCount{used: 16 * mega, allocated: 120 * mega, at: later}, restPercent},
		"start":             {start, heapCount{used: 16 * mega, allocated: 900 * mega, at: soon}, restPercent},
		"next to nothing":   {longAgo, heapCount{allocated: 120 * mega, at: soon}, 800},
		"no time between":   {longAgo, heapCount{used: 16 * mega, allocated: 120 * mega, at: last.at}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			c := &collector{room: busyRoom, started: test.started, last: last}
			if got := c.decide(test.now); got != test.want {
				t.Errorf("garbage of %d%% may be there, want %d%%", got, test.want)
			}
			if c.last != test.now {
				t.Errorf("the next decision compares with %+v, want %+v", c.last, test.now)
			}
		})
	}
}

// TestCollectorSeesCycles checks that a cycle of Go's collector leads to a decision: a process
// that allocates much gets more room.
func TestCollectorSeesCycles(t *testing.T) {
	decisions := make(chan int, 10)
	c := &collector{set: func(percent int) int {
		select {
		case decisions <- percent:
		default: // the test has ended
		}
		return 0
	}}
	c.start(busyRoom)
	if percent := <-decisions; percent != restPercent {
		t.Errorf("before it has seen a cycle it allows garbage of %d%%, want %d%%", percent, restPercent)
	}
	c.mu.Lock()
	c.started = c.started.Add(-startTime)
	c.mu.Unlock()
	for {
		for range 64 {
			used = make([]byte, 1<<20)
		}
		runtime.GC()
		select {
		case percent := <-decisions:
			if percent <= 0 || percent > 800 || percent == restPercent {
				t.Errorf("garbage of %d%% may be there", percent)
			}
			return
		case <-time.After(time.Second): // a slow machine: it was not busy
		}
	}
}

// used is what TestCollectorSeesCycles allocates.
var used []byte

// TestBoundsReplaceBounds checks that a second start changes the room and nothing else.
func TestBoundsReplaceBounds(t *testing.T) {
	calls := 0
	c := &collector{set: func(int) int { calls++; return 0 }}
	c.start(busyRoom)
	before := c.started
	c.start(busyRoom / 2)
	if c.room != busyRoom/2 || c.started != before || calls != 1 {
		t.Errorf("the room is %d, it was set %d times", c.room, calls)
	}
}
