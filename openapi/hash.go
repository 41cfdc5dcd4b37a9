package openapi

import (
	"crypto/sha512"
	_ "embed"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/klauspost/compress/s2"

	"github.com/apikeel/kelson/openapi/internal/pack"
	"github.com/apikeel/kelson/resource"
)

// The documents of built-in kinds are built ahead of time, for a server with its usual
// settings. hashes has a line for each, sorted: the fingerprint of its input, its hash, and
// the end of its compressed blocks in built, as a hexadecimal number. The texts are in the
// order of the lines. TestHashes keeps both right.
//
//go:embed data/hashes
var hashes string

//go:embed data/documents.s2
var built string

// A line has a fingerprint, a hash, and an end, each with a separator.
const (
	fingerprintSize = 3 * 8
	hashSize        = 2 * sha512.Size
	endSize         = 8
	hashLine        = fingerprintSize + 1 + hashSize + 1 + endSize + 1
)

// builtDocument is the number of a document that was built ahead of time.
type builtDocument int

// findBuilt returns the document of a part, -1 if it was not built ahead of time.
func (h *Handler) findBuilt(p *part) builtDocument {
	if p.custom() || h.config.NoEnums {
		return -1
	}
	want := h.fingerprint(p)
	n, found := sort.Find(len(hashes)/hashLine, func(i int) int { return strings.Compare(want, hashes[i*hashLine:][:fingerprintSize]) })
	if !found {
		return -1
	}
	return builtDocument(n)
}

func (d builtDocument) hash() string {
	return hashes[int(d)*hashLine+fingerprintSize+1:][:hashSize]
}

// blockSize is how much of a text is compressed at a time. A reader has one of them in memory,
// not the document, which would be fresh memory with a fault for each page.
const blockSize = 64 << 10

// appendBlocks appends a text as builtDocument.body reads it: compressed blocks, each after its
// size.
func appendBlocks(out, text []byte) []byte {
	for block := range slices.Chunk(text, blockSize) {
		packed := s2.EncodeBest(nil, block)
		out = append(binary.AppendUvarint(out, uint64(len(packed))), packed...)
	}
	return out
}

// blocks returns the compressed text.
func (d builtDocument) blocks() []byte {
	end := func(n builtDocument) int {
		if n < 0 {
			return 0
		}
		end, err := strconv.ParseUint(hashes[int(n+1)*hashLine-endSize-1:][:endSize], 16, 31)
		if err != nil {
			panic(err) // it is part of the program
		}
		return int(end)
	}
	text := built[end(d-1):end(d)]
	return unsafe.Slice(unsafe.StringData(text), len(text)) // which is only read
}

// body returns the document. Its text is decompressed whenever it is read.
func (d builtDocument) body() (*body, error) {
	b := &body{library: func() *library { return nil }, hash: d.hash(), made: time.Now()}
	for rest := d.blocks(); len(rest) > 0; {
		n, head := binary.Uvarint(rest)
		packed := rest[head : head+int(n)]
		rest = rest[head+int(n):]
		size, err := s2.DecodedLen(packed)
		if err != nil {
			return nil, err
		}
		b.add(segment{piece: &piece{size: size, again: func(out []byte, _ *library) ([]byte, error) {
			out = slices.Grow(out, size)
			_, err := s2.Decode(out[len(out):len(out)+size], packed)
			return out[:len(out)+size], err
		}}})
	}
	return b, nil
}

// hash3 returns the hash of a document of version 3.
func (h *Handler) hash3(d *document, open func() *library) (string, error) {
	if built := h.findBuilt(&d.part); built >= 0 {
		return built.hash(), nil
	}
	b, err := h.json3(d, open)
	if err != nil {
		return "", err
	}
	return b.hash, nil
}

// fingerprint identifies everything that the document of a part is made from
// but the program: what it describes, and the generated definitions. Nobody from outside
// chooses them, so two checksums that processors have instructions for are enough; with
// SHA-256 they took a fifth of the first answer with an index.
func (h *Handler) fingerprint(p *part) string {
	d := describers.Get().(*describer)
	defer describers.Put(d)
	*d = (*d)[:0]
	d.texts(p.name, h.config.Title, h.config.Version, pack.Sum(packed))
	if h.config.CBOR {
		d.texts(mediaCBOR)
	}
	if r := p.route; r != nil {
		d.texts(r.Path, r.Operation, r.Description, r.Tag, r.Definition)
		d.list(r.Consumes)
		d.list(r.Produces)
	} else {
		for _, s := range p.version.Resources {
			d.resource(s)
		}
	}
	return fmt.Sprintf("%08x%08x%08x", len(*d), crc32.ChecksumIEEE(*d), crc32.Checksum(*d, castagnoli))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// describer writes all that paths and definitions are made from, so that no two things
// look the same.
type describer []byte

var describers = sync.Pool{New: func() any { return new(describer) }}

func (d *describer) texts(texts ...string) {
	for _, text := range texts {
		*d = append(binary.AppendUvarint(*d, uint64(len(text))), text...)
	}
}

func (d *describer) list(texts []string) {
	*d = binary.AppendUvarint(*d, uint64(len(texts)))
	d.texts(texts...)
}

func (d *describer) flags(flags ...bool) {
	for _, flag := range flags {
		*d = append(*d, '0')
		if flag {
			(*d)[len(*d)-1] = '1'
		}
	}
}

// typeOf writes which Go type a definition is generated from. The name of the definition
// would do too, but for that the runtime looks up the methods of some 300 types: a quarter
// of a millisecond of a server's first answer with an index.
func (d *describer) typeOf(obj any) {
	t := reflect.TypeOf(obj)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	d.texts(t.PkgPath(), t.Name())
}

func (d *describer) resource(s *resource.Served) {
	of := s.Definition
	d.texts(of.Resource, of.Kind, of.ListKind)
	d.typeOf(s.Version.New())
	if hasList(s) {
		d.typeOf(s.Version.NewList())
	}
	d.flags(of.Namespaced, of.Strategy.ReturnDeleted || s.Version.ReturnDeleted, of.Strategy.BeforeDelete == nil, s.Version.Schema == nil)
	d.list(of.Verbs)
	for sub := range s.Subresources() {
		d.texts(sub.Name, sub.Kind.Group, sub.Kind.Version, sub.Kind.Kind)
		d.list(sub.ServedVerbs())
		if c := sub.Connect; c != nil {
			d.list(c.Methods)
			d.flags(c.Path, c.Text)
			d.typeOf(c.Options())
		} else if sub.Kind.Kind != "" {
			d.typeOf(sub.New())
		}
	}
	d.texts("") // a resource ends
}
