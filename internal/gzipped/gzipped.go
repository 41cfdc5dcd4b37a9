// Package gzipped concatenates gzip streams from pieces that were compressed
// separately, so that what is sent often is compressed once. Start at Compress and
// Piece.
//
// A piece consists of complete deflate blocks that refer to nothing before them and end
// at a byte boundary. The trailer of the stream is computed from those of the pieces:
// the sum of the sizes, and the combined CRC.
package gzipped

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/flate"
)

// Header is the gzip header: deflate, no name, no time, fastest, unknown system.
const Header = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"

// lastBlock is an empty final block.
const lastBlock = "\x01\x00\x00\xff\xff"

// EndSize is the number of bytes that AppendEnd appends.
const EndSize = len(lastBlock) + 8

// Piece is a compressed text.
type Piece struct {
	Bytes []byte
	Sum
}

// Sum is the size and CRC of a text, for the gzip trailer. The zero Sum is that of the
// empty text.
type Sum struct {
	Size int
	CRC  uint32
}

// SumOf returns the sum of a text.
func SumOf(text []byte) Sum { return Sum{len(text), crc32.ChecksumIEEE(text)} }

// Then returns the sum of the concatenation of two texts. The CRC of the first is
// shifted by the length of the second: multiplied by x to the power of eight times that
// length, as polynomials over bits.
func (s Sum) Then(next Sum) Sum {
	const one, x8 = 1 << 31, 1 << (31 - 8) // the highest bit is the coefficient of x⁰
	shift := uint32(one)
	for n, square := next.Size, uint32(x8); n > 0; n >>= 1 {
		if n&1 != 0 {
			shift = multiply(shift, square)
		}
		square = multiply(square, square)
	}
	return Sum{s.Size + next.Size, multiply(s.CRC, shift) ^ next.CRC}
}

// multiply multiplies polynomials modulo that of the CRC.
func multiply(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a>>31 != 0 {
			product ^= b
		}
		b = b>>1 ^ crc32.IEEE&-(b&1) // times x
	}
	return product
}

// Compressors are large, so they are reused.
var writers = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.BestSpeed) // fails only for invalid levels
	return w
}}

// Compress compresses a text into a buffer; the piece shares its memory.
func Compress(b *bytes.Buffer, text []byte) Piece {
	b.Reset()
	w := writers.Get().(*flate.Writer)
	w.Reset(b)
	// A buffer does not fail. Flush ends at a byte boundary.
	_, _ = w.Write(text)
	_ = w.Flush()
	writers.Put(w)
	return Piece{b.Bytes(), SumOf(text)}
}

// StoredSize is the largest number of bytes that AppendStored appends for n bytes of
// text.
func StoredSize(n int) int { return n + 5*(n/maxStored+1) }

const maxStored = 1<<16 - 1

// AppendStored appends a text uncompressed, in stored blocks: short texts are not worth
// compressing.
func AppendStored(dst, text []byte) []byte {
	for len(text) > 0 {
		n := min(len(text), maxStored)
		dst = append(dst, 0)
		dst = binary.LittleEndian.AppendUint16(dst, uint16(n))
		dst = binary.LittleEndian.AppendUint16(dst, ^uint16(n))
		dst = append(dst, text[:n]...)
		text = text[n:]
	}
	return dst
}

// AppendEnd appends the final block and the trailer.
func AppendEnd(dst []byte, of Sum) []byte {
	dst = append(dst, lastBlock...)
	dst = binary.LittleEndian.AppendUint32(dst, of.CRC)
	return binary.LittleEndian.AppendUint32(dst, uint32(of.Size)) // modulo 2³², as the format wants
}
