package controlplane

import (
	"context"
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
)

// giveBack gives memory back to the system whenever the server comes to rest,
// until ctx ends. The runtime itself would keep what the last burst of work has
// needed for minutes, and garbage until there is as much of it as of the rest.
func giveBack(ctx context.Context) {
	var before heapUse
	for range clock.Every(ctx, quietFor) {
		now := readHeap()
		if now.allocated-before.allocated < quietBytes && now.idle > max(worthBytes, now.live/worthOfLive) {
			debug.FreeOSMemory()
			now = readHeap()
		}
		before = now
	}
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
