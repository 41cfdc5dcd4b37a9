// Package gzipped puts gzip streams together from pieces, each of which was compressed
// by itself: what is sent often, and changes a little, is compressed once.
//
// A piece is whole blocks of deflate that refer to nothing before them and end at a
// byte, so that pieces can follow each other. What the stream ends with is known
// from theirs: their sizes, and the CRC of one text after another.
package gzipped

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/flate"
)

// Header begins a stream: deflate, no name, no time, the fastest way, an unknown
// system.
const Header = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"

// lastBlock is an empty one.
const lastBlock = "\x01\x00\x00\xff\xff"

// EndSize is what AppendEnd appends.
const EndSize = len(lastBlock) + 8

// Piece is a text, compressed.
type Piece struct {
	Bytes []byte
	Sum
}

// Sum is what a stream must tell of its text. The zero Sum is of no text.
type Sum struct {
	Size int
	CRC  uint32
}

// SumOf returns the sum of a text.
func SumOf(text []byte) Sum { return Sum{len(text), crc32.ChecksumIEEE(text)} }

// Then returns the sum of one text after another. The CRC of the first is moved by
// as many zero bytes as the second has: a multiplication with x to the power of eight
// times its size, of polynomials over bits.
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

// Writers are large.
var writers = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.BestSpeed) // fails for levels that there are not
	return w
}}

// Compress makes a piece in a buffer, whose memory it shares.
func Compress(b *bytes.Buffer, text []byte) Piece {
	b.Reset()
	w := writers.Get().(*flate.Writer)
	w.Reset(b)
	// A buffer does not fail. Flush ends at a byte.
	_, _ = w.Write(text)
	_ = w.Flush()
	writers.Put(w)
	return Piece{b.Bytes(), SumOf(text)}
}

// StoredSize is what AppendStored appends for a text of n bytes, at most.
func StoredSize(n int) int { return n + 5*(n/maxStored+1) }

const maxStored = 1<<16 - 1

// AppendStored appends a text as it is, in blocks of deflate: it may be too short to be
// worth more.
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

// AppendEnd ends a stream.
func AppendEnd(dst []byte, of Sum) []byte {
	dst = append(dst, lastBlock...)
	dst = binary.LittleEndian.AppendUint32(dst, of.CRC)
	return binary.LittleEndian.AppendUint32(dst, uint32(of.Size)) // modulo 2³², as the format has it
}
