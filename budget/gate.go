package budget

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// ErrBusy tells that others hold the memory that a request needs, and have not given it
// back in time.
var ErrBusy = errors.New("the server is short of memory for requests of this size")

const (
	// maxWaiting is how many requests wait at a gate; further ones are refused.
	maxWaiting = 4096
	// maxWait is how long a request waits.
	maxWait = 15 * time.Second
	// laneShare is the part of a gate, 1/laneShare, that only the lane of administrators
	// may use.
	laneShare = 5
	// Small is up to how many bytes a request may hold without asking a gate. There are
	// bounds on how many such requests there are.
	Small = 64 << 10
)

// Gate admits requests by the bytes that they hold, so that all of them together stay
// within a limit. Who does not fit waits, in the order of arrival: a large request is
// not passed by small ones. A part is kept for the lane of administrators.
//
// The zero value admits everything. A Gate must not be copied.
type Gate struct {
	limit int64

	mu      sync.Mutex
	held    int64
	waiting [2]list.List // of *waiter: those of the lane, and the others
	crowd   atomic.Int64 // how many wait
}

type waiter struct {
	bytes int64
	come  chan struct{} // closed when it is admitted
}

// NewGate returns a gate that admits requests for so many bytes together.
func NewGate(limit int64) *Gate { return &Gate{limit: limit} }

// Limit returns how many bytes may be held, 0 if that is not limited.
func (g *Gate) Limit() int64 { return g.limit }

func (g *Gate) init(limit int64) { g.limit = limit }

// Held returns how many bytes are held.
func (g *Gate) Held() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held
}

// Contended reports whether somebody waits.
func (g *Gate) Contended() bool { return g.crowd.Load() > 0 }

// Acquire waits until bytes can be held. lane says that the request is one of an
// administrator. A request that is larger than the gate waits until it is alone. The error
// is ErrBusy, or that of the context. The returned function gives the bytes back; it must
// be called once.
func (g *Gate) Acquire(ctx context.Context, bytes int64, lane bool) (release func(), err error) {
	if g.limit == 0 || bytes <= Small {
		return func() {}, nil
	}
	bytes = min(bytes, g.Room(lane))
	if err := g.take(ctx, bytes, lane); err != nil {
		return nil, err
	}
	return func() { g.release(bytes) }, nil
}

// take waits until bytes can be held, which are no more than the room of the lane.
func (g *Gate) take(ctx context.Context, bytes int64, lane bool) (err error) {
	class, room := 1, g.Room(lane)
	if lane {
		class = 0
	}
	g.mu.Lock()
	if g.waiting[class].Len() == 0 && g.held+bytes <= room {
		g.held += bytes
		g.mu.Unlock()
		return nil
	}
	if g.waiting[class].Len() >= maxWaiting {
		g.mu.Unlock()
		return ErrBusy
	}
	w := &waiter{bytes, make(chan struct{})}
	place := g.waiting[class].PushBack(w)
	g.mu.Unlock()
	g.crowd.Add(1)
	defer g.crowd.Add(-1)
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case <-w.come:
		return nil
	case <-timer.C:
		err = ErrBusy
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	g.mu.Lock()
	select {
	case <-w.come: // at the same moment
		g.mu.Unlock()
		return nil
	default:
	}
	g.waiting[class].Remove(place)
	g.admit() // others may fit where it did not
	g.mu.Unlock()
	return err
}

// Room returns how many bytes requests of a lane may hold together, which is the most that one of them
// holds. It is 0 if that is not limited.
func (g *Gate) Room(lane bool) int64 {
	if lane {
		return g.limit
	}
	return g.limit - g.limit/laneShare
}

// Held is what a request holds at a gate while what it has in hand grows and shrinks. One goroutine
// uses it.
type Held struct {
	gate  *Gate
	lane  bool
	bytes int64
}

// Hold returns a Held that holds nothing yet.
func (g *Gate) Hold(lane bool) Held { return Held{gate: g, lane: lane} }

// Bytes returns how many bytes are held.
func (h *Held) Bytes() int64 { return h.bytes }

// Raise holds so many bytes at least. Who holds none waits for them, as in Acquire; who holds some does
// not wait for more, since others may wait for what it has: ErrBusy.
func (h *Held) Raise(ctx context.Context, bytes int64) error {
	g := h.gate
	bytes = min(bytes, g.Room(h.lane))
	switch {
	case bytes <= max(h.bytes, Small):
		return nil
	case h.bytes == 0:
		if err := g.take(ctx, bytes, h.lane); err != nil {
			return err
		}
	case !g.tryTake(bytes-h.bytes, h.lane):
		return ErrBusy
	}
	h.bytes = bytes
	return nil
}

// Lower gives back what is held beyond so many bytes.
func (h *Held) Lower(bytes int64) {
	if bytes <= Small {
		bytes = 0
	}
	if bytes < h.bytes {
		h.gate.release(h.bytes - bytes)
		h.bytes = bytes
	}
}

func (g *Gate) tryTake(bytes int64, lane bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held+bytes > g.Room(lane) {
		return false
	}
	g.held += bytes
	return true
}

func (g *Gate) release(bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held -= bytes
	g.admit()
}

// admit lets in those who fit now: first the lane.
func (g *Gate) admit() {
	for class, room := range [2]int64{g.limit, g.limit - g.limit/laneShare} {
		for {
			first := g.waiting[class].Front()
			if first == nil {
				break
			}
			w := first.Value.(*waiter)
			if g.held+w.bytes > room {
				break
			}
			g.held += w.bytes
			g.waiting[class].Remove(first)
			close(w.come)
		}
	}
}
