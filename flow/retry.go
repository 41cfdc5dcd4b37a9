package flow

import (
	"sync"
	"time"
)

// maxRetryAfter is the most seconds that a client is told to wait.
const maxRetryAfter = 32

// retry tells clients that were refused when to come back: the later, the more
// were refused recently.
type retry struct {
	mu      sync.Mutex
	after   int64 // seconds; 0 is 1
	doubled int64 // when after was last doubled, in Unix seconds
	current int64 // the second that is being counted
	// dropped counts requests by second, the newest maxRetryAfter+1 of them.
	dropped [maxRetryAfter + 1]struct{ second, count int64 }
}

// drop counts a request that is refused, and returns the seconds for it.
func (d *retry) drop(now time.Time) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.after = max(d.after, 1)
	second := now.Unix()
	slot := &d.dropped[second%int64(len(d.dropped))]
	if slot.second != second {
		slot.second, slot.count = second, 0
	}
	slot.count++
	if second != d.current {
		d.current = second
		d.adjust(second)
	}
	return int(d.after)
}

// adjust looks at the seconds before this one: as many as clients have been told
// to wait.
func (d *retry) adjust(now int64) {
	var recent int64
	for _, s := range d.dropped {
		if s.second < now && now-s.second <= d.after {
			recent += s.count
		}
	}
	switch {
	case now-d.doubled >= d.after && recent >= 3*d.after:
		d.after = min(2*d.after, maxRetryAfter)
		d.doubled = now
	case recent < d.after && d.after > 1:
		d.after--
	}
}
