package wire

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultEncodingBytes is the usual limit of an EncodingBudget.
const DefaultEncodingBytes = 96 << 20

// EncodingID names one encoding of the records of a resource: a version in a media
// type and shape.
type EncodingID int

// noEncoding is the ID of none.
const noEncoding EncodingID = -1

// encodings holds the encodings of a record that somebody has asked for. It is
// shared by all copies of the record, and safe for concurrent use without a lock.
type encodings struct {
	first  atomic.Pointer[encoding]
	used   atomic.Bool     // since the last sweep of the budget
	asked  atomic.Bool     // the record was in an answer
	layout atomic.Uint64   // a protoLayout
	budget *EncodingBudget // nil for a record that no store has made
}

// encoding is one encoding, in a linked list of those that the record has.
type encoding struct {
	id    EncodingID
	bytes []byte
	size  int // bytes that it counts for in the budget
	next  *encoding
}

// Encoding returns an encoding of the record. It is made by encode, unless it is kept
// already; it is kept as long as the budget has room, so encode runs rarely, however
// many readers ask. The bytes are shared: do not change them.
func (r *Record) Encoding(id EncodingID, encode func(*Record) ([]byte, error)) ([]byte, error) {
	return r.encoding(id, encode, true)
}

// alias is Encoding for bytes that are part of another encoding or of the stored
// bytes: they are not counted in the budget a second time.
func (r *Record) alias(id EncodingID, encode func(*Record) ([]byte, error)) ([]byte, error) {
	return r.encoding(id, encode, false)
}

// hasEncoding reports whether an encoding is kept.
func (r *Record) hasEncoding(id EncodingID) bool {
	return r.encodings != nil && r.encodings.find(id) != nil
}

// findEncoding returns an encoding that is kept, nil if it is not.
func (r *Record) findEncoding(id EncodingID) []byte {
	if r.encodings != nil {
		if e := r.encodings.find(id); e != nil {
			return e.bytes
		}
	}
	return nil
}

// wasAsked reports whether the record was in an answer before, and notes that it is in one
// now. What was just written, or is read for the first time, is most likely not read again
// before it changes, and is not worth being kept in one more form.
func (r *Record) wasAsked() bool {
	return r.encodings == nil || r.encodings.asked.Swap(true)
}

// layout returns what setLayout was called with, 0 if it was not.
func (r *Record) layout() protoLayout {
	if r.encodings == nil {
		return 0
	}
	return protoLayout(r.encodings.layout.Load())
}

// setLayout keeps where the metadata is in the stored bytes, so that it need not be
// searched again.
func (r *Record) setLayout(layout protoLayout) {
	if r.encodings != nil {
		r.encodings.layout.Store(uint64(layout))
	}
}

func (r *Record) encoding(id EncodingID, encode func(*Record) ([]byte, error), own bool) ([]byte, error) {
	if r.encodings == nil {
		r.encodings = &encodings{}
	}
	if e := r.encodings.find(id); e != nil {
		return e.bytes, nil
	}
	b, err := encode(r)
	if err != nil {
		return nil, err
	}
	added := &encoding{id: id, bytes: b, size: encodingOverhead}
	if own {
		added.size += cap(b)
	}
	return r.encodings.add(added), nil
}

// noteConverted notes that encodings of the record were made by a conversion, which may have
// asked a webhook: they stay for longer.
func (r *Record) noteConverted() {
	if r.encodings != nil && r.encodings.budget != nil {
		r.encodings.used.Store(true)
		r.encodings.budget.converted.Store(true)
	}
}

// encodingOverhead is what an encoding counts for without its bytes.
const encodingOverhead = 64

func (es *encodings) find(id EncodingID) *encoding {
	for e := es.first.Load(); e != nil; e = e.next {
		if e.id == id {
			if !es.used.Load() {
				es.used.Store(true)
			}
			return e
		}
	}
	return nil
}

// add keeps an encoding, if there is room, and returns its bytes, or those of the same
// encoding that another goroutine has added meanwhile.
func (es *encodings) add(e *encoding) []byte {
	if es.budget != nil && !es.budget.hasRoom() {
		return e.bytes
	}
	for {
		e.next = es.first.Load()
		for other := e.next; other != nil; other = other.next {
			if other.id == e.id {
				return other.bytes
			}
		}
		if es.first.CompareAndSwap(e.next, e) {
			break
		}
	}
	if es.budget != nil {
		es.budget.spend(int64(e.size))
	}
	return e.bytes
}

// EncodingBudget bounds the memory of the encodings that the records of a store keep.
// When the limit is passed, the encodings of records that nobody has read since the
// last time are dropped, and if that is not enough, those of half of the others: a
// list that is larger than the limit must not grow the memory by its size.
type EncodingBudget struct {
	// Limit is in bytes.
	Limit int64
	// Records calls f for every record whose encodings count.
	Records func(f func(*Record))

	spent     atomic.Int64
	sweeping  sync.Mutex
	converted atomic.Bool // encodings were made by a conversion since dropIdle ran
	waited    bool        // dropIdle has waited for that; under sweeping

	idle idleTimer // runs dropIdle
}

// fewEncodings is how many bytes of encodings stay although nobody reads them: not worth
// waking up for.
const fewEncodings = 8 << 20

// Close ends what goes on by itself. Encodings that are kept stay.
func (b *EncodingBudget) Close() { b.idle.stop() }

// dropIdleLater has dropIdle run after a while, if there is enough to drop.
func (b *EncodingBudget) dropIdleLater(after time.Duration) {
	if b.spent.Load() > fewEncodings {
		b.idle.start(after, b.dropIdle)
	}
}

// dropIdle drops the encodings of records that nobody has read since it last ran, so that
// a server at rest has its objects in memory once.
func (b *EncodingBudget) dropIdle() {
	b.sweeping.Lock()
	if !b.waited && b.converted.Swap(false) {
		b.waited = true
		b.sweeping.Unlock()
		b.dropIdleLater(idleConverted)
		return
	}
	b.waited = false
	begin, before := time.Now(), b.spent.Load()
	b.spent.Add(b.sweep(func(es *encodings) bool { return es.used.Swap(false) }) - before)
	took := time.Since(begin)
	b.sweeping.Unlock()
	b.dropIdleLater(max(idleEncodings, took*sweepRest)) // it looks at all records
}

// Spent returns how many bytes the encodings take, those of records that were replaced
// meanwhile included.
func (b *EncodingBudget) Spent() int64 { return b.spent.Load() }

// hasRoom reports whether one more encoding may be kept, and makes room if there is none.
// While another goroutine does that there is none: it can take long, and much could come
// meanwhile.
func (b *EncodingBudget) hasRoom() bool {
	for try := 0; b.spent.Load() > b.Limit; try++ {
		if try == maxSweeps || !b.sweeping.TryLock() {
			return false
		}
		b.makeRoom()
		b.sweeping.Unlock()
	}
	return true
}

// spend counts n bytes.
func (b *EncodingBudget) spend(n int64) {
	now := b.spent.Add(n)
	if now > fewEncodings && (now-n)/fewEncodings != now/fewEncodings {
		b.dropIdleLater(idleEncodings) // now and then: it may have stopped when there was less
	}
}

// maxSweeps is how often one call of hasRoom sweeps.
const maxSweeps = 8

func (b *EncodingBudget) makeRoom() {
	before := b.spent.Load()
	kept := b.sweep(func(es *encodings) bool { return es.used.Swap(false) })
	if kept > b.Limit/4*3 {
		kept = b.sweep(func(*encodings) bool { return rand.IntN(2) == 0 })
	}
	// What came meanwhile stays counted. Encodings of records that are only in the log
	// of events are not counted any more: the log has a bound of its own.
	b.spent.Add(kept - before)
}

// sweep drops the encodings of the records for which keep is false, and returns the
// size of the others.
func (b *EncodingBudget) sweep(keep func(*encodings) bool) (kept int64) {
	b.Records(func(rec *Record) {
		es := rec.encodings
		first := es.first.Load()
		if first == nil {
			return
		}
		if !keep(es) {
			es.first.Store(nil)
			return
		}
		for e := first; e != nil; e = e.next {
			kept += int64(e.size)
		}
	})
	return kept
}
