package rest

import (
	"bytes"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/apikeel/kelson/internal/gzipped"
	"github.com/apikeel/kelson/store"
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
	// maxRunBytes is what all runs of a server take. What does not fit is written as
	// if there were no runs.
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
	id   store.FormID
	beta bool
	gzip bool
}

// runKey names a run by its first record.
type runKey struct {
	first *store.Record
	form  runForm
}

// run is records that follow each other in a list, as they are written there.
type run struct {
	gzipped.Piece // compressed or not; empty if it was only seen
	records       []*store.Record
	used          time.Time
}

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
	held  int // bytes
	swept time.Time
	timer *time.Timer // runs while something is kept
}

// cut cuts a list into spans.
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
		if r != nil && r.Bytes != nil && len(r.records) <= len(records)-at && slices.Equal(r.records, records[at:at+len(r.records)]) {
			r.used = now
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

// keep keeps a run that was seen, and is made now. It returns nil if that is not
// wanted, or there is no room.
func (rs *runs) keep(records []*store.Record, form runForm, made []byte) *run {
	key := runKey{records[0], form}
	if !rs.wanted(key, len(made)) {
		return nil
	}
	r := &run{records: slices.Clone(records), used: time.Now()}
	if form.gzip {
		r.Piece = gzipped.Compress(new(bytes.Buffer), made)
		r.Bytes = bytes.Clone(r.Bytes) // the buffer is larger
	} else {
		r.Bytes, r.Size = bytes.Clone(made), len(made)
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if old := rs.kept[key]; old != nil && old.Bytes == nil && rs.held+len(r.Bytes) <= maxRunBytes {
		rs.kept[key] = r
		rs.held += len(r.Bytes)
	}
	return r
}

// wanted reports whether a run should be kept, and can be.
func (rs *runs) wanted(key runKey, size int) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r := rs.kept[key]; r == nil || r.Bytes != nil {
		return false // somebody else has kept it meanwhile
	}
	if key.form.gzip {
		size /= gzipSaves
	}
	if rs.held+size > maxRunBytes {
		rs.sweep(time.Now())
	}
	return rs.held+size <= maxRunBytes
}

func (rs *runs) drop(key runKey, r *run) {
	delete(rs.kept, key)
	rs.held -= len(r.Bytes)
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

// write writes the items. add appends one, by its index; between goes between two.
func (l *itemList) write(c *pieces, between string, add func(dst []byte, i int) ([]byte, error)) error {
	for _, sp := range l.spans {
		if sp.from > 0 {
			c.buf = append(c.buf, between...)
		}
		if sp.run != nil {
			c.whole(sp.run)
			continue
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
			if !sp.keep {
				c.spill()
			}
		}
		if sp.keep {
			if r := l.s.h.runs.keep(l.p.records[sp.from:sp.to], l.form, c.buf[begin:]); r != nil {
				c.buf = c.buf[:begin]
				c.whole(r)
			}
			c.spill()
		}
	}
	return nil
}
