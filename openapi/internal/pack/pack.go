// Package pack is the file format of generated definitions: each in the three
// forms in which the server hands them out, so that building a document copies
// bytes and parses nothing.
//
// A pack is an index and blocks. The index is not compressed, so that names and
// references are read where they lie. A block is the text of one form of some
// definitions, compressed with S2, which is read several times as fast as deflate.
// Definitions that the same packages use share blocks: a document needs what is in
// its blocks, and hardly anything else is read for it.
//
// The file begins with its checksum. Everything in the index is a number (uvarint) or
// as many bytes as the number before them says.
package pack

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"slices"
	"strings"

	"github.com/klauspost/compress/s2"
)

// Form is a form of a definition.
type Form int

// V3 and V2 are the schema in JSON, for OpenAPI 3.0 and 2.0, V3Proto the message
// NamedSchemaOrReference of OpenAPI 3.0.
const (
	V3 Form = iota
	V2
	V3Proto
	forms
)

// Definition is the schema of one type.
type Definition struct {
	// Name: io.k8s.api.core.v1.Pod.
	Name string
	// Refs are the names of the definitions that this one refers to.
	Refs []string
	// Texts of the definition in its forms.
	Texts [forms][]byte
	// Root is that documents name it whatever else they name: it has a kind.
	Root bool
}

const (
	checksum = 8
	// maxBlock is how much text a block has, unless it is that of one definition;
	// with minBlock, definitions that others use begin another.
	minBlock, maxBlock = 64 << 10, 256 << 10
	// maxText is what the text of one definition may have, so that whoever reads a
	// broken pack does not try more.
	maxText = 16 << 20
)

// Of returns the name of the package of a definition.
func Of(definition string) string {
	return definition[:max(strings.LastIndexByte(definition, '.'), 0)]
}

// Everywhere reports whether a definition is of a kind that every group and
// version has. Its V3 leaves out the groups and versions, which depend on the
// document, and its V3Proto is of no use.
func Everywhere(definition string) bool {
	return definition == "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions" ||
		definition == "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent"
}

// Write returns a pack of definitions. All that they refer to must be among them.
func Write(definitions []Definition) ([]byte, error) {
	definitions = slices.SortedFunc(slices.Values(definitions), func(a, b Definition) int { return cmp.Compare(a.Name, b.Name) })
	numbers := map[string]int{}
	for i, d := range definitions {
		numbers[d.Name] = i
	}
	var sizes, blocks []byte
	places := make([][forms]place, len(definitions))
	count := 0
	order, users := byUse(definitions, numbers)
	for form := range forms {
		var text []byte
		end := func() {
			packed := s2.EncodeBest(nil, text)
			sizes = binary.AppendUvarint(binary.AppendUvarint(sizes, uint64(len(packed))), uint64(len(text)))
			blocks, text = append(blocks, packed...), nil
			count++
		}
		for i, n := range order {
			d := &definitions[n]
			if i > 0 && (len(text)+len(d.Texts[form]) > maxBlock || len(text) >= minBlock && users[n] != users[order[i-1]]) {
				end()
			}
			places[n][form] = place{uint32(count), uint32(len(text)), uint32(len(d.Texts[form]))}
			text = append(text, d.Texts[form]...)
		}
		end()
	}
	out := binary.AppendUvarint(make([]byte, checksum), uint64(len(definitions)))
	for i, d := range definitions {
		out = append(binary.AppendUvarint(out, uint64(len(d.Name))), d.Name...)
		out = binary.AppendUvarint(out, uint64(len(d.Refs)))
		for _, ref := range d.Refs {
			n, ok := numbers[ref]
			if !ok {
				return nil, fmt.Errorf("pack: %s refers to %s, which is not there", d.Name, ref)
			}
			out = binary.AppendUvarint(out, uint64(n))
		}
		for _, p := range places[i] {
			for _, n := range []uint32{p.block, p.at, p.size} {
				out = binary.AppendUvarint(out, uint64(n))
			}
		}
	}
	out = append(append(binary.AppendUvarint(out, uint64(count)), sizes...), blocks...)
	binary.LittleEndian.PutUint64(out, crc64.Checksum(out[checksum:], crc64.MakeTable(crc64.ECMA)))
	return out, nil
}

// byUse returns the order of definitions in blocks, and which packages use each.
func byUse(definitions []Definition, numbers map[string]int) (order []int, users []string) {
	users = make([]string, len(definitions))
	reached := make([]string, len(definitions)) // by which package last
	var reach func(n int, from string)
	reach = func(n int, from string) {
		if reached[n] == from {
			return
		}
		reached[n] = from
		users[n] += from + " "
		for _, ref := range definitions[n].Refs {
			if next, ok := numbers[ref]; ok {
				reach(next, from)
			}
		}
	}
	for n, d := range definitions {
		order = append(order, n)
		if d.Root {
			reach(n, Of(d.Name))
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(users[a], users[b]) })
	return order, users
}

// Pack is a pack that can be read, by several at the same time.
type Pack struct {
	entries []entry
	refs    []uint16
	blocks  []block
}

// entry is a definition.
type entry struct {
	name string
	// refs are from where those of the definition before end.
	refsEnd int
	places  [forms]place
}

type place struct{ block, at, size uint32 }

// block has its text compressed.
type block struct {
	packed string
	size   int
}

var errShort = errors.New("pack: it is cut short")

// Open returns a pack, which refers to data.
func Open(data string) (*Pack, error) {
	if len(data) < checksum {
		return nil, errShort
	}
	r := reader{rest: data[checksum:]}
	p := &Pack{entries: make([]entry, r.count())}
	for i := range p.entries {
		e := &p.entries[i]
		e.name = r.bytes(r.number())
		for range r.count() {
			p.refs = append(p.refs, uint16(r.number()))
		}
		e.refsEnd = len(p.refs)
		for form := range e.places {
			e.places[form] = place{uint32(r.number()), uint32(r.number()), uint32(r.number())}
		}
	}
	p.blocks = make([]block, r.count())
	packed := make([]int, len(p.blocks))
	for i := range p.blocks {
		packed[i], p.blocks[i].size = r.number(), r.number()
	}
	for i := range p.blocks {
		b := &p.blocks[i]
		if b.packed = r.bytes(packed[i]); b.size > maxText {
			return nil, fmt.Errorf("pack: a block of %d bytes", b.size)
		}
	}
	if r.failed || r.rest != "" || !p.sound() {
		return nil, errShort
	}
	return p, nil
}

// sound reports whether all that the index refers to is there.
func (p *Pack) sound() bool {
	for _, e := range p.entries {
		for _, at := range e.places {
			if int(at.block) >= len(p.blocks) || int(at.at)+int(at.size) > p.blocks[at.block].size {
				return false
			}
		}
	}
	return !slices.ContainsFunc(p.refs, func(n uint16) bool { return int(n) >= len(p.entries) })
}

// Sum identifies the content of a pack.
func Sum(data string) string { return data[:min(checksum, len(data))] }

// reader reads an index.
type reader struct {
	rest   string
	failed bool
}

// number returns the next number, which is less than 1<<32.
func (r *reader) number() (n int) {
	for i := 0; i < len(r.rest) && i < 5; i++ {
		if n |= int(r.rest[i]&0x7f) << (7 * i); r.rest[i] < 0x80 {
			r.rest = r.rest[i+1:]
			return n
		}
	}
	r.failed = true
	return 0
}

// count returns a number of things, each of which takes a byte at least.
func (r *reader) count() int {
	n := r.number()
	if n > len(r.rest) {
		r.failed = true
		return 0
	}
	return n
}

func (r *reader) bytes(n int) (s string) {
	if n > len(r.rest) {
		r.failed = true
		return ""
	}
	s, r.rest = r.rest[:n], r.rest[n:]
	return s
}

// Find returns the number of a definition; false if there is none of the name.
func (p *Pack) Find(name string) (int, bool) {
	return slices.BinarySearchFunc(p.entries, name, func(e entry, name string) int { return cmp.Compare(e.name, name) })
}

// Len returns how many definitions there are.
func (p *Pack) Len() int { return len(p.entries) }

// Name returns the name of a definition.
func (p *Pack) Name(n int) string { return p.entries[n].name }

// Size returns how long a definition is in a form.
func (p *Pack) Size(n int, form Form) int { return int(p.entries[n].places[form].size) }

// Refs returns the numbers of the definitions that one refers to.
func (p *Pack) Refs(n int) []uint16 {
	begin := 0
	if n > 0 {
		begin = p.entries[n-1].refsEnd
	}
	return p.refs[begin:p.entries[n].refsEnd]
}

// Reader reads texts. It keeps all blocks that it has inflated, and is for one user at
// a time.
type Reader struct {
	pack     *Pack
	inflated map[uint32][]byte
}

// NewReader returns a reader.
func (p *Pack) NewReader() *Reader { return &Reader{pack: p, inflated: map[uint32][]byte{}} }

// Text returns a definition in a form. It must not be changed.
func (r *Reader) Text(n int, form Form) ([]byte, error) {
	at := r.pack.entries[n].places[form]
	text, ok := r.inflated[at.block]
	if !ok {
		b := r.pack.blocks[at.block]
		packed := []byte(b.packed)
		size, err := s2.DecodedLen(packed)
		if err == nil && size != b.size {
			err = errShort
		}
		if err == nil {
			text, err = s2.Decode(make([]byte, size), packed)
		}
		if err != nil {
			return nil, fmt.Errorf("pack: block %d: %w", at.block, err)
		}
		r.inflated[at.block] = text
	}
	return text[at.at : at.at+at.size : at.at+at.size], nil
}
