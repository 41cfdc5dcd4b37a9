package controlplane

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"runtime/metrics"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/internal/clock"
)

// When memory is given back to the system: when the server has had next to
// nothing to do for a while, and it is worth it. A busy server needs what it
// has, and the collector runs often enough.
const (
	quietFor    = 5 * time.Second
	quietBytes  = 4 << 20 // allocated meanwhile
	worthBytes  = 4 << 20 // that can be given back
	worthOfLive = 4       // or this part of what is in use, if it is more
	// Every lookAgain quiet moments, lastLook at most, the collector looks once more: what
	// caches have dropped since it ran last, in the first minute and a half of rest, nobody
	// has counted.
	lookAgain, lastLook = 6, 18
	// A busy server forgets its program every moment, one with a large heap every moment for each
	// forgetHeap bytes of it, at least every forgetMost: to find the program takes 1 ms for 100 MB.
	forgetHeap = 128 << 20
	forgetMost = 12
)

// giveBack gives memory back to the system at once, and whenever the server comes to
// rest, until ctx ends. The runtime itself would keep what the last burst of work has
// needed for minutes, and garbage until there is as much of it as of the rest.
func giveBack(ctx context.Context, log *slog.Logger) {
	forget := func(busy bool) {
		if err := forgetProgram(busy); err != nil {
			log.Debug("the program stays in memory", "error", err)
		}
	}
	debug.FreeOSMemory() // from the start
	forget(false)
	var q quiet
	busy := 0 // moments since the program was forgotten
	for range clock.Every(ctx, quietFor) {
		busy++
		heap := readHeap()
		switch {
		case q.due(heap):
			debug.FreeOSMemory()
			forget(false)
			busy = 0
		case q.moments == 0 && busy >= forgetAfter(heap) && heap.live < uint64(debug.SetMemoryLimit(-1))/2:
			// What is in use of the program comes back within a millisecond, what was needed once
			// does not. When memory is short, the system could have taken it from the page cache.
			forget(true)
			busy = 0
		}
	}
}

// forgetAfter returns after how many moments a busy server forgets its program.
func forgetAfter(heap heapUse) int { return 1 + int(min(heap.live/forgetHeap, forgetMost-1)) }

// memoryPage is where the server tells who holds how much of its memory.
const memoryPage = "/debug/kelson/memory"

// serveMemory tells in a table who holds how much of the server's memory.
func (a *assembly) serveMemory(w http.ResponseWriter, _ *http.Request) {
	heap := readHeap()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	defer table.Flush()
	fmt.Fprintln(table, "PART\tBYTES HELD\tBOUND\t")
	for _, h := range a.Memory.Holders() {
		fmt.Fprintf(table, "%s\t%d\t%d\t\n", h.Name, h.Held(), h.Limit)
	}
	fmt.Fprintf(table, "heap in use\t%d\t%d\t\n", heap.live, debug.SetMemoryLimit(-1))
	fmt.Fprintf(table, "limit of the server\t\t%d\t\n", a.Memory.Limit())
}

// quiet knows how long the server has been at rest.
type quiet struct {
	allocated uint64 // ever, at the last moment
	moments   int    // of rest
}

// due is asked every quietFor, and reports whether to give back memory.
func (q *quiet) due(now heapUse) bool {
	allocated := now.allocated - q.allocated
	q.allocated = now.allocated
	if allocated >= quietBytes {
		q.moments = 0
		return false
	}
	q.moments++
	return q.moments%lookAgain == 0 && q.moments <= lastLook || now.idle > max(worthBytes, now.live/worthOfLive)
}

// heapUse is what memory is used for.
type heapUse struct {
	allocated uint64 // ever
	live      uint64 // as the collector found last
	idle      uint64 // free, or garbage since then
}

func readHeap() heapUse {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	var values [4]uint64
	for i, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			values[i] = s.Value.Uint64()
		}
	}
	objects, free := values[2], values[3]
	return heapUse{allocated: values[0], live: values[1], idle: free + objects - min(objects, values[1])}
}

// memoryMetrics is a prometheus.Collector of who holds how much of the server's memory.
type memoryMetrics struct{ memory *budget.Memory }

var (
	memoryLimit = prometheus.NewDesc("kelson_memory_limit_bytes", "[ALPHA] Memory that the server may use.", nil, nil)
	memoryBound = prometheus.NewDesc("kelson_memory_bound_bytes", "[ALPHA] Memory that a part of the server may hold.", []string{"part"}, nil)
	memoryHeld  = prometheus.NewDesc("kelson_memory_held_bytes", "[ALPHA] Memory that a part of the server holds.", []string{"part"}, nil)
)

// Describe implements prometheus.Collector.
func (m memoryMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- memoryLimit
	to <- memoryBound
	to <- memoryHeld
}

// Collect implements prometheus.Collector. Parts of the same name, those of several
// stores, are added up.
func (m memoryMetrics) Collect(to chan<- prometheus.Metric) {
	to <- prometheus.MustNewConstMetric(memoryLimit, prometheus.GaugeValue, float64(m.memory.Limit()))
	held, bound := map[string]int64{}, map[string]int64{}
	for _, h := range m.memory.Holders() {
		held[h.Name] += h.Held()
		bound[h.Name] += h.Limit
	}
	for name := range held {
		to <- prometheus.MustNewConstMetric(memoryHeld, prometheus.GaugeValue, float64(held[name]), name)
		to <- prometheus.MustNewConstMetric(memoryBound, prometheus.GaugeValue, float64(bound[name]), name)
	}
}
