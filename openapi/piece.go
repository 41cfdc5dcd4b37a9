package openapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/klauspost/compress/flate"

	"github.com/apikeel/kelson/internal/gzipped"
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
	gzipped.Piece
	says fingerprint
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
		return s.piece.Size
	}
	return len(s.glue)
}

// body is a document in one format.
type body struct {
	segments []segment
	sum      gzipped.Sum
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
	b.sum = b.sum.Then(gzipped.SumOf(text))
}

// join appends pieces with something between them.
func (b *body) join(pieces []*piece, between string) {
	for i, p := range pieces {
		if i > 0 && between != "" {
			b.glue([]byte(between))
		}
		b.segments = append(b.segments, segment{piece: p})
		b.sum = b.sum.Then(p.Sum)
	}
}

// compressed returns the document as a gzip stream.
func (b *body) compressed() *bytes.Reader {
	size := len(gzipped.Header) + gzipped.EndSize
	for _, s := range b.segments {
		if s.piece != nil {
			size += len(s.piece.Bytes)
		} else {
			size += gzipped.StoredSize(len(s.glue))
		}
	}
	out := append(make([]byte, 0, size), gzipped.Header...)
	for _, s := range b.segments {
		if s.piece != nil {
			out = append(out, s.piece.Bytes...)
		} else {
			out = gzipped.AppendStored(out, s.glue)
		}
	}
	return bytes.NewReader(gzipped.AppendEnd(out, b.sum))
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
		offset += int64(t.of.sum.Size)
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
	from := bytes.NewReader(p.Bytes)
	if t.inflater == nil {
		t.inflater = flate.NewReader(from)
	} else if err := t.inflater.(flate.Resetter).Reset(from, nil); err != nil {
		return err
	}
	if cap(t.buf) < p.Size {
		t.buf = make([]byte, p.Size)
	}
	t.current = t.buf[:p.Size]
	_, err := io.ReadFull(t.inflater, t.current)
	return err
}

// compress makes a piece in a buffer that can be used again.
func compress(b *bytes.Buffer, text []byte, shared []string) *piece {
	p := &piece{Piece: gzipped.Compress(b, text), says: sha256.Sum256(text), shared: shared}
	p.Bytes = bytes.Clone(p.Bytes)
	return p
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
