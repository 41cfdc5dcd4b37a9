package wire

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// value is the stored bytes of a record. They may be out of memory: then they are read
// again from where the ValueCache finds them.
type value struct {
	first    atomic.Pointer[byte] // of the bytes; nil if they are out, or there are none
	revision int64                // of the write
	cache    *ValueCache          // nil if the bytes always stay
	size     int32
	used     atomic.Bool // since the hand of the cache has passed

	mu      sync.Mutex // for changes
	counted bool       // the bytes count in the cache
	gone    bool       // no store has the record any more: the bytes are not kept again
}

func (v *value) init(stored []byte, revision int64, cache *ValueCache) {
	v.size, v.revision, v.cache = int32(len(stored)), revision, cache
	v.first.Store(unsafe.SliceData(stored))
}

func (v *value) len() int {
	if v == nil {
		return 0
	}
	return int(v.size)
}

func (v *value) get(key string) ([]byte, error) {
	stored, ok := v.inMemory()
	if !ok {
		return v.cache.read(key, v)
	}
	if stored != nil && v.cache != nil && !v.used.Load() {
		v.used.Store(true)
	}
	return stored, nil
}

// inMemory returns the bytes, and false if they are out of memory.
func (v *value) inMemory() ([]byte, bool) {
	if v == nil || v.size == 0 {
		return nil, true
	}
	first := v.first.Load()
	if first == nil {
		return nil, false
	}
	return unsafe.Slice(first, v.size), true
}

// isOut reports whether the bytes are out of memory.
func (v *value) isOut() bool {
	_, in := v.inMemory()
	return !in
}

// keep keeps bytes that are in memory, if the record is still in a store, and counts
// them.
func (v *value) keep(stored []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.gone {
		return
	}
	v.first.Store(unsafe.SliceData(stored))
	if !v.counted {
		v.counted = true
		v.cache.hold(int64(v.size))
	}
}

// drop lets the bytes go, for good if no store has the record any more.
func (v *value) drop(gone bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.first.Store(nil)
	v.gone = v.gone || gone
	if v.counted {
		v.counted = false
		v.cache.held.Add(-int64(v.size))
	}
}

// ValueCache bounds the memory of the stored bytes that the records of a store keep.
// Bytes that do not fit are dropped, those that nobody has read for a while first, and
// read from storage again when they are needed. A nil ValueCache keeps all.
//
// A list that is larger than the cache must not replace all of it by what it reads once:
// when the cache is full, only one of readmitOneOf values that are read is kept.
type ValueCache struct {
	// Limit is in bytes; a negative one keeps nothing.
	Limit int64
	// Read returns the value that a key got at a revision.
	Read func(key string, revision int64) ([]byte, error)
	// Scan passes the values that the keys from first to last have at a revision to each,
	// in order: at most n of them, with the revision of the write that made them. A value
	// is valid until each returns.
	Scan func(first, last string, n int, revision int64, each func(key string, written int64, stored []byte)) error
	// Next calls f for the records that follow a position, at most n of them, and
	// returns the position behind them. The position of the first record follows that
	// of the last; it is zero at the beginning.
	Next func(after Position, n int, f func(*Record)) Position
	// Lent, if it is not nil, returns how many bytes of Limit others hold at the moment.
	Lent func() int64
	// Near says that values are read from a disk of this machine, which costs little.
	// Then only those are kept that are read again and again: what is loaded or read once
	// is not, but for the first fewValues, and what nobody has read for idleValues is dropped.
	Near bool

	held     atomic.Int64
	reads    atomic.Int64
	yielded  atomic.Int64 // bytes of Limit that others need
	sweeping sync.Mutex
	hand     Position // of the clock; guarded by sweeping
	idle     idleTimer
}

// fewValues is how many bytes of values are kept in any case: not worth waking up for.
const fewValues = 16 << 20

// Yield gives n bytes of the limit to somebody else, in place of those that it was called
// with before; less than one is none. A tenth of the limit stays.
func (c *ValueCache) Yield(n int64) {
	if c != nil {
		c.yielded.Store(max(n, 0))
		c.Trim()
	}
}

// limit is how many bytes may be in memory now.
func (c *ValueCache) limit() int64 {
	lent := c.yielded.Load()
	if c.Lent != nil {
		lent += c.Lent()
	}
	return c.Limit - min(lent, c.Limit-c.Limit/10)
}

// Close ends what goes on by itself. Values that are kept stay.
func (c *ValueCache) Close() {
	if c != nil {
		c.idle.stop()
	}
}

// Position is a place among the records of a store.
type Position struct {
	// Resource is the prefix of the keys of a resource, Key that of a record.
	Resource, Key string
}

const (
	readmitOneOf = 8
	// sweepStep is how many records the hand passes at a time, maxSteps how often for
	// one call.
	sweepStep, maxSteps = 256, 64
)

// Held returns how many bytes are in memory.
func (c *ValueCache) Held() int64 { return c.held.Load() }

// Reads returns how many values were read from storage again.
func (c *ValueCache) Reads() int64 { return c.reads.Load() }

// read reads the bytes of a value that are out.
func (c *ValueCache) read(key string, v *value) ([]byte, error) {
	c.reads.Add(1)
	stored, err := c.Read(key, v.revision)
	if err != nil {
		return nil, err
	}
	if len(stored) == int(v.size) && c.isWorthKeeping(v) {
		v.keep(stored)
	}
	return stored, nil
}

// isWorthKeeping reports whether to keep bytes that were read from storage: if there is
// room, or by chance.
func (c *ValueCache) isWorthKeeping(v *value) bool {
	if c.Limit < 0 || c.Near && !v.used.Swap(true) && c.held.Load() > fewValues {
		return false // it may be read only once
	}
	return c.held.Load()+int64(v.size) <= c.limit() || rand.IntN(readmitOneOf) == 0 && c.makeRoom()
}

// hold counts bytes that are kept.
func (c *ValueCache) hold(n int64) {
	now := c.held.Add(n)
	if c.Near && now > fewValues && now/fewValues != (now-n)/fewValues {
		c.idle.start(idleValues, c.dropIdle) // now and then: it may have stopped when there was less
	}
}

// Keep counts the bytes of a record that has entered a store. Trim makes room for them.
func (c *ValueCache) Keep(rec *Record) {
	if stored := rec.value.droppable(c); stored != nil {
		rec.value.used.Store(true) // by its writer
		rec.value.keep(stored)
	}
}

// Trim drops bytes until those that are left are within the limit, if there are enough
// that can be dropped. The caller holds no lock that Next takes.
func (c *ValueCache) Trim() {
	if c != nil && c.held.Load() > c.limit() {
		c.makeRoom()
	}
}

// Offer is Keep for a record that is loaded, and that nobody has asked for. The bytes that
// it was made with are not its own: a copy of them is kept if there is room.
func (c *ValueCache) Offer(rec *Record) {
	stored := rec.value.droppable(c)
	switch {
	case stored == nil:
	case c.held.Load()+int64(len(stored)) > c.limit(), c.Near && c.held.Load() > fewValues:
		rec.value.drop(false)
	default:
		rec.value.keep(slices.Clone(stored))
	}
}

// Drop lets go of the bytes and the encodings of a record that no store has any more. Who
// still has the record reads them from the history of storage.
func (c *ValueCache) Drop(rec *Record) {
	if c != nil && rec.value.cache == c {
		rec.value.drop(true)
		rec.encodings.first.Store(nil)
	}
}

// droppable returns the bytes if there are some that can be dropped from the cache.
func (v *value) droppable(c *ValueCache) []byte {
	if c == nil || v.cache != c {
		return nil
	}
	stored, _ := v.inMemory()
	return stored
}

// makeRoom moves the hand of the clock over the records until the bytes are well below
// the limit: those that nobody has read since it passed last are dropped. It reports
// false if another goroutine is at it, or there is not enough to drop.
func (c *ValueCache) makeRoom() bool {
	if !c.sweeping.TryLock() {
		return false
	}
	defer c.sweeping.Unlock()
	target := c.limit() - c.limit()/16
	for range maxSteps {
		if c.held.Load() <= target {
			return true
		}
		c.hand = c.Next(c.hand, sweepStep, func(rec *Record) {
			if v := rec.value; v.droppable(c) != nil && !v.used.Swap(false) && c.held.Load() > target {
				v.drop(false)
			}
		})
	}
	return c.held.Load() <= c.limit()
}

// dropIdle drops the bytes that nobody has read since the hand passed last: a server at
// rest has in memory what it needs to find its objects.
func (c *ValueCache) dropIdle() {
	c.sweeping.Lock()
	for at, begun := (Position{}), false; !begun || at != (Position{}); begun = true {
		at = c.Next(at, sweepStep, func(rec *Record) {
			if v := rec.value; v.droppable(c) != nil && !v.used.Swap(false) {
				v.drop(false)
			}
		})
	}
	c.sweeping.Unlock()
	if c.held.Load() > fewValues {
		c.idle.start(idleValues, c.dropIdle)
	}
}
