package wire

import (
	"bytes"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/apikeel/kelson/internal/gzipped"
)

// The same list is asked for many times: by every replica of every controller that
// starts, and by all of them at once when a server was away. Its items are encoded once,
// in chunks of some hundred kilobytes, and written from there: a copy less, and nothing
// of the single records has to be looked at. A chunk is valid for as long as a list
// consists of the very records that it was made of, so no write has to invalidate it,
// and a write makes anew only the chunk that it is in.

// LongList is how many records make a list that is written in chunks.
const LongList = 500

const (
	// A chunk is made of about this many stored bytes.
	minChunk, maxChunk = 128 << 10, 512 << 10
	// The bytes of a chunk are in blocks, all of one size, so that any block can be used
	// again: fresh memory costs more than what is written into it.
	blockSize = 64 << 10
	// maxChunkBytes is what all chunks of a cache take, with blocks that wait to be used
	// again. A list that does not fit is written as if there were no chunks.
	maxChunkBytes = 16 << 20
	// gzipRatio is how much smaller compressed chunks are at least, as a rule.
	gzipRatio = 8
	// maxChunks is how many there are, with those that were seen only once.
	maxChunks = 4096
	// busyFor is how long a chunk that was used keeps its place if others need it, which
	// must have been asked for twice.
	busyFor = 50 * time.Millisecond
)

// chunkFormat is what the items of a chunk are encoded as.
type chunkFormat struct {
	id   EncodingID
	beta bool
	gzip bool
}

// chunkKey names a chunk by its first record.
type chunkKey struct {
	first  *Record
	format chunkFormat
}

// chunk is records that follow each other in a list, encoded as they are written there.
// It is guarded by the mutex of the cache, but for its bytes, which do not change.
type chunk struct {
	records []*Record
	used    time.Time // last

	// blocks are the bytes, all but the last are full; gzip is the bytes compressed. A
	// chunk has one of the two, or none if it was only seen.
	blocks [][]byte
	gzip   gzipped.Piece
	size   int // of the bytes before they were compressed

	building bool // somebody encodes it
	full     bool // there was no room when it was encoded
	users    int  // lists that are being written from it
	dropped  bool // from the cache; when nobody uses it, its blocks are free
}

// isEncoded reports whether the chunk has its bytes.
func (c *chunk) isEncoded() bool { return c.blocks != nil || c.gzip.Bytes != nil }

// section is a part of a list: records[from:to].
type section struct {
	from, to int
	chunk    *chunk // nil if it has to be encoded
	keep     bool   // if it has to be, it is worth keeping, or there is room
	seen     bool   // a list had these very records before
	// withRecords says that its items are worth keeping with their records as well: the list changes
	// while it is asked for (its other parts are in chunks, or a chunk had the same first record), or
	// its chunk has found no room.
	withRecords bool
}

// ChunkCache keeps encoded chunks of lists, so that the next list of the same records is
// written from them. The zero value is empty and ready for use. One cache serves all
// resources of a server.
type ChunkCache struct {
	mu    sync.Mutex
	kept  map[chunkKey]*chunk
	held  int      // bytes of chunks, those that are dropped but used among them
	free  [][]byte // blocks
	swept time.Time
	timer *time.Timer // runs while something is kept
}

// Len returns how many encoded chunks are kept.
func (cc *ChunkCache) Len() (n int) {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	for _, c := range cc.kept {
		if c.isEncoded() {
			n++
		}
	}
	return n
}

// MaxChunkBytes is how many bytes of chunks a cache holds at most.
const MaxChunkBytes = maxChunkBytes

// Held returns how many bytes the chunks take.
func (cc *ChunkCache) Held() int64 {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	return int64(cc.held + len(cc.free)*blockSize)
}

// Clear drops all chunks. Lists that are being written from some are finished first.
func (cc *ChunkCache) Clear() {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	cc.dropUnused(time.Now().Add(time.Hour))
}

// split cuts a list into sections, at the chunks that are kept and where new ones would
// begin. The sections must be released.
func (cc *ChunkCache) split(records []*Record, format chunkFormat) (sections []section) {
	now := time.Now()
	cc.mu.Lock()
	defer cc.mu.Unlock()
	made, most := 0, maxChunkBytes
	if format.gzip {
		most *= gzipRatio
	}
	for at := 0; at < len(records); {
		key := chunkKey{records[at], format}
		c := cc.kept[key]
		if c != nil && c.isEncoded() && len(c.records) <= len(records)-at && slices.Equal(c.records, records[at:at+len(c.records)]) {
			c.used = now
			c.users++
			sections = append(sections, section{from: at, to: at + len(c.records), chunk: c})
			at += len(c.records)
			continue
		}
		n, size := chunkLength(records[at:])
		if made += size; made > most {
			// Nothing of a list of this size is kept, from here on.
			return append(sections, section{from: at, to: len(records)})
		}
		sec := section{from: at, to: at + n}
		if some := records[at:sec.to]; c != nil && slices.Equal(c.records, some) {
			sec.keep, sec.seen, sec.withRecords = true, true, c.full
			c.used = now
		} else {
			sec.withRecords = c != nil // it begins with the same record
			cc.noteSeen(key, some, now)
			// One that is compressed has to be encoded as a whole anyhow, and is small.
			sec.keep = format.gzip || cc.held+made <= maxChunkBytes
		}
		sections = append(sections, sec)
		at = sec.to
	}
	if slices.ContainsFunc(sections, func(sec section) bool { return sec.chunk != nil }) {
		for i := range sections {
			sections[i].withRecords = sections[i].withRecords || sections[i].chunk == nil && !sections[i].seen
		}
	}
	return sections
}

var chunkSeed = maphash.MakeSeed()

// chunkLength is how many records make a chunk, and how many stored bytes they have. A
// chunk ends where the key of a record says, wherever it begins: lists that differ in a
// few records have most chunks in common.
func chunkLength(records []*Record) (n, size int) {
	for _, rec := range records {
		n++
		if size += rec.StoredSize(); size >= maxChunk || size >= minChunk && maphash.String(chunkSeed, rec.Key)%minChunk < uint64(rec.StoredSize()) {
			break
		}
	}
	return n, size
}

// noteSeen notes that a list has a chunk, which may be kept now or when it comes again.
func (cc *ChunkCache) noteSeen(key chunkKey, records []*Record, now time.Time) {
	if old := cc.kept[key]; old != nil {
		cc.drop(key, old)
	}
	if len(cc.kept) >= maxChunks {
		if cc.sweep(now); len(cc.kept) >= maxChunks {
			return
		}
	}
	if cc.kept == nil {
		cc.kept = map[chunkKey]*chunk{}
	}
	cc.kept[key] = &chunk{records: slices.Clone(records), used: now}
	if cc.timer == nil {
		cc.timer = time.AfterFunc(idleEncodings, cc.dropIdle)
	}
}

// release is called when a list has been written from its sections.
func (cc *ChunkCache) release(sections []section) {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	for _, sec := range sections {
		if sec.chunk == nil {
			continue
		}
		if sec.chunk.users--; sec.chunk.users == 0 && sec.chunk.dropped {
			cc.reclaim(sec.chunk)
		}
	}
}

// drop removes a chunk from the cache.
func (cc *ChunkCache) drop(key chunkKey, c *chunk) {
	delete(cc.kept, key)
	if c.dropped = true; c.users == 0 && !c.building {
		cc.reclaim(c)
	}
}

// reclaim takes the bytes of a chunk that nobody uses.
func (cc *ChunkCache) reclaim(c *chunk) {
	cc.held -= len(c.gzip.Bytes)
	cc.freeBlocks(c.blocks)
	c.blocks, c.gzip.Bytes = nil, nil
}

func (cc *ChunkCache) freeBlocks(blocks [][]byte) {
	cc.held -= len(blocks) * blockSize
	if cc.timer != nil { // which lets them go when they are not needed
		cc.free = append(cc.free, blocks...)
	}
}

// makeRoom makes room for n bytes, and reports whether there is.
func (cc *ChunkCache) makeRoom(n int) bool {
	if cc.held+n > maxChunkBytes {
		cc.sweep(time.Now())
	}
	for len(cc.free) > 0 && cc.held+len(cc.free)*blockSize+n > maxChunkBytes {
		cc.takeFree()
	}
	return cc.held+n <= maxChunkBytes
}

// takeFree returns a free block, nil if there is none.
func (cc *ChunkCache) takeFree() (b []byte) {
	if last := len(cc.free) - 1; last >= 0 {
		b, cc.free[last] = cc.free[last][:0], nil
		cc.free = cc.free[:last]
	}
	return b
}

// newBlock returns a block, nil if there is no room.
func (cc *ChunkCache) newBlock() []byte {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	if len(cc.free) == 0 && cc.held+blockSize > maxChunkBytes {
		cc.sweep(time.Now())
	}
	b := cc.takeFree()
	if b == nil && cc.held+blockSize <= maxChunkBytes {
		b = make([]byte, 0, blockSize)
	}
	if b != nil {
		cc.held += blockSize
	}
	return b
}

// chunkBuilder copies what a list writes into a chunk.
type chunkBuilder struct {
	cache  *ChunkCache
	chunk  *chunk
	blocks [][]byte
	size   int
	full   bool // there is no room
}

// build begins to encode a chunk that was seen. It returns nil if the chunk is not wanted
// any longer, or somebody else encodes it. Otherwise finish must be called.
func (cc *ChunkCache) build(records []*Record, format chunkFormat) *chunkBuilder {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	c := cc.kept[chunkKey{records[0], format}]
	if c == nil || c.building || c.isEncoded() || !slices.Equal(c.records, records) {
		return nil
	}
	c.building = true
	return &chunkBuilder{cache: cc, chunk: c}
}

// add adds bytes to the chunk.
func (b *chunkBuilder) add(p []byte) {
	b.size += len(p)
	for len(p) > 0 && !b.full {
		last := len(b.blocks) - 1
		if last < 0 || len(b.blocks[last]) == blockSize {
			block := b.cache.newBlock()
			if block == nil {
				b.full = true
				return
			}
			b.blocks = append(b.blocks, block)
			continue
		}
		block := b.blocks[last]
		n := copy(block[len(block):blockSize], p)
		b.blocks[last], p = block[:len(block)+n], p[n:]
	}
}

// finish keeps the chunk, if it is complete.
func (b *chunkBuilder) finish(complete bool) {
	b.cache.mu.Lock()
	defer b.cache.mu.Unlock()
	b.chunk.building, b.chunk.full = false, b.full
	if complete && !b.full && !b.chunk.dropped {
		b.chunk.blocks, b.chunk.size = b.blocks, b.size
	} else {
		b.cache.freeBlocks(b.blocks)
	}
}

// compress makes a compressed chunk of items that were encoded for a list. It returns nil
// if it is not wanted, or there is no room. The caller uses the chunk from the start,
// before anybody can drop it, and must release it.
func (cc *ChunkCache) compress(records []*Record, format chunkFormat, items []byte) *chunk {
	key := chunkKey{records[0], format}
	cc.mu.Lock()
	seen := cc.kept[key]
	wanted := seen != nil && !seen.isEncoded() && cc.makeRoom(len(items)/gzipRatio)
	cc.mu.Unlock()
	if !wanted {
		return nil
	}
	piece := gzipped.Compress(new(bytes.Buffer), items)
	piece.Bytes = bytes.Clone(piece.Bytes) // the buffer is larger
	made := &chunk{records: slices.Clone(records), used: time.Now(), gzip: piece, size: len(items), users: 1}
	cc.mu.Lock()
	defer cc.mu.Unlock()
	if cc.makeRoom(len(piece.Bytes)) && cc.kept[key] == seen {
		cc.kept[key] = made
		cc.held += len(piece.Bytes)
	}
	return made
}

// sweep drops chunks that are not busy, unless that was done just now.
func (cc *ChunkCache) sweep(now time.Time) {
	if now.Sub(cc.swept) >= busyFor {
		cc.swept = now
		cc.dropUnused(now.Add(-busyFor))
	}
}

func (cc *ChunkCache) dropUnused(since time.Time) {
	for key, c := range cc.kept {
		if c.used.Before(since) {
			cc.drop(key, c)
		}
	}
}

// dropIdle drops what nobody has used for a while, and runs again while there is more.
func (cc *ChunkCache) dropIdle() {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	cc.dropUnused(time.Now().Add(-idleEncodings))
	cc.free = nil
	if len(cc.kept) > 0 {
		cc.timer.Reset(idleEncodings)
	} else {
		cc.timer = nil
	}
}
