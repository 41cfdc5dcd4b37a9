package openapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/klauspost/compress/flate"
)

// Documents are kept in compressed pieces. A piece is a run of paths or of
// definitions that was deflated on its own and ends at a byte, so that the
// pieces of a document, one after the other, are the content of a gzip stream.
// When one resource of a thousand changes, the few pieces are made again that
// it has a part in.

// fingerprint tells what a piece is made from, or what it says.
type fingerprint [sha256.Size]byte

// piece is a part of a document. It is never changed.
type piece struct {
	deflated []byte
	size     int // of the text
	crc      uint32
	says     fingerprint
	// shared are the names of the parameters that paths of version 2 refer to.
	shared []string
}

// segment is a piece, or a few bytes between two of them.
type segment struct {
	glue  []byte
	piece *piece
}

func (s segment) size() int {
	if s.piece != nil {
		return s.piece.size
	}
	return len(s.glue)
}

// body is a document in one format.
type body struct {
	segments []segment
	size     int
	crc      uint32
	hash     string
	made     time.Time
	// pieces by what they were made from.
	pieces map[fingerprint]*piece
	// What the document in protobuf is made from, of one of version 2 in JSON.
	paths, definitions []*piece
	parameters         []byte

	keeping sync.Mutex
	kept    weak.Pointer[[]byte] // the text
}

// glue appends bytes that belong to no piece.
func (b *body) glue(text []byte) {
	b.segments = append(b.segments, segment{glue: text})
	b.size += len(text)
	b.crc = crc32.Update(b.crc, crc32.IEEETable, text)
}

// join appends pieces with something between them.
func (b *body) join(pieces []*piece, between string) {
	for i, p := range pieces {
		if i > 0 && between != "" {
			b.glue([]byte(between))
		}
		b.segments = append(b.segments, segment{piece: p})
		b.size += p.size
		b.crc = joinCRC(b.crc, p.crc, p.size)
	}
}

// Parts of a gzip stream: its header, an empty last block of deflate, and a
// block that is stored as it is.
const (
	gzipHeader  = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
	lastBlock   = "\x01\x00\x00\xff\xff"
	storedBlock = "\x00"
	maxStored   = 1<<16 - 1
)

// compressed returns the document as a gzip stream.
func (b *body) compressed() *bytes.Reader {
	size := len(gzipHeader) + len(lastBlock) + 8
	for _, s := range b.segments {
		if s.piece != nil {
			size += len(s.piece.deflated)
		} else {
			size += len(s.glue) + 5*(len(s.glue)/maxStored+1)
		}
	}
	out := append(make([]byte, 0, size), gzipHeader...)
	for _, s := range b.segments {
		if s.piece != nil {
			out = append(out, s.piece.deflated...)
			continue
		}
		for rest := s.glue; len(rest) > 0; {
			n := min(len(rest), maxStored)
			out = append(out, storedBlock...)
			out = binary.LittleEndian.AppendUint16(out, uint16(n))
			out = binary.LittleEndian.AppendUint16(out, ^uint16(n))
			out = append(out, rest[:n]...)
			rest = rest[n:]
		}
	}
	out = append(out, lastBlock...)
	out = binary.LittleEndian.AppendUint32(out, b.crc)
	return bytes.NewReader(binary.LittleEndian.AppendUint32(out, uint32(b.size)))
}

// text is the document as it is read, piece by piece.
type text struct {
	of *body
	at int // position in the document
	// segment that the position is in, where it begins, and its text.
	segment, begins int
	current         []byte
	inflater        io.ReadCloser
	buf             []byte
}

func (b *body) text() *text { return &text{of: b} }

// Seek implements io.Seeker.
func (t *text) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += int64(t.at)
	case io.SeekEnd:
		offset += int64(t.of.size)
	}
	if offset < 0 {
		return 0, errors.New("openapi: seek before the beginning")
	}
	if int(offset) < t.begins {
		t.segment, t.begins, t.current = 0, 0, nil
	}
	t.at = int(offset)
	return offset, nil
}

// Read implements io.Reader.
func (t *text) Read(p []byte) (int, error) {
	next, err := t.next()
	if err != nil {
		return 0, err
	}
	n := copy(p, next)
	t.at += n
	return n, nil
}

// next returns what is left of the segment at the position.
func (t *text) next() ([]byte, error) {
	for t.segment < len(t.of.segments) {
		s := t.of.segments[t.segment]
		if t.at >= t.begins+s.size() {
			t.begins += s.size()
			t.segment++
			t.current = nil
			continue
		}
		if t.current == nil {
			if t.current = s.glue; s.piece != nil {
				if err := t.inflate(s.piece); err != nil {
					return nil, err
				}
			}
		}
		return t.current[t.at-t.begins:], nil
	}
	return nil, io.EOF
}

func (t *text) inflate(p *piece) error {
	from := bytes.NewReader(p.deflated)
	if t.inflater == nil {
		t.inflater = flate.NewReader(from)
	} else if err := t.inflater.(flate.Resetter).Reset(from, nil); err != nil {
		return err
	}
	if cap(t.buf) < p.size {
		t.buf = make([]byte, p.size)
	}
	t.current = t.buf[:p.size]
	_, err := io.ReadFull(t.inflater, t.current)
	return err
}

// compressor makes pieces.
type compressor struct {
	w   *flate.Writer // is large, and made once
	buf bytes.Buffer
}

func (c *compressor) piece(text []byte, shared []string) (*piece, error) {
	c.buf.Reset()
	if c.w == nil {
		w, err := flate.NewWriter(&c.buf, flate.BestSpeed)
		if err != nil {
			return nil, err
		}
		c.w = w
	} else {
		c.w.Reset(&c.buf)
	}
	if _, err := c.w.Write(text); err != nil {
		return nil, err
	}
	if err := c.w.Flush(); err != nil {
		return nil, err
	}
	return &piece{
		deflated: bytes.Clone(c.buf.Bytes()), size: len(text),
		crc: crc32.ChecksumIEEE(text), says: sha256.Sum256(text), shared: shared,
	}, nil
}

// joinCRC returns the CRC of two texts of which the second has the given size.
// The first has to be moved by that many zero bytes, which is a multiplication
// with x^(8*size) modulo the polynomial.
func joinCRC(first, second uint32, size int) uint32 {
	shift := uint32(1 << 31) // 1: the highest bit is the coefficient of x^0
	for square := uint32(1 << 23); size > 0; size >>= 1 {
		if size&1 != 0 {
			shift = multiply(shift, square)
		}
		square = multiply(square, square)
	}
	return multiply(shift, first) ^ second
}

// multiply multiplies polynomials over bits, modulo that of the CRC.
func multiply(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a>>31 != 0 {
			product ^= b
		}
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return product
}

// How many elements a piece has on average; it has at most four times as many.
// Paths are short and much alike, definitions are dear to make.
const (
	pathsInPiece       = 16
	definitionsInPiece = 4
)

// divide cuts a list, sorted by name, into the runs that pieces are made of.
// Where it cuts depends on nothing but the element that a run begins with, so
// that one more or less leaves the other runs as they are. apart reports that
// two must not be in the same run.
func divide[T any](list []T, average int, name func(T) string, apart func(a, b T) bool) (runs [][]T) {
	begin := 0
	for i := 1; i <= len(list); i++ {
		if i == len(list) || apart(list[i-1], list[i]) || isFirst(name(list[i]), average) || i-begin >= 4*average {
			runs = append(runs, list[begin:i])
			begin = i
		}
	}
	return runs
}

// isFirst reports whether a run begins with a name, as every average-th does.
func isFirst(name string, average int) bool {
	h := uint32(2166136261) // FNV
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return h>>8%uint32(average) == 0
}

// identity adds up to a fingerprint of what a piece is made from.
type identity struct {
	kind string
	b    strings.Builder
}

func (i *identity) add(name string, id uint64) {
	i.b.WriteString(name)
	var n [9]byte // and a zero byte to end the name
	binary.LittleEndian.PutUint64(n[1:], id)
	i.b.Write(n[:])
}

// addText adds something that is identified by its text.
func (i *identity) addText(name string, text []byte) {
	sum := sha256.Sum256(text)
	i.b.WriteString(name)
	i.b.WriteByte(0)
	i.b.Write(sum[:])
}

func (i *identity) sum() fingerprint { return sha256.Sum256([]byte(i.kind + i.b.String())) }
