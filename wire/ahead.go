package wire

import "unsafe"

// ReadAhead gives the records of a list with their stored bytes. Where most of those are
// out of memory, it reads the bytes of many records by one scan, into a buffer that is
// used again for the next ones: a read of its own for each would cost ten times as much,
// and to keep the bytes would cost their size in memory for what is most likely read once.
//
// It is for one goroutine, and for records that follow each other in storage.
type ReadAhead struct {
	records  []*Record
	revision int64      // of the list
	needless EncodingID // records that have this encoding need no bytes

	// The block of records that was looked at last: records[from:to].
	from, to int
	own      []ownRecord // in the order of the block
	read     bool        // own and buf are of this block
	buf      []byte
}

// ownRecord is a copy of a record with bytes that only its ReadAhead has. Its encodings
// are its own, too, as they may be parts of those bytes; the others are kept with the
// record when the block is done.
type ownRecord struct {
	rec       Record
	value     value
	encodings encodings
	shared    *encoding // the first of those that the record had
	of        *Record   // nil if the record itself is used
}

const (
	// aheadBytes is how many stored bytes are read by one scan at most, aheadRecords of how
	// many records.
	aheadBytes, aheadRecords = 256 << 10, 256
	// minAhead is how many records are worth a scan.
	minAhead = 8
)

// AheadSize is how many bytes of memory a ReadAhead takes at most.
const AheadSize = aheadBytes + aheadRecords*int64(unsafe.Sizeof(ownRecord{}))

// ReadAhead returns a ReadAhead of the records of a page, for encoding them.
func (e *Encoder) ReadAhead(p *Page) *ReadAhead {
	a := &ReadAhead{needless: noEncoding} // the row of a table is made of several
	if e.Format.Shape != ShapeTable {
		a.needless = e.id(e.itemEncoding())
	}
	a.Reset(p)
	return a
}

// Reset begins with another page.
func (a *ReadAhead) Reset(p *Page) {
	a.Done()
	a.records, a.revision, a.from, a.to = p.Records, p.Revision, 0, 0
	if p.Selected {
		a.to = len(p.Records) // others are between them: each is read on its own
	}
}

// Record returns the record with an index, which are asked for in their order. It is valid
// until the next call.
func (a *ReadAhead) Record(i int) *Record {
	if i < a.from || i >= a.to {
		a.advance(i)
	}
	if a.read && a.own[i-a.from].of != nil {
		return &a.own[i-a.from].rec
	}
	return a.records[i]
}

// Done ends the block: encodings that were made of it, and are not parts of its bytes, are
// kept with their records.
func (a *ReadAhead) Done() {
	if !a.read {
		return
	}
	for i := range a.own {
		o := &a.own[i]
		if o.of == nil {
			continue
		}
		for e := o.encodings.first.Load(); e != o.shared; e = e.next {
			if e.size > encodingOverhead {
				o.of.encodings.add(&encoding{id: e.id, bytes: e.bytes, size: e.size})
			}
		}
		if layout := o.rec.layout(); layout != 0 {
			o.of.setLayout(layout)
		}
		o.of = nil
	}
	a.read = false
}

// advance makes a block of the records from an index on.
func (a *ReadAhead) advance(i int) {
	a.Done()
	a.from, a.to = i, i
	size, out, first, last := 0, 0, 0, 0
	for ; a.to < len(a.records) && a.to-i < aheadRecords; a.to++ {
		rec := a.records[a.to]
		if !rec.value.isOut() || rec.value.cache.Scan == nil || rec.hasEncoding(a.needless) {
			continue
		}
		if size += rec.StoredSize(); size > aheadBytes && out > 0 {
			size -= rec.StoredSize()
			break
		}
		if out++; out == 1 {
			first = a.to
		}
		last = a.to
	}
	a.to = max(a.to, i+1)
	if n := last - first + 1; out >= minAhead && out >= n/2 {
		a.scan(first, n, size)
	}
}

// scan reads the bytes of n records from an index on, of which size bytes are out of
// memory. Records whose bytes it does not find are left as they are: who encodes them
// reads them one by one, and gets the error.
func (a *ReadAhead) scan(first, n, size int) {
	if len(a.own) < aheadRecords {
		a.own = make([]ownRecord, aheadRecords)
	}
	if cap(a.buf) < size {
		a.buf = make([]byte, 0, size)
	}
	a.buf = a.buf[:0]
	records, at := a.records[first:first+n], 0
	cache := records[0].value.cache
	_ = cache.Scan(records[0].Key, records[n-1].Key, n, a.revision, func(key string, written int64, stored []byte) {
		for at < n && records[at].Key < key {
			at++
		}
		if at == n || records[at].Key != key {
			return
		}
		rec := records[at]
		if v := rec.value; v.cache != cache || v.revision != written || v.len() != len(stored) || !v.isOut() {
			return
		}
		begin := len(a.buf)
		a.buf = append(a.buf, stored...)
		a.own[first+at-a.from].copy(rec, a.buf[begin:])
		cache.reads.Add(1)
		if cache.isWorthKeeping(rec.value) {
			rec.value.keep(append([]byte(nil), stored...))
		}
	})
	a.read = true
}

// copy makes it a copy of a record with bytes of its own.
func (o *ownRecord) copy(rec *Record, stored []byte) {
	o.value.first.Store(&stored[0])
	o.value.size, o.value.revision = int32(len(stored)), rec.value.revision
	o.rec, o.of, o.shared = *rec, rec, rec.encodings.first.Load()
	o.rec.value, o.rec.encodings = &o.value, &o.encodings
	o.encodings.first.Store(o.shared)
	o.encodings.asked.Store(rec.encodings.asked.Swap(true))
	o.encodings.layout.Store(uint64(rec.layout()))
}
