package rest

import (
	"bytes"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/apikeel/kelson/internal/gzipped"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
)

// The same list is asked for many times: by every replica of every controller that
// starts, and by all of them at once when a server was away. Its items are put
// together once, in runs of some hundred kilobytes, and written from there: a copy
// less, and nothing of the single records has to be looked at. A run is good for as
// long as it is of the very records that a list consists of, so no write has to
// know of it, and a write makes anew only the run that it is in.

const (
	// A run has this many bytes, more or less.
	minRun, maxRun = 128 << 10, 512 << 10
	// Its text is in blocks, all of one size, so that any block can be used again:
	// fresh memory costs more than what is written into it.
	blockSize = 64 << 10
	// maxRunBytes is what all runs of a server take, with blocks that wait to be used
	// again. What does not fit is written as if there were no runs.
	maxRunBytes = 16 << 20
	// gzipSaves is how much smaller compressed runs are at least, as a rule.
	gzipSaves = 8
	// maxRuns is how many there are, with those that were seen only once.
	maxRuns = 4096
	// busyRun is for how long a run that was used keeps its place if others need it,
	// which must have come twice.
	busyRun = 50 * time.Millisecond
	// idleRun is after what time a run goes that nobody uses.
	idleRun = 10 * time.Second
)

// runForm is in what form the items of a run are.
type runForm struct {
	id   wire.EncodingID
	beta bool
	gzip bool
}

// runKey names a run by its first record.
type runKey struct {
	first *store.Record
	form  runForm
}

// run is records that follow each other in a list, as they are written there. It is
// guarded by the mutex of the runs, but for its text, which does not change.
type run struct {
	records []*store.Record
	used    time.Time

	// blocks are the text, all but the last are full; zip is the text compressed.
	// A run without a text was only seen.
	blocks [][]byte
	zip    gzipped.Piece
	size   int // of the text, before it was compressed

	making bool // somebody makes the text
	users  int  // lists that are written from it
	gone   bool // it is not kept: when nobody uses it, its blocks are free
}

// hasText reports whether the text is made.
func (r *run) hasText() bool { return r.blocks != nil || r.zip.Bytes != nil }

// span is a part of a list: records[from:to].
type span struct {
	from, to int
	run      *run // nil if it has to be made
	keep     bool // if it has to be, it is worth keeping, or there is room
}

// runs is the runs of a server.
type runs struct {
	mu    sync.Mutex
	kept  map[runKey]*run
	held  int      // bytes of texts, those of runs that are gone but used among them
	free  [][]byte // blocks
	swept time.Time
	timer *time.Timer // runs while something is kept
}

// cut cuts a list into spans. Their runs must be released.
func (rs *runs) cut(records []*store.Record, form runForm) (spans []span) {
	now := time.Now()
	rs.mu.Lock()
	defer rs.mu.Unlock()
	made, most := 0, maxRunBytes
	if form.gzip {
		most *= gzipSaves
	}
	for at := 0; at < len(records); {
		key := runKey{records[at], form}
		r := rs.kept[key]
		if r != nil && r.hasText() && len(r.records) <= len(records)-at && slices.Equal(r.records, records[at:at+len(r.records)]) {
			r.used = now
			r.users++
			spans = append(spans, span{from: at, to: at + len(r.records), run: r})
			at += len(r.records)
			continue
		}
		n, size := runLength(records[at:])
		if made += size; made > most {
			// Nothing of a list of this size is kept, nor of its rest.
			return append(spans, span{from: at, to: len(records)})
		}
		sp := span{from: at, to: at + n}
		if some := records[at:sp.to]; r != nil && slices.Equal(r.records, some) {
			sp.keep = true
			r.used = now
		} else {
			rs.see(key, some, now)
			// One that is compressed has to be made anyhow, and is small.
			sp.keep = form.gzip || rs.held+made <= maxRunBytes
		}
		spans = append(spans, sp)
		at = sp.to
	}
	return spans
}

var runSeed = maphash.MakeSeed()

// runLength is how many records make a run, and what they take. It ends where the
// key of a record says, wherever it begins: lists that differ in a few records have
// most runs in common.
func runLength(records []*store.Record) (n, size int) {
	for _, rec := range records {
		n++
		if size += len(rec.Stored); size >= maxRun || size >= minRun && maphash.String(runSeed, rec.Key)%minRun < uint64(len(rec.Stored)) {
			break
		}
	}
	return n, size
}

// see notes that a list has a run, which may be kept now or when it comes again.
func (rs *runs) see(key runKey, records []*store.Record, now time.Time) {
	if old := rs.kept[key]; old != nil {
		rs.drop(key, old)
	}
	if len(rs.kept) >= maxRuns {
		if rs.sweep(now); len(rs.kept) >= maxRuns {
			return
		}
	}
	if rs.kept == nil {
		rs.kept = map[runKey]*run{}
	}
	rs.kept[key] = &run{records: slices.Clone(records), used: now}
	if rs.timer == nil {
		rs.timer = time.AfterFunc(idleRun, rs.tidy)
	}
}

// release is called when a list has been written from its runs.
func (rs *runs) release(spans []span) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, sp := range spans {
		if sp.run == nil {
			continue
		}
		if sp.run.users--; sp.run.users == 0 && sp.run.gone {
			rs.reclaim(sp.run)
		}
	}
}

// drop forgets a run.
func (rs *runs) drop(key runKey, r *run) {
	delete(rs.kept, key)
	if r.gone = true; r.users == 0 && !r.making {
		rs.reclaim(r)
	}
}

// reclaim takes the text of a run that nobody uses.
func (rs *runs) reclaim(r *run) {
	rs.held -= len(r.zip.Bytes)
	rs.giveBack(r.blocks)
	r.blocks, r.zip.Bytes = nil, nil
}

func (rs *runs) giveBack(blocks [][]byte) {
	rs.held -= len(blocks) * blockSize
	if rs.timer != nil { // which lets them go when they are not needed
		rs.free = append(rs.free, blocks...)
	}
}

// room makes room for n bytes, if it can be had.
func (rs *runs) room(n int) bool {
	if rs.held+n > maxRunBytes {
		rs.sweep(time.Now())
	}
	for len(rs.free) > 0 && rs.held+len(rs.free)*blockSize+n > maxRunBytes {
		rs.unused()
	}
	return rs.held+n <= maxRunBytes
}

// unused returns a block that waits to be used again, or nil.
func (rs *runs) unused() (b []byte) {
	if last := len(rs.free) - 1; last >= 0 {
		b, rs.free[last] = rs.free[last][:0], nil
		rs.free = rs.free[:last]
	}
	return b
}

// block returns a block, or nil if there is no room.
func (rs *runs) block() []byte {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if len(rs.free) == 0 && rs.held+blockSize > maxRunBytes {
		rs.sweep(time.Now())
	}
	b := rs.unused()
	if b == nil && rs.held+blockSize <= maxRunBytes {
		b = make([]byte, 0, blockSize)
	}
	if b != nil {
		rs.held += blockSize
	}
	return b
}

// draft is a run whose text is being made.
type draft struct {
	rs     *runs
	run    *run
	blocks [][]byte
	size   int
	full   bool // there is no room
}

// begin begins to make a run that was seen. It returns nil if that is not wanted any
// longer, or somebody else does it. Otherwise end must be called.
func (rs *runs) begin(records []*store.Record, form runForm) *draft {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.kept[runKey{records[0], form}]
	if r == nil || r.making || r.hasText() || !slices.Equal(r.records, records) {
		return nil
	}
	r.making = true
	return &draft{rs: rs, run: r}
}

// add adds to the text.
func (d *draft) add(p []byte) {
	d.size += len(p)
	for len(p) > 0 && !d.full {
		last := len(d.blocks) - 1
		if last < 0 || len(d.blocks[last]) == blockSize {
			b := d.rs.block()
			if b == nil {
				d.full = true
				return
			}
			d.blocks = append(d.blocks, b)
			continue
		}
		b := d.blocks[last]
		n := copy(b[len(b):blockSize], p)
		d.blocks[last], p = b[:len(b)+n], p[n:]
	}
}

// end keeps the run, if its text is complete.
func (d *draft) end(complete bool) {
	d.rs.mu.Lock()
	defer d.rs.mu.Unlock()
	d.run.making = false
	if complete && !d.full && !d.run.gone {
		d.run.blocks, d.run.size = d.blocks, d.size
	} else {
		d.rs.giveBack(d.blocks)
	}
}

// compress makes a run that was seen from its text, and compresses it. It returns nil
// if that is not wanted, or there is no room. The caller uses the run from the start,
// before anybody can drop it, and must release it.
func (rs *runs) compress(records []*store.Record, form runForm, text []byte) *run {
	key := runKey{records[0], form}
	rs.mu.Lock()
	seen := rs.kept[key]
	wanted := seen != nil && !seen.hasText() && rs.room(len(text)/gzipSaves)
	rs.mu.Unlock()
	if !wanted {
		return nil
	}
	piece := gzipped.Compress(new(bytes.Buffer), text)
	piece.Bytes = bytes.Clone(piece.Bytes) // the buffer is larger
	made := &run{records: slices.Clone(records), used: time.Now(), zip: piece, size: len(text), users: 1}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.room(len(piece.Bytes)) && rs.kept[key] == seen {
		rs.kept[key] = made
		rs.held += len(piece.Bytes)
	}
	return made
}

// sweep makes room, if some can be had.
func (rs *runs) sweep(now time.Time) {
	if now.Sub(rs.swept) >= busyRun {
		rs.swept = now
		rs.dropUnused(now.Add(-busyRun))
	}
}

func (rs *runs) dropUnused(since time.Time) {
	for key, r := range rs.kept {
		if r.used.Before(since) {
			rs.drop(key, r)
		}
	}
}

// tidy lets go of what nobody has used for a while.
func (rs *runs) tidy() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.dropUnused(time.Now().Add(-idleRun))
	rs.free = nil
	if len(rs.kept) > 0 {
		rs.timer.Reset(idleRun)
	} else {
		rs.timer = nil
	}
}

// itemList is the items of a list, as they are going to be written.
type itemList struct {
	s     *scope
	p     *page
	form  runForm
	spans []span
}

// items cuts a list into parts. One that is small, or of a choice of objects that
// few others make, is one part.
func (s *scope) items(p *page, kind int, gzip bool) *itemList {
	l := &itemList{s: s, p: p, form: runForm{s.formID(kind), s.out.beta, gzip}}
	if p.chosen || len(p.records) < manyRecords {
		l.spans = []span{{to: len(p.records)}}
	} else {
		l.spans = s.h.runs.cut(p.records, l.form)
	}
	return l
}

// release must be called when the list is written, or will not be.
func (l *itemList) release() { l.s.h.runs.release(l.spans) }

// write writes the items. add appends one, by its index; between goes between two.
func (l *itemList) write(c *pieces, between string, add func(dst []byte, i int) ([]byte, error)) error {
	rs := &l.s.h.runs
	for at, sp := range l.spans {
		if sp.from > 0 {
			c.buf = append(c.buf, between...)
		}
		if sp.run != nil {
			c.whole(sp.run)
			continue
		}
		records := l.p.records[sp.from:sp.to]
		whole := sp.keep && l.form.gzip // is compressed, and then written
		if sp.keep && !whole {
			c.flush()
			c.draft = rs.begin(records, l.form)
		}
		begin := len(c.buf)
		for i := sp.from; i < sp.to; i++ {
			if i > sp.from {
				c.buf = append(c.buf, between...)
			}
			var err error
			if c.buf, err = add(c.buf, i); err != nil {
				return err
			}
			if !whole {
				c.spill()
			}
		}
		if whole {
			if r := rs.compress(records, l.form, c.buf[begin:]); r != nil {
				l.spans[at].run = r // release gives it back
				c.buf = c.buf[:begin]
				c.whole(r)
			}
			c.spill()
		}
		if c.draft != nil {
			c.flush()
			c.draft.end(true)
			c.draft = nil
		}
	}
	return nil
}
