package openapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/klauspost/compress/flate"

	"github.com/apikeel/kelson/internal/gzipped"
)

// Documents are kept in pieces: groups of consecutive paths or definitions. When one
// resource of a thousand changes, only the few pieces that it is part of are built
// again. A piece that takes long to build is kept compressed; others are rendered again
// from the generated definitions when they are read.
//
// A compressed piece was deflated on its own and ends at a byte boundary, so that the
// pieces of a document, one after the other, are the content of a gzip stream.

// fingerprint is a hash of the input of a piece, or of its text.
type fingerprint [sha256.Size]byte

// piece is a part of a document. Its text never changes.
type piece struct {
	size int
	// says is the hash of the text; zero if it was not needed.
	says fingerprint
	// shared are the names of the parameters that paths of version 2 refer to.
	shared []string
	// again renders the text; nil if it is kept compressed.
	again func(out []byte, l *library) ([]byte, error)
	// packed is the compressed text; nil if it was not needed.
	packed atomic.Pointer[gzipped.Piece]
}

// pack compresses a piece in a buffer that can be reused.
func (p *piece) pack(b *bytes.Buffer, text []byte) *gzipped.Piece {
	made := gzipped.Compress(b, text)
	made.Bytes = bytes.Clone(made.Bytes)
	p.packed.Store(&made)
	return &made
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
	// library returns a new library, for pieces that are rendered again.
	library  func() *library
	segments []segment
	size     int
	hash     string
	made     time.Time
	// pieces by what they were made from.
	pieces map[fingerprint]*piece
	// What the document in protobuf is made from, of one of version 2 in JSON.
	paths, definitions []*piece
	parameters         []byte

	keeping sync.Mutex
	kept    weak.Pointer[[]byte] // the text
	// held is the text while it is read often; read is when it was last read.
	held  *[]byte
	read  time.Time
	until *time.Timer
	sum   gzipped.Sum // once it has been compressed
}

// add appends a segment.
func (b *body) add(s segment) {
	b.segments = append(b.segments, s)
	b.size += s.size()
}

// maxPlain is the largest text in bytes that is kept as long as there is memory.
const maxPlain = 16 << 20

// whole returns the text; nil if it is longer than maxPlain. It is kept until the
// garbage collector frees it. The caller holds b.keeping.
func (b *body) whole() (*[]byte, error) {
	if b.size > maxPlain {
		return nil, nil
	}
	if kept := b.kept.Value(); kept != nil {
		return kept, nil
	}
	data := make([]byte, 0, b.size)
	t := b.text()
	for _, s := range b.segments {
		var err error
		if data, err = t.appendSegment(data, s); err != nil {
			return nil, err
		}
	}
	b.kept = weak.Make(&data)
	return &data, nil
}

// plain returns a reader of the text. It reads piece by piece, unless the text was read within
// holdFor before: then it is held, so that the garbage collector does not free it.
func (b *body) plain() io.ReadSeeker {
	b.keeping.Lock()
	defer b.keeping.Unlock()
	now := time.Now()
	again := now.Sub(b.read) < holdFor
	b.read = now
	if !again && b.kept.Value() == nil {
		return b.text()
	}
	data, err := b.whole()
	if data == nil || err != nil {
		return b.text() // the reader gets the error
	}
	if again {
		b.held = data
		if b.until == nil {
			b.until = time.AfterFunc(holdFor, b.release)
		} else {
			b.until.Reset(holdFor)
		}
	}
	return bytes.NewReader(*data)
}

// holdFor is how long a text is held after it was read.
const holdFor = 10 * time.Second

func (b *body) release() {
	b.keeping.Lock()
	defer b.keeping.Unlock()
	b.held = nil
}

// compressed returns the document as a gzip stream.
func (b *body) compressed() (*bytes.Reader, error) {
	if err := b.pack(); err != nil {
		return nil, err
	}
	size := len(gzipped.Header) + gzipped.EndSize
	for _, s := range b.segments {
		if s.piece != nil {
			size += len(s.piece.packed.Load().Bytes)
		} else {
			size += gzipped.StoredSize(len(s.glue))
		}
	}
	out := append(make([]byte, 0, size), gzipped.Header...)
	for _, s := range b.segments {
		if s.piece != nil {
			out = append(out, s.piece.packed.Load().Bytes...)
		} else {
			out = gzipped.AppendStored(out, s.glue)
		}
	}
	return bytes.NewReader(gzipped.AppendEnd(out, b.sum)), nil
}

// pack compresses the pieces that are not, and computes the gzip sum.
func (b *body) pack() error {
	b.keeping.Lock()
	defer b.keeping.Unlock()
	if b.sum.Size == b.size {
		return nil
	}
	whole, err := b.whole()
	if err != nil {
		return err
	}
	var sum gzipped.Sum
	var buf bytes.Buffer
	t := b.text()
	for _, s := range b.segments {
		at := sum.Size
		if s.piece == nil {
			sum = sum.Then(gzipped.SumOf(s.glue))
			continue
		}
		packed := s.piece.packed.Load()
		if packed == nil {
			var text []byte
			if whole != nil {
				text = (*whole)[at : at+s.piece.size]
			} else if text, err = t.read(s.piece); err != nil {
				return err
			}
			packed = s.piece.pack(&buf, text)
		}
		sum = sum.Then(packed.Sum)
	}
	b.sum = sum
	return nil
}

// text reads the document piece by piece.
type text struct {
	of *body
	at int // position in the document
	// segment that the position is in, where it begins, and its text.
	segment, begins int
	current         []byte
	inflater        io.ReadCloser
	buf             []byte
	library         *library // if anything was made again
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
			t.current = s.glue
			if s.piece != nil {
				var err error
				if t.current, err = t.read(s.piece); err != nil {
					return nil, err
				}
			}
		}
		return t.current[t.at-t.begins:], nil
	}
	return nil, io.EOF
}

// appendSegment appends the text of a segment.
func (t *text) appendSegment(out []byte, s segment) ([]byte, error) {
	if s.piece == nil {
		return append(out, s.glue...), nil
	}
	if s.piece.packed.Load() == nil {
		return t.render(out, s.piece)
	}
	text, err := t.read(s.piece)
	return append(out, text...), err
}

// render appends the text of a piece that is not kept.
func (t *text) render(out []byte, p *piece) ([]byte, error) {
	if t.library == nil {
		t.library = t.of.library()
	}
	return p.again(out, t.library)
}

// read returns the text of a piece, which is valid until the next call.
func (t *text) read(p *piece) (_ []byte, err error) {
	packed := p.packed.Load()
	if packed == nil {
		t.buf, err = t.render(t.buf[:0], p)
		return t.buf, err
	}
	from := bytes.NewReader(packed.Bytes)
	if t.inflater == nil {
		t.inflater = flate.NewReader(from)
	} else if err := t.inflater.(flate.Resetter).Reset(from, nil); err != nil {
		return nil, err
	}
	if cap(t.buf) < p.size {
		t.buf = make([]byte, p.size)
	}
	_, err = io.ReadFull(t.inflater, t.buf[:p.size])
	return t.buf[:p.size], err
}

// Average number of elements of a piece; the largest is four times that. Paths are
// short and similar, definitions are expensive to render.
const (
	pathsInPiece       = 16
	definitionsInPiece = 4
)

// divide splits a list, sorted by name, into the groups that pieces are made of. A
// split depends only on the first element of a group, so that adding or removing one
// element leaves the other groups unchanged. apart reports that two elements must not
// be in the same group.
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

// identity computes the fingerprint of a piece's input.
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
