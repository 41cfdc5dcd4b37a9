package controlplane

import (
	"context"
	"log/slog"
	"runtime/debug"
	"runtime/metrics"
	"time"

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
	// lookAgain is the quiet moment at which the collector looks once more: what caches
	// have dropped since it ran last, within half a minute of rest, nobody has counted.
	lookAgain = 6
)

// giveBack gives memory back to the system at once, and whenever the server comes to
// rest, until ctx ends. The runtime itself would keep what the last burst of work has
// needed for minutes, and garbage until there is as much of it as of the rest.
func giveBack(ctx context.Context, log *slog.Logger) {
	rest := func() {
		debug.FreeOSMemory()
		if err := forgetProgram(); err != nil {
			log.Debug("the program stays in memory", "error", err)
		}
	}
	rest() // from the start
	var q quiet
	for range clock.Every(ctx, quietFor) {
		if q.due(readHeap()) {
			rest()
		}
	}
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
	return q.moments == lookAgain || now.idle > max(worthBytes, now.live/worthOfLive)
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
