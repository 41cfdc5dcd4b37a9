package openapi

import (
	"bytes"
	"crypto/sha512"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/apikeel/kelson/openapi/internal/pack"
)

// document is a document in its formats.
type document struct {
	part        part
	json, proto lazy
	// sources that it is made from, nil if they are not known yet; before are
	// those of the document in whose place it came.
	sources, before atomic.Pointer[[]*source]
}

// succeed takes over from a document what may still be of use.
func (d *document) succeed(old *document) {
	d.json.old.Store(old.json.newest())
	d.proto.old.Store(old.proto.newest())
	if before := old.sources.Load(); before != nil {
		d.before.Store(before)
	} else {
		d.before.Store(old.before.Load())
	}
}

// lazy is a body that is made when it is first wanted, with the pieces of an
// older one. An error is not kept.
type lazy struct {
	mu        sync.Mutex
	done, old atomic.Pointer[body]
}

func (l *lazy) newest() *body {
	if b := l.done.Load(); b != nil {
		return b
	}
	return l.old.Load()
}

func (l *lazy) get(build func(old *body) (*body, error)) (*body, error) {
	if b := l.done.Load(); b != nil {
		return b, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.done.Load(); b != nil {
		return b, nil
	}
	b, err := build(l.old.Load())
	if err != nil {
		return nil, err
	}
	l.done.Store(b)
	l.old.Store(nil)
	return b, nil
}

// maxPlain is the size up to which the text of a document is kept as long as
// there is memory.
const maxPlain = 16 << 20

// plain returns the text. If it is read often, it is not inflated every time:
// until the garbage collector wants its memory, it stays.
func (b *body) plain() io.ReadSeeker {
	if b.sum.Size > maxPlain {
		return b.text()
	}
	b.keeping.Lock()
	defer b.keeping.Unlock()
	if kept := b.kept.Value(); kept != nil {
		return bytes.NewReader(*kept)
	}
	data := make([]byte, b.sum.Size)
	if _, err := io.ReadFull(b.text(), data); err != nil {
		return b.text() // who reads it is told
	}
	b.kept = weak.Make(&data)
	return bytes.NewReader(data)
}

// builder makes a body.
type builder struct {
	h    *Handler
	l    *library
	old  map[fingerprint]*piece
	body *body
	// kind is what the pieces depend on besides their sources.
	kind string
}

func (h *Handler) newBuilder(l *library, old *body, kind string) *builder {
	b := &builder{h: h, l: l, kind: kind, body: &body{pieces: map[fingerprint]*piece{}, made: time.Now()}}
	if old != nil {
		b.old = old.pieces
	}
	return b
}

// piece returns the piece that is made from something, if there is none yet by
// making it.
func (b *builder) piece(from fingerprint, render func() ([]byte, []string, error)) (*piece, error) {
	p := b.old[from]
	if p == nil {
		text, shared, err := render()
		if err != nil {
			return nil, err
		}
		p = compress(&b.l.buf, text, shared)
	}
	b.body.pieces[from] = p
	return p, nil
}

// recode returns pieces of objects in another format. encode gets an object.
func (b *builder) recode(pieces []*piece, encode func(text []byte) ([]byte, error)) ([]*piece, error) {
	var t text
	out := make([]*piece, len(pieces))
	for i, from := range pieces {
		p, err := b.piece(from.says, func() ([]byte, []string, error) {
			if err := t.inflate(from); err != nil {
				return nil, nil, err
			}
			made, err := encode(slices.Concat([]byte{'{'}, t.current, []byte{'}'}))
			return made, nil, err
		})
		if err != nil {
			return nil, err
		}
		out[i] = p
	}
	return out, nil
}

// paths returns the pieces of the paths.
func (b *builder) paths(entries []entry, render func([]path, []entry) ([]byte, []string, error)) ([]*piece, error) {
	runs := divide(entries, pathsInPiece, func(e entry) string { return e.at }, func(a, b entry) bool { return a.isCustom() != b.isCustom() })
	pieces := make([]*piece, 0, len(runs))
	for _, run := range runs {
		id := identity{kind: b.kind + "paths"}
		for _, e := range run {
			if e.from == nil {
				id.addText(e.at, e.text)
			} else {
				id.add(e.at, e.from.id)
			}
		}
		p, err := b.piece(id.sum(), func() ([]byte, []string, error) {
			found := make([]path, len(run))
			for i, e := range run {
				if e.from == nil {
					continue
				}
				all := e.from.paths(b.h.options, e.at)
				at := slices.IndexFunc(all, func(p path) bool { return p.path == e.at })
				found[i] = all[at]
			}
			return render(found, run)
		})
		if err != nil {
			return nil, err
		}
		pieces = append(pieces, p)
	}
	return pieces, nil
}

// definitions returns the pieces of the definitions.
func (b *builder) definitions(all []definition, render func(out []byte, d *pack.Definition, i int) ([]byte, error)) ([]*piece, error) {
	runs := divide(all, definitionsInPiece, func(d definition) string { return d.name }, func(a, b definition) bool { return (a.from == nil) != (b.from == nil) })
	pieces := make([]*piece, 0, len(runs))
	for _, run := range runs {
		id := identity{kind: b.kind + "definitions"}
		for _, d := range run {
			switch {
			case d.text != nil:
				id.addText(d.name, d.text)
			case d.from != nil:
				id.add(d.name, d.from.id)
			default:
				id.add(d.name, 0)
			}
		}
		p, err := b.piece(id.sum(), func() (out []byte, _ []string, err error) {
			for i, d := range run {
				found := &pack.Definition{Name: d.name, V2: d.text}
				if d.text == nil {
					if found, err = b.l.get(d.name); err != nil {
						return nil, nil, err
					}
				}
				if found == nil {
					found = unknown(d.name)
				}
				if out, err = render(out, found, i); err != nil {
					return nil, nil, err
				}
			}
			return out, nil, nil
		})
		if err != nil {
			return nil, err
		}
		pieces = append(pieces, p)
	}
	return pieces, nil
}

// json3 returns a document of version 3 in JSON.
func (h *Handler) json3(d *document, l *library) (*body, error) {
	return d.json.get(func(old *body) (*body, error) {
		h.building.Lock()
		defer h.building.Unlock()
		b := h.newBuilder(l, old, d.part.kind())
		sources := h.sourcesOf(d)
		w := writer3{parameters: map[parameter][]byte{}}
		paths, err := b.paths(entriesOf(sources), func(paths []path, _ []entry) (out []byte, _ []string, _ error) {
			for i, p := range paths {
				out = w.appendPath(separator(out, i), p)
			}
			return out, nil, nil
		})
		if err != nil {
			return nil, err
		}
		names, err := h.definitionsOf(sources, l)
		if err != nil {
			return nil, err
		}
		definitions, err := b.definitions(names, func(out []byte, found *pack.Definition, i int) ([]byte, error) {
			out = append(appendText(separator(out, i), found.Name), ':')
			return append(out, d.part.scoped(found).V3...), nil
		})
		if err != nil {
			return nil, err
		}
		head := append([]byte(`{"openapi":"3.0.0","info":`), h.info(d.part.custom())...)
		b.body.glue(append(head, `,"paths":{`...))
		b.body.join(paths, ",")
		b.body.glue([]byte(`},"components":{"schemas":{`))
		b.body.join(definitions, ",")
		if d.part.custom() {
			b.body.glue([]byte(`}}}`))
		} else {
			b.body.glue([]byte(`},"securitySchemes":{"BearerToken":` + security3 + `}}}`))
		}
		if b.body.hash = h.knownHash(&d.part); b.body.hash == "" {
			b.body.hash, err = b.body.textHash()
		}
		return b.body, err
	})
}

// textHash returns the hash of the text, which is what kube-apiserver has. For a
// text so long that this would be most of the work, it is made of its pieces.
func (b *body) textHash() (string, error) {
	if b.sum.Size > maxPlain {
		return b.piecesHash(), nil
	}
	hash := sha512.New()
	if _, err := io.Copy(hash, b.text()); err != nil {
		return "", err
	}
	return fmt.Sprintf("%X", hash.Sum(nil)), nil
}

// json2 returns the document of version 2 in JSON.
func (h *Handler) json2(s *state) (*body, error) {
	return s.whole.json.get(func(old *body) (*body, error) {
		h.building.Lock()
		defer h.building.Unlock()
		b := h.newBuilder(newLibrary2(), old, "")
		c, err := h.content2(s, b.l)
		if err != nil {
			return nil, err
		}
		w := h.newWriter2()
		paths, err := b.paths(c.entries, w.appendPaths)
		if err != nil {
			return nil, err
		}
		definitions, err := b.definitions(c.definitions, func(out []byte, d *pack.Definition, i int) ([]byte, error) {
			out = append(appendPlain(separator(out, i), d.Name), ':')
			return append(out, d.V2...), nil
		})
		if err != nil {
			return nil, err
		}
		head := append([]byte(`{"swagger":"2.0","info":`), h.info(false)...)
		b.body.glue(append(head, `,"paths":{`...))
		b.body.join(paths, ",")
		b.body.glue([]byte(`},"definitions":{`))
		b.body.join(definitions, ",")
		b.body.paths, b.body.definitions, b.body.parameters = paths, definitions, h.sharedBy(paths, c.parameters)
		b.body.glue(append(append([]byte(`},"parameters":`), b.body.parameters...), `,"securityDefinitions":{"BearerToken":`+security2+`},"security":[{"BearerToken":[]}]}`...))
		// It need not be that of the text, which takes a while to make.
		b.body.hash = b.body.piecesHash()
		return b.body, nil
	})
}

// piecesHash identifies the text without being its hash.
func (b *body) piecesHash() string {
	hash := sha512.New()
	for _, s := range b.segments {
		if s.piece != nil {
			hash.Write(s.piece.says[:])
		} else {
			hash.Write(s.glue)
		}
	}
	return fmt.Sprintf("%X", hash.Sum(nil))
}

// content2 is what the document of version 2 is made from.
type content2 struct {
	entries     []entry
	definitions []definition
	// parameters that are not ours, by name.
	parameters map[string][]byte
}

func (h *Handler) content2(s *state, l *library) (c content2, err error) {
	var sources []*source
	for _, name := range s.order {
		sources = append(sources, h.sourcesOf(s.documents[name])...)
	}
	c.entries = entriesOf(sources)
	if c.definitions, err = h.definitionsOf(sources, l); err == nil && s.remotes.hasV2() {
		err = c.merge(s.remotes, l)
	}
	return c, err
}

// sharedBy returns the parameters that paths refer to, in JSON.
func (h *Handler) sharedBy(paths []*piece, more map[string][]byte) []byte {
	all := maps.Clone(more)
	if all == nil {
		all = map[string][]byte{}
	}
	for _, p := range paths {
		for _, name := range p.shared {
			all[name] = h.shared[name]
		}
	}
	out := []byte{'{'}
	for i, name := range slices.Sorted(maps.Keys(all)) {
		out = append(appendPlain(separator(out, i), name), ':')
		out = append(out, all[name]...)
	}
	return append(out, '}')
}
