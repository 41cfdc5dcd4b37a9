package wire

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apikeel/kelson/internal/randomtest"
)

func unzipped(t *testing.T, text string) string {
	t.Helper()
	z, err := gzip.NewReader(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func someRecords(n, size int) []*Record {
	records := make([]*Record, n)
	for i := range records {
		records[i] = NewRecord(Record{Key: fmt.Sprintf("/registry/things/%d", rand.Uint64())}, make([]byte, size), nil, nil, nil, nil)
	}
	return records
}

// TestChunkCacheIsBounded: chunks take what they may, those that are used stay, and the others go.
func TestChunkCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cc ChunkCache
		format := chunkFormat{id: 1}
		// list lists and returns how many records were in chunks.
		list := func(records []*Record) (inChunks int) {
			sections := cc.split(records, format)
			for _, sec := range sections {
				some := records[sec.from:sec.to]
				if sec.chunk != nil {
					inChunks += len(some)
				} else if sec.keep {
					if d := cc.build(some, format); d != nil {
						for _, rec := range some {
							d.add(storedBytes(rec))
						}
						d.finish(true)
					}
				}
			}
			cc.release(sections)
			cc.mu.Lock()
			defer cc.mu.Unlock()
			if cc.held+len(cc.free)*blockSize > maxChunkBytes || len(cc.kept) > maxChunks {
				t.Fatalf("%d bytes in %d chunks, and %d blocks", cc.held, len(cc.kept), len(cc.free))
			}
			return inChunks
		}
		var lists [][]*Record
		for range 5 {
			lists = append(lists, someRecords(1000, maxChunkBytes/2600))
		}
		for _, records := range lists[:2] {
			for i, want := range []int{0, len(records), len(records)} {
				if got := list(records); got != want {
					t.Errorf("list %d: %d records in chunks, not %d", i, got, want)
				}
			}
		}
		// A change makes one chunk anew, or two if it is where one ends.
		changed := append(append(someRecords(0, 0), lists[0][:500]...), lists[0][501:]...)
		if got := list(changed); got < len(changed)-3*maxChunk/changed[0].StoredSize() || got == len(changed) {
			t.Errorf("%d of %d records in chunks after a change", got, len(changed))
		}
		// Those in use stay, the others make room.
		for range 3 {
			list(lists[2])
		}
		if got := list(lists[1]); got < 900 {
			t.Errorf("%d records in chunks of a list that is in use", got)
		}
		time.Sleep(2 * busyFor)
		for range 4 {
			list(lists[3])
		}
		if got := list(lists[3]); got != len(lists[3]) {
			t.Errorf("%d records in chunks of the list that is in use now", got)
		}
		// What is too large leaves the others alone.
		for range 3 {
			if got := list(someRecords(4000, maxChunkBytes/3000)); got != 0 {
				t.Errorf("%d records in chunks of a list that is too large", got)
			}
		}
		time.Sleep(3 * idleEncodings)
		synctest.Wait()
		cc.mu.Lock()
		defer cc.mu.Unlock()
		if len(cc.kept) > 0 || cc.held != 0 || cc.free != nil || cc.timer != nil {
			t.Errorf("%d chunks are kept that nobody uses, of %d bytes", len(cc.kept), cc.held)
		}
	})
}

// TestChunksInUseStay: what a list is written from stays what it is, whatever is dropped
// and made meanwhile.
func TestChunksInUseStay(t *testing.T) {
	var cc ChunkCache
	seed := randomtest.Seed(t, rand.Uint64())
	random := randomtest.Rand(seed, 0)
	all := someRecords(3000, maxChunkBytes/4000)
	for _, rec := range all {
		stored := storedBytes(rec)
		for i := range stored {
			stored[i] = byte(random.Uint32())
		}
	}
	text := func(records []*Record) (b []byte) {
		for _, rec := range records {
			b = append(b, storedBytes(rec)...)
		}
		return b
	}
	var used, made atomic.Int64
	var lists sync.WaitGroup
	for n := range uint64(8) {
		lists.Go(func() {
			random := randomtest.Rand(seed, 1+n)
			for range 10 {
				from := random.IntN(len(all) / 2)
				records, format := all[from:from+len(all)/2], chunkFormat{id: EncodingID(random.IntN(3))}
				sections := cc.split(records, format)
				for _, sec := range sections {
					some := records[sec.from:sec.to]
					if sec.chunk != nil {
						used.Add(1)
						if !bytes.Equal(bytes.Join(sec.chunk.blocks, nil), text(some)) {
							t.Error("a chunk is not what it was made of")
						}
					} else if d := cc.build(some, format); d != nil {
						made.Add(1)
						for _, rec := range some {
							d.add(storedBytes(rec))
						}
						d.finish(random.IntN(4) > 0)
					}
					if random.IntN(20) == 0 {
						cc.mu.Lock()
						cc.dropUnused(time.Now().Add(-time.Duration(random.IntN(10)) * time.Millisecond))
						cc.mu.Unlock()
					}
				}
				cc.release(sections)
			}
		})
	}
	lists.Wait()
	if used.Load() == 0 || made.Load() == 0 {
		t.Errorf("%d chunks were used and %d made", used.Load(), made.Load())
	}
	cc.mu.Lock()
	defer cc.mu.Unlock()
	cc.dropUnused(time.Now())
	if blocks := len(cc.free) * blockSize; cc.held != 0 || blocks == 0 || blocks > maxChunkBytes {
		t.Errorf("%d bytes are held by nobody, %d are free", cc.held, blocks)
	}
}

// TestCompressedChunkIsFreedByItsList: a compressed chunk that is dropped while a list is
// written from it stays what it is, and is counted until that list is released.
func TestCompressedChunkIsFreedByItsList(t *testing.T) {
	var cc ChunkCache
	records, format := someRecords(LongList, 1000), chunkFormat{gzip: true}
	sections := cc.split(records, format)
	if len(sections) == 0 || !sections[0].keep {
		t.Fatalf("got sections %+v, want some that are kept", sections)
	}
	some := records[sections[0].from:sections[0].to]
	c := cc.compress(some, format, bytes.Repeat([]byte("x"), minChunk))
	if c == nil {
		t.Fatal("got no chunk, want a compressed one")
	}
	sections[0].chunk = c
	cc.Clear()
	if n := len(c.gzip.Bytes); n == 0 || cc.held != n {
		t.Errorf("got a chunk of %d bytes of which %d are counted, want all while it is used", n, cc.held)
	}
	cc.release(sections)
	if cc.held != 0 || cc.Len() != 0 {
		t.Errorf("got %d bytes in %d chunks, want none when nobody uses them", cc.held, cc.Len())
	}
}

func TestGzipWriter(t *testing.T) {
	random := randomtest.New(t)
	for range 100 {
		var whole, body strings.Builder
		z := NewGzipWriter(&body)
		for range random.IntN(5) {
			piece := []byte(strings.Repeat(fmt.Sprint(random.Uint64()), random.IntN(1000)))
			piece = piece[:random.IntN(len(piece)+1)]
			whole.Write(piece)
			if n, err := z.Write(piece); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		if unzipped(t, body.String()) != whole.String() {
			t.Fatal("it is not what was written")
		}
	}
}

// storedBytes returns the stored bytes of a record, which are in memory.
func storedBytes(rec *Record) []byte {
	stored, err := rec.Stored()
	if err != nil {
		panic(err)
	}
	return stored
}
