package engine

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
)

// This file reads the record format of Pebble's logs and manifests: chunks in blocks of
// 32 KiB (package pebble/record describes it). Pebble takes what it cannot read for the
// end, and this tells an end from a fault.
const (
	logBlock = 32 << 10
	// maxLog bounds what is read of a log or manifest. Pebble begins a new log when a memtable is
	// full, and a new manifest at 128 MiB.
	maxLog = 1 << 30

	plainHeader = 7  // checksum (4), length (2), type (1): manifests
	firstHeader = 11 // and log number (4): the first log of a store, and the end of each
	syncHeader  = 19 // and an offset up to which the log was synced (8): all other logs

	plainChunks = 1 // the types: whole record, first, middle, and last of a record
	firstChunks = 5
	syncChunks  = 9
	chunkTypes  = 4
)

// chunkReader reads the chunks of a whole file.
type chunkReader struct {
	b   []byte
	log uint32 // the low 32 bits of a log's number; 0 for a manifest
	// unmarked: there is no mark that says up to where the file was synced. Then a chunk without
	// an offset passes for one that was written when all before it was synced.
	unmarked bool
}

// chunk is a chunk that was found whole.
type chunk struct {
	begin, end int // payload
	position   int // 0 whole record, 1 first, 2 middle, 3 last
	synced     int64
}

// header returns the size of the header of a chunk of a type, or 0 if the file has none of
// that type.
func (r chunkReader) header(kind byte) int {
	switch {
	case kind < plainChunks || kind >= syncChunks+chunkTypes || (r.log == 0) != (kind < firstChunks):
		return 0
	case kind >= syncChunks:
		return syncHeader
	case kind >= firstChunks:
		return firstHeader
	}
	return plainHeader
}

// space is how many bytes are left in the block of an offset.
func (r chunkReader) space(at int) int { return min(logBlock-at%logBlock, len(r.b)-at) }

// at reads the chunk at an offset. ok is false if there is none that is whole.
func (r chunkReader) at(at int) (c chunk, ok bool) {
	room := r.space(at)
	if room < plainHeader {
		return c, false
	}
	kind := r.b[at+6]
	head := r.header(kind)
	length := int(binary.LittleEndian.Uint16(r.b[at+4:]))
	if head == 0 || head+length > room {
		return c, false
	}
	if r.log != 0 && binary.LittleEndian.Uint32(r.b[at+7:]) != r.log {
		return c, false
	}
	if head == syncHeader {
		c.synced = int64(binary.LittleEndian.Uint64(r.b[at+11:]))
	} else if r.unmarked {
		c.synced = int64(at)
	}
	c.position = int(kind-plainChunks) % chunkTypes
	c.begin, c.end = at+head, at+head+length
	return c, cook(crc32.Checksum(r.b[at+6:c.end], castagnoli)) == binary.LittleEndian.Uint32(r.b[at:])
}

// cook and raw turn a checksum into what Pebble stores and back.
func cook(sum uint32) uint32 { return bits.RotateLeft32(sum, 17) + 0xa282ead8 }
func raw(sum uint32) uint32  { return bits.RotateLeft32(sum-0xa282ead8, -17) }

// each calls f for all chunks, and returns the offset where they end: that of the log's
// trailer or of the file's end if end is true, else that of something else.
func (r chunkReader) each(f func(chunk)) (at int, end bool) { return r.eachFrom(0, f) }

// eachFrom is each from an offset on.
func (r chunkReader) eachFrom(from int, f func(chunk)) (at int, end bool) {
	for at = from; at < len(r.b); {
		c, ok := r.at(at)
		if ok {
			f(c)
			at = c.end
			continue
		}
		left := logBlock - at%logBlock
		// The writer fills a block with zeros if no header has room.
		if room := r.space(at); left < syncHeader && isZero(r.b[at:at+room]) {
			at += room
			continue
		}
		return at, r.isTrailer(at)
	}
	return at, true
}

func (r chunkReader) isTrailer(at int) bool {
	return r.log != 0 && r.space(at) >= firstHeader && isZero(r.b[at:at+6]) && r.b[at+6] == firstChunks &&
		binary.LittleEndian.Uint32(r.b[at+7:]) == r.log+1
}

// isFault reports whether the chunks end at an offset by a fault, and not by a write that
// a crash has cut off: behind it is a chunk that was written when the one at the offset
// had been synced, or one bit makes the chunk at the offset whole. It is right about
// a write that was cut off but once in thousands.
func (r chunkReader) isFault(at int) bool {
	if _, ok := r.mend(at); ok {
		return true
	}
	for i := at + 1; i+plainHeader <= len(r.b); i++ {
		if r.header(r.b[i+6]) == 0 {
			continue
		}
		if c, ok := r.at(i); ok && c.synced > int64(at) {
			return true
		}
	}
	return false
}

// mend finds the bit that is wrong in the chunk at an offset, and puts it right.
func (r chunkReader) mend(at int) (c chunk, ok bool) {
	room := r.space(at)
	if room < plainHeader {
		return c, false
	}
	for i := range plainHeader * 8 { // the length says where the checksum ends, and the type where the payload begins
		r.b[at+i/8] ^= 1 << (i % 8)
		if c, ok = r.at(at); ok {
			return c, true
		}
		r.b[at+i/8] ^= 1 << (i % 8)
	}
	length := int(binary.LittleEndian.Uint16(r.b[at+4:]))
	head := r.header(r.b[at+6])
	if head == 0 || head+length > room {
		return c, false
	}
	data := r.b[at+6 : at+head+length]
	wrong := crc32.Checksum(data, castagnoli) ^ raw(binary.LittleEndian.Uint32(r.b[at:]))
	// A checksum is linear: a wrong bit changes it by what that bit and the bytes behind it, all
	// zero, give.
	var effect [8]uint32
	for bit := range effect {
		effect[bit] = castagnoli[1<<bit]
	}
	for i := len(data) - 1; i >= 0; i-- {
		for bit, e := range effect {
			if e == wrong {
				data[i] ^= 1 << bit
				if c, ok = r.at(at); ok {
					return c, true
				}
				data[i] ^= 1 << bit
			}
			effect[bit] = castagnoli[byte(e)] ^ e>>8
		}
	}
	return c, false
}
