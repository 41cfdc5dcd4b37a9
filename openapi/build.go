package openapi

import (
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/apikeel/kelson/openapi/internal/pack"
)

// document is one document in its formats (JSON, protobuf).
type document struct {
	part        part
	json, proto lazy
	// sources that it is made from, nil if they are not known yet; before are
	// those of the document in whose place it came.
	sources, before atomic.Pointer[[]*source]
}

// succeed takes over the bodies of an older document whose pieces can be reused.
func (d *document) succeed(old *document) {
	d.json.old.Store(old.json.newest())
	d.proto.old.Store(old.proto.newest())
	if before := old.sources.Load(); before != nil {
		d.before.Store(before)
	} else {
		d.before.Store(old.before.Load())
	}
}

// lazy is a body that is built on first use, with the pieces of an older one. An error
// is not kept.
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

// builder builds a body from beginning to end.
type builder struct {
	h    *Handler
	l    *library
	old  map[fingerprint]*piece
	body *body
	// text so far; nil if it is too long, or has pieces that were made before. Then
	// those that are made are written in scratch.
	text, scratch []byte
	// kind is what the pieces depend on besides their sources.
	kind string
}

func (h *Handler) newBuilder(l *library, old *body, kind string) *builder {
	another := h.newLibrary
	if l.two {
		another = h.newLibrary2
	}
	b := &builder{h: h, l: l, kind: kind, text: []byte{}, body: &body{library: another, pieces: map[fingerprint]*piece{}, made: time.Now()}}
	if old != nil {
		b.old = old.pieces
	}
	return b
}

// expect allocates space for paths and definitions.
func (b *builder) expect(entries []entry, usualPath int, definitions []definition, form pack.Form) {
	size := len(entries) * usualPath
	for _, d := range definitions {
		if d.number >= 0 {
			size += b.l.pack.Size(d.number, form) + len(d.name) + len(`"":,`)
		} else {
			size += usualDefinition
		}
	}
	if b.text = nil; size <= maxPlain {
		b.text = make([]byte, 0, size)
	}
}

// glue appends bytes that belong to no piece.
func (b *builder) glue(text string) {
	b.body.add(segment{glue: []byte(text)})
	if b.text != nil {
		b.text = append(b.text, text...)
	}
}

// hole is a position in a body for bytes that are known later.
type hole struct{ segment, at int }

func (b *builder) hole() hole {
	b.body.segments = append(b.body.segments, segment{})
	return hole{len(b.body.segments) - 1, len(b.text)}
}

// fill fills the last empty hole.
func (b *builder) fill(h hole, glue []byte) {
	b.body.segments[h.segment].glue = glue
	b.body.size += len(glue)
	if b.text != nil {
		b.text = slices.Insert(b.text, h.at, glue...)
	}
}

// render appends the text of a piece, and returns the parameters that it refers to.
type render func(out []byte, l *library) ([]byte, []string, error)

// piece appends the piece that is made from something, and renders it if it does not
// exist yet. Unless it is to be kept it is rendered again when it is needed, so render
// must not refer to more than that takes.
func (b *builder) piece(from fingerprint, keep bool, render render) (*piece, error) {
	p := b.old[from]
	if p != nil {
		b.text = nil
	} else {
		out := b.text
		if out == nil {
			out = b.scratch[:0]
		}
		begin := len(out)
		all, shared, err := render(out, b.l)
		if err != nil {
			return nil, err
		}
		text := all[begin:]
		p = &piece{size: len(text), shared: shared}
		if keep || b.l.two {
			p.says = sha256.Sum256(text)
		}
		if keep {
			p.pack(&b.l.buf, text)
		} else {
			p.again = func(out []byte, l *library) ([]byte, error) {
				text, _, err := render(out, l)
				return text, err
			}
		}
		if b.text != nil {
			b.text = all
		} else {
			b.scratch = all
		}
	}
	b.body.pieces[from] = p
	b.body.add(segment{piece: p})
	if b.body.size > maxPlain {
		b.text = nil
	}
	return p, nil
}

// done returns the body. If everything in it is new, its text is kept too.
func (b *builder) done() *body {
	if b.text != nil {
		b.body.kept = weak.Make(&b.text)
	}
	return b.body
}

// recode appends pieces of objects in another format. encode gets an object.
func (b *builder) recode(from *body, pieces []*piece, encode func(text []byte) ([]byte, error)) error {
	t := from.text()
	for _, from := range pieces {
		_, err := b.piece(from.says, true, func(out []byte, _ *library) ([]byte, []string, error) {
			text, err := t.read(from)
			if err != nil {
				return nil, nil, err
			}
			made, err := encode(slices.Concat([]byte{'{'}, text, []byte{'}'}))
			return append(out, made...), nil, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// renderPaths appends the text of paths; those whose entries have one are empty.
type renderPaths func(out []byte, l *library, paths []path, entries []entry) ([]byte, []string, error)

// paths appends the paths, with something between pieces.
func (b *builder) paths(entries []entry, between string, render renderPaths) ([]*piece, error) {
	runs := divide(entries, pathsInPiece, func(e entry) string { return e.at }, func(a, b entry) bool { return a.isCustom() != b.isCustom() })
	pieces := make([]*piece, 0, len(runs))
	options := b.h.options()
	for i, run := range runs {
		if i > 0 && between != "" {
			b.glue(between)
		}
		id := identity{kind: b.kind + "paths"}
		// All those of version 2 may be too long to be kept as a text.
		keep := b.l.two && run[0].isCustom()
		for _, e := range run {
			if e.from == nil {
				id.addText(e.at, e.text)
				keep = true
			} else {
				id.add(e.at, e.from.id)
			}
		}
		run = slices.Clone(run)
		p, err := b.piece(id.sum(), keep, func(out []byte, l *library) ([]byte, []string, error) {
			found := make([]path, len(run))
			for i, e := range run {
				if e.from == nil {
					continue
				}
				all := l.pathsOf(e.from, options, e.at)
				at := slices.IndexFunc(all, func(p path) bool { return p.path == e.at })
				found[i] = all[at]
			}
			return render(out, l, found, run)
		})
		if err != nil {
			return nil, err
		}
		pieces = append(pieces, p)
	}
	return pieces, nil
}

// renderDefinition appends the i-th definition of a piece.
type renderDefinition func(out []byte, l *library, d definition, i int) ([]byte, error)

// definitions appends the definitions, with something between pieces.
func (b *builder) definitions(all []definition, between string, render renderDefinition) ([]*piece, error) {
	runs := divide(all, definitionsInPiece, func(d definition) string { return d.name }, func(a, b definition) bool { return (a.from == nil) != (b.from == nil) })
	pieces := make([]*piece, 0, len(runs))
	for i, run := range runs {
		if i > 0 && between != "" {
			b.glue(between)
		}
		id := identity{kind: b.kind + "definitions"}
		keep := false
		for _, d := range run {
			switch {
			case d.text != nil:
				id.addText(d.name, d.text)
			case d.from != nil:
				id.add(d.name, d.from.id)
			default:
				id.add(d.name, 0)
			}
			keep = keep || d.text != nil || d.from != nil
		}
		run = slices.Clone(run)
		p, err := b.piece(id.sum(), keep, func(out []byte, l *library) (_ []byte, _ []string, err error) {
			for i, d := range run {
				if out, err = render(out, l, d, i); err != nil {
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

// json returns a definition in JSON, for the version of the library.
func (d definition) json(l *library) ([]byte, error) {
	if d.text != nil {
		return d.text, nil
	}
	text, err := l.get(d.name)
	if text == nil && err == nil {
		text = l.unknown()
	}
	if d.from != nil && d.from.isCustom() {
		delete(l.made, d.name) // it is not needed again, and there may be many
	}
	return text, err
}

// How many bytes a path usually takes, and a definition that is not generated.
const usualPath3, usualPath2, usualDefinition = 8 << 10, 2 << 10, 4 << 10

// json3 returns a document of version 3 in JSON.
func (h *Handler) json3(d *document, open func() *library) (*body, error) {
	return d.json.get(func(old *body) (*body, error) {
		if built := h.findBuilt(&d.part); built >= 0 {
			return built.body()
		}
		return h.buildJSON3(d, old, open)
	})
}

func (h *Handler) buildJSON3(d *document, old *body, open func() *library) (*body, error) {
	h.building.Lock()
	defer h.building.Unlock()
	l := open()
	clear(l.paths)
	b := h.newBuilder(l, old, d.part.kind())
	sources := h.sourcesOf(d, l)
	entries := entriesOf(sources)
	names, err := h.definitionsOf(sources, l)
	if err != nil {
		return nil, err
	}
	b.expect(entries, usualPath3, names, pack.V3)
	b.glue(`{"openapi":"3.0.0","info":` + string(h.info(d.part.custom())) + `,"paths":{`)
	if _, err := b.paths(entries, ",", func(out []byte, l *library, paths []path, _ []entry) ([]byte, []string, error) {
		for i, p := range paths {
			out = l.paths3.appendPath(separator(out, i), p)
		}
		return out, nil, nil
	}); err != nil {
		return nil, err
	}
	begin, end := `"schemas":{`, `},`
	if len(names) == 0 { // of a route to a string
		begin, end = "", ""
	}
	b.glue(`},"components":{` + begin)
	scope := d.part.scope()
	if _, err := b.definitions(names, ",", func(out []byte, l *library, d definition, i int) ([]byte, error) {
		text, err := d.json(l)
		if err == nil {
			text, err = scope.complete(d.name, text, l)
		}
		out = append(appendText(separator(out, i), d.name), ':')
		return append(out, text...), err
	}); err != nil {
		return nil, err
	}
	if d.part.custom() {
		b.glue(`}}}`)
	} else {
		b.glue(end + `"securitySchemes":{"BearerToken":` + security3 + `}}}`)
	}
	made := b.done()
	made.hash, err = made.textHash()
	return made, err
}

// textHash returns the hash of the text, which is what kube-apiserver has. For a
// text so long that this would be most of the work, it is made of its pieces.
func (b *body) textHash() (string, error) {
	if b.size > maxPlain {
		return b.piecesHash()
	}
	b.keeping.Lock()
	defer b.keeping.Unlock()
	text, err := b.whole()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%X", sha512.Sum512(*text)), nil
}

// json2 returns the document of version 2 in JSON.
func (h *Handler) json2(s *state) (*body, error) {
	return s.whole.json.get(func(old *body) (*body, error) {
		h.building.Lock()
		defer h.building.Unlock()
		b := h.newBuilder(h.newLibrary2(), old, "")
		b.l.paths2.shared = h.shared
		c, err := h.content2(s, b.l)
		if err != nil {
			return nil, err
		}
		b.expect(c.entries, usualPath2, c.definitions, pack.V2)
		b.glue(`{"swagger":"2.0","info":` + string(h.info(false)) + `,"paths":{`)
		if b.body.paths, err = b.paths(c.entries, ",", appendPaths2); err != nil {
			return nil, err
		}
		b.glue(`},"definitions":{`)
		if b.body.definitions, err = b.definitions(c.definitions, ",", func(out []byte, l *library, d definition, i int) ([]byte, error) {
			text, err := d.json(l)
			out = append(appendPlain(separator(out, i), d.name), ':')
			return append(out, text...), err
		}); err != nil {
			return nil, err
		}
		b.body.parameters = h.sharedBy(b.body.paths, c.parameters)
		b.glue(`},"parameters":` + string(b.body.parameters) + `,"securityDefinitions":{"BearerToken":` + security2 + `},"security":[{"BearerToken":[]}]}`)
		// It need not be that of the text, which takes a while to make.
		b.body.hash, err = b.body.piecesHash()
		return b.done(), err
	})
}

// piecesHash identifies the text without being its hash.
func (b *body) piecesHash() (string, error) {
	hash := sha512.New()
	t := b.text()
	for _, s := range b.segments {
		if s.piece == nil {
			hash.Write(s.glue)
			continue
		}
		says := s.piece.says
		if says == (fingerprint{}) {
			text, err := t.read(s.piece)
			if err != nil {
				return "", err
			}
			says = sha256.Sum256(text)
		}
		hash.Write(says[:])
	}
	return fmt.Sprintf("%X", hash.Sum(nil)), nil
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
		sources = append(sources, h.sourcesOf(s.documents[name], l)...)
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
