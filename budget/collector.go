package budget

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// restPercent is how much garbage there may be before it is collected, as a percentage of
	// what is in use (GOGC), while the server starts or rests. It is lower than Go's 100: most of
	// a large heap is bytes of objects, which cost the collector nothing.
	restPercent = 60
	// A busy server may have the largest of: busyRoom bytes of garbage, or one in limitPart of what
	// the Go runtime may use if that is less; scannedTimes the bytes that the collector has to look
	// at, up to what is in use; and one in usedPart of what is in use. What a cycle costs depends
	// first on what it looks at, and how many cycles there are on the room for garbage: by a
	// percentage of everything alone a small heap has little of it, and one of large values more
	// than is worth its memory.
	busyRoom     = 32 << 20
	limitPart    = 8
	scannedTimes = 2
	usedPart     = 4
	// busyRate is how many bytes a busy server allocates a second.
	busyRate = 8 << 20
	// startTime is for how long a server starts: it is not busy, whatever it allocates.
	startTime = 5 * time.Second
	// smallestHeap is what Go takes a heap for that is smaller.
	smallestHeap = 4 << 20
)

// processCollector is the collector of this process, which has one.
var processCollector = collector{set: debug.SetGCPercent}

// collector decides after each cycle of Go's collector when the next one is to begin.
type collector struct {
	set func(percent int) (before int)

	mu      sync.Mutex
	room    int64
	started time.Time // zero before start
	percent int64     // as set last
	last    heapCount
}

// heapCount is what the runtime counts.
type heapCount struct {
	used      int64 // bytes that a percentage is of: the heap after the last cycle, stacks, variables
	scanned   int64 // those of them that a cycle looks at: they may have pointers
	allocated int64 // bytes ever
	at        time.Time
}

func countHeap() heapCount {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}, {Name: "/gc/heap/allocs:bytes"},
		{Name: "/gc/scan/total:bytes"},
	}
	metrics.Read(samples)
	bytes := func(i int) int64 { return int64(samples[i].Value.Uint64()) }
	return heapCount{used: bytes(0) + bytes(1) + bytes(2), scanned: bytes(4), allocated: bytes(3), at: time.Now()}
}

// start makes the decisions, for as long as the process runs. When it is called again, it
// changes the room.
func (c *collector) start(room int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.room = room
	if c.started.IsZero() {
		c.started = time.Now()
		c.decideNext()
	}
}

// cycle is an object that nobody uses: its finalizer runs when a cycle has ended.
type cycle struct{ *collector }

// decideNext decides for the next cycle, and once more when that has ended.
func (c *collector) decideNext() {
	percent := c.decide(countHeap())
	if max(percent, c.percent)-min(percent, c.percent) > c.percent/16 { // each change takes the lock of the heap
		c.percent = percent
		c.set(int(percent))
	}
	runtime.SetFinalizer(&cycle{c}, func(end *cycle) {
		end.mu.Lock()
		defer end.mu.Unlock()
		end.decideNext()
	})
}

// decide returns how much garbage there may be now, as a percentage of what is in use.
func (c *collector) decide(now heapCount) int64 {
	last := c.last
	c.last = now
	if now.at.Sub(c.started) < startTime || float64(now.allocated-last.allocated) < busyRate*now.at.Sub(last.at).Seconds() {
		return restPercent
	}
	room := max(c.room, now.used/usedPart, min(now.used, now.scanned*scannedTimes))
	return room * 100 / max(now.used, smallestHeap)
}
