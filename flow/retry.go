package flow

import (
	"sync"
	"time"
)

// maxRetryAfter is the largest Retry-After in seconds.
const maxRetryAfter = 32

// retryAfter computes the Retry-After of refused requests, which grows with the number of
// requests refused recently.
type retryAfter struct {
	mu      sync.Mutex
	after   int64 // the current Retry-After in seconds; 0 is 1
	doubled int64 // when after was last doubled, in Unix seconds
	current int64 // the second that is being counted, in Unix time
	// dropped counts refused requests by second, for the last maxRetryAfter+1 seconds.
	// It is nil while none was.
	dropped *[maxRetryAfter + 1]struct{ second, count int64 }
}

// drop counts a refused request and returns its Retry-After.
func (d *retryAfter) drop(now time.Time) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.after = max(d.after, 1)
	if d.dropped == nil {
		d.dropped = new([maxRetryAfter + 1]struct{ second, count int64 })
	}
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

// adjust looks at the refusals of the last d.after seconds: it doubles d.after if
// there were three or more a second, and reduces it if there was less than one.
func (d *retryAfter) adjust(now int64) {
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
