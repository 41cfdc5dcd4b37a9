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
	busy := heapCount{allocated: 100 * mega, at: start.Add(time.Second)}
	for name, test := range map[string]struct {
		started time.Time
		now     heapCount
		want    int64
	}{
		"small and busy":    {start.Add(-time.Minute), heapCount{live: 16 * mega, allocated: 120 * mega, at: busy.at.Add(time.Second)}, 200},
		"middling":          {start.Add(-time.Minute), heapCount{live: 40 * mega, allocated: 120 * mega, at: busy.at.Add(time.Second)}, 80},
		"large and busy":    {start.Add(-time.Minute), heapCount{live: 800 * mega, allocated: 900 * mega, at: busy.at.Add(time.Second)}, garbage},
		"small and at rest": {start.Add(-time.Minute), heapCount{live: 16 * mega, allocated: 120 * mega, at: busy.at.Add(time.Minute)}, garbage},
		"start":             {start, heapCount{live: 16 * mega, allocated: 900 * mega, at: busy.at.Add(time.Second)}, garbage},
		"next to nothing":   {start.Add(-time.Minute), heapCount{allocated: 120 * mega, at: busy.at.Add(time.Second)}, 3200},
	} {
		t.Run(name, func(t *testing.T) {
			c := &collector{room: roomForGarbage, started: test.started, last: busy}
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
	c := &collector{room: roomForGarbage, set: func(percent int) int {
		select {
		case decisions <- percent:
		default: // the test has ended
		}
		return 0
	}}
	c.watch()
	if percent := <-decisions; percent != garbage {
		t.Errorf("before it has seen a cycle it allows garbage of %d%%, want %d%%", percent, garbage)
	}
	used = make([]byte, 8<<20)
	runtime.GC()
	if percent := <-decisions; percent <= garbage || percent > 400 {
		t.Errorf("garbage of %d%% may be there, beside 8 MiB in use", percent)
	}
}

// used is the heap of TestCollectorSeesCycles.
var used []byte
