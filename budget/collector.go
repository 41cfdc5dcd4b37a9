package budget

import (
	"runtime"
	"runtime/metrics"
	"time"
)

const (
	// garbage is how much garbage there may be before it is collected, as a percentage of what
	// is in use (GOGC). It is lower than Go's 100: most of a large heap is bytes of objects,
	// which cost the collector nothing, so that it may run often.
	garbage = 60
	// roomForGarbage is how much garbage a busy server may have in any case, and partForGarbage
	// the part of its memory that this takes at most. What a cycle costs depends on what is in
	// use, and how many cycles there are on the room: by the percentage alone a small heap has
	// little of it.
	roomForGarbage = 32 << 20
	partForGarbage = 8
	// A server is busy that allocates busyRate bytes a second, and has run for longer than its
	// start takes.
	busyRate  = 8 << 20
	startTime = 5 * time.Second
)

// collector decides after each cycle of Go's collector when the next one is to begin.
type collector struct {
	room    int64
	set     func(percent int) (before int) // debug.SetGCPercent
	started time.Time
	percent int64 // as set last
	last    heapCount
}

// heapCount is what the runtime counts.
type heapCount struct {
	live, allocated int64 // in use after the last cycle, and ever
	at              time.Time
}

func countHeap() heapCount {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(samples)
	return heapCount{live: int64(samples[0].Value.Uint64()), allocated: int64(samples[1].Value.Uint64()), at: time.Now()}
}

// cycle is an object that nobody uses: its finalizer runs when a cycle has ended.
type cycle struct{ *collector }

// watch decides for the next cycle, and after each that comes, as long as the process runs.
func (c *collector) watch() {
	percent := c.decide(countHeap())
	if c.percent == 0 || max(percent, c.percent)-min(percent, c.percent) > c.percent/16 { // the world stops for it
		c.percent = percent
		c.set(int(percent))
	}
	runtime.SetFinalizer(&cycle{c}, func(end *cycle) { end.watch() })
}

// decide returns how much garbage there may be now, as a percentage of what is in use.
func (c *collector) decide(now heapCount) int64 {
	last := c.last
	c.last = now
	if now.at.Sub(c.started) < startTime || float64(now.allocated-last.allocated) < busyRate*now.at.Sub(last.at).Seconds() {
		return garbage
	}
	return max(garbage, c.room*100/max(now.live, 1<<20))
}
