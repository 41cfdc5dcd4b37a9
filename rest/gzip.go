package rest

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net/http"
	"strings"
	"sync"
)

// gzipFrom is the size from which answers are compressed for those who accept
// it.
const gzipFrom = 128 << 10

func acceptsGzip(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
}

// beginGzip writes the header of a compressed answer and returns where its
// body goes.
func beginGzip(w http.ResponseWriter, code int) *zipper {
	h := w.Header()
	h.Set("Content-Encoding", "gzip")
	h.Add("Vary", "Accept-Encoding")
	h.Del("Content-Length")
	w.WriteHeader(code)
	return newZipper(w)
}

func writeGzip(w http.ResponseWriter, code int, body []byte) {
	z := beginGzip(w, code)
	_, _ = z.Write(body)
	_ = z.Close()
}

// zipper writes in the format of gzip. Unlike a gzip.Writer it compresses each write
// by itself, and takes pieces that were compressed before: what is written often
// needs to be compressed once. Writes should be large.
type zipper struct {
	w    io.Writer
	err  error
	crc  uint32 // of all that was written
	size uint32 // modulo 2³², as the format has it
}

// packed is a piece of an answer, compressed.
type packed struct {
	bytes []byte // whole blocks of deflate, none of them the last
	crc   uint32 // of what it was
	size  int    // of what it was
}

func newZipper(w io.Writer) *zipper {
	z := &zipper{w: w}
	// Deflate, no name, no time, the fastest way, an unknown system.
	z.raw([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 0xff})
	return z
}

func (z *zipper) raw(p []byte) {
	if z.err == nil {
		_, z.err = z.w.Write(p)
	}
}

// Write implements io.Writer.
func (z *zipper) Write(p []byte) (int, error) {
	b := zipBuffers.Get().(*bytes.Buffer)
	z.add(zip(b, p))
	b.Reset()
	zipBuffers.Put(b)
	return len(p), z.err
}

// add writes a piece that is compressed.
func (z *zipper) add(p packed) {
	z.raw(p.bytes)
	z.crc = combineCRC(z.crc, p.crc, p.size)
	z.size += uint32(p.size)
}

// Close ends what is written: with an empty last block, and what it all should be.
func (z *zipper) Close() error {
	end := []byte{3, 0}
	end = binary.LittleEndian.AppendUint32(end, z.crc)
	z.raw(binary.LittleEndian.AppendUint32(end, z.size))
	return z.err
}

var (
	zipBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}
	deflaters  = sync.Pool{New: func() any {
		f, _ := flate.NewWriter(nil, flate.BestSpeed) // fails for other levels
		return f
	}}
)

// zip compresses a piece into b.
func zip(b *bytes.Buffer, p []byte) packed {
	const tiny = 64
	if len(p) <= tiny {
		// A block that is stored as it is.
		n := uint16(len(p))
		b.Write([]byte{0, byte(n), byte(n >> 8), byte(^n), byte(^n >> 8)})
		b.Write(p)
	} else {
		// A buffer does not fail. Flush ends at the border of a byte.
		f := deflaters.Get().(*flate.Writer)
		f.Reset(b)
		_, _ = f.Write(p)
		_ = f.Flush()
		deflaters.Put(f)
	}
	return packed{b.Bytes(), crc32.ChecksumIEEE(p), len(p)}
}

// combineCRC returns the checksum of two pieces, the second of which has n bytes. A
// checksum is a polynomial over GF(2), with the highest power in the lowest bit, and
// n bytes after it multiply it with x to the power of 8n.
func combineCRC(first, second uint32, n int) uint32 {
	const one, x8 = 1 << 31, 1 << (31 - 8)
	shift := uint32(one)
	for square := uint32(x8); n > 0; n >>= 1 {
		if n&1 != 0 {
			shift = multiplyCRC(shift, square)
		}
		square = multiplyCRC(square, square)
	}
	return multiplyCRC(first, shift) ^ second
}

// multiplyCRC multiplies two polynomials modulo that of the checksum.
func multiplyCRC(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a>>31 != 0 {
			product ^= b
		}
		b = b>>1 ^ crc32.IEEE&-(b&1) // b is multiplied with x
	}
	return product
}
