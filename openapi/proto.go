package openapi

import (
	"fmt"

	openapiv2 "github.com/google/gnostic-models/openapiv2"
	openapiv3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/google/gnostic-models/compiler"
	yaml "go.yaml.in/yaml/v3"

	"github.com/apikeel/kelson/openapi/internal/pack"
)

// Documents in protobuf are put together like those in JSON, since a message may be
// written field by field.

// Numbers of fields in the messages of the two versions.
const (
	fieldPaths3       = 4 // Document
	fieldComponents3  = 5
	fieldSchemas3     = 1 // Components
	fieldPaths2       = 8 // Document
	fieldDefinitions2 = 9
	fieldProperty     = 1 // SchemasOrReferences
)

func appendField(b []byte, number protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), message)
}

// proto3 returns a document of version 3 in protobuf.
func (h *Handler) proto3(d *document) (*body, error) {
	return d.proto.get(func(old *body) (*body, error) {
		hash, err := h.hash3(d, h.newLibrary)
		if err != nil {
			return nil, err
		}
		h.building.Lock()
		defer h.building.Unlock()
		b := h.newBuilder(h.newLibrary(), old, d.part.kind())
		sources := h.sourcesOf(d, b.l)
		entries := entriesOf(sources)
		names, err := h.definitionsOf(sources, b.l)
		if err != nil {
			return nil, err
		}
		security := `"components":{"securitySchemes":{"BearerToken":` + security3 + `}}`
		if d.part.custom() {
			security = `"components":{}`
		}
		text := append([]byte(`{"openapi":"3.0.0","info":`), h.info(d.part.custom())...)
		frame, err := parse(append(text, `,"paths":{},`+security+`}`...), openapiv3.NewDocument)
		if err != nil {
			return nil, err
		}
		components, err := proto.Marshal(frame.Components)
		if err != nil {
			return nil, err
		}
		frame.Paths, frame.Components = nil, nil
		head, err := proto.Marshal(frame)
		if err != nil {
			return nil, err
		}

		b.expect(entries, usualPath3, names, pack.V3Proto)
		before, begin := b.hole(), b.body.size
		if _, err := b.paths(entries, "", func(out []byte, l *library, paths []path, _ []entry) ([]byte, []string, error) {
			for _, p := range paths {
				out = l.paths3Proto.appendPath(out, p)
			}
			return out, nil, nil
		}); err != nil {
			return nil, err
		}
		b.fill(before, appendLength(head, fieldPaths3, b.body.size-begin))
		before, begin = b.hole(), b.body.size
		scope := d.part.scope()
		if _, err := b.definitions(names, "", func(out []byte, l *library, d definition, _ int) ([]byte, error) {
			var made []byte
			var err error
			if d.number >= 0 && !pack.Everywhere(d.name) && !l.noEnums {
				made, err = l.texts.Text(d.number, pack.V3Proto)
			} else if made, err = d.json(l); err == nil {
				if made, err = scope.complete(d.name, made, l); err == nil {
					made, err = schemaProto3(d.name, made)
				}
			}
			return appendField(out, fieldProperty, made), err
		}); err != nil {
			return nil, err
		}
		size := b.body.size - begin
		var schemas []byte
		if len(names) > 0 {
			schemas = appendLength(nil, fieldSchemas3, size)
		}
		b.fill(before, append(appendLength(nil, fieldComponents3, len(schemas)+size+len(components)), schemas...))
		b.glue(string(components))
		b.body.hash = hash
		return b.done(), nil
	})
}

// proto2 returns the document of version 2 in protobuf. It is made from the one in
// JSON, piece by piece.
func (h *Handler) proto2(s *state, from *body) (*body, error) {
	return s.whole.proto.get(func(old *body) (*body, error) {
		h.building.Lock()
		defer h.building.Unlock()
		q := newQuick()
		b := h.newBuilder(h.newLibrary2(), old, "")
		first, err := parse(append(append([]byte(`{"swagger":"2.0","info":`), h.info(false)...), `,"paths":{}}`...), openapiv2.NewDocument)
		if err != nil {
			return nil, err
		}
		first.Paths = nil
		head, err := proto.Marshal(first)
		if err != nil {
			return nil, err
		}
		rest := append([]byte(`{"swagger":"2.0","info":{"title":"","version":""},"paths":{},"parameters":`), from.parameters...)
		last, err := parse(append(rest, `,"securityDefinitions":{"BearerToken":`+security2+`},"security":[{"BearerToken":[]}]}`...), openapiv2.NewDocument)
		if err != nil {
			return nil, err
		}
		last.Swagger, last.Info, last.Paths = "", nil, nil
		tail, err := proto.Marshal(last)
		if err != nil {
			return nil, err
		}
		before, begin := b.hole(), b.body.size
		if err := b.recode(from, from.paths, func(text []byte) ([]byte, error) {
			if out, ok := q.encode(q.paths, text); ok {
				return out, nil
			}
			return message(text, openapiv2.NewPaths)
		}); err != nil {
			return nil, err
		}
		b.fill(before, appendLength(head, fieldPaths2, b.body.size-begin))
		before, begin = b.hole(), b.body.size
		if err := b.recode(from, from.definitions, func(text []byte) ([]byte, error) {
			if out, ok := q.encode(q.definitions, text); ok {
				return out, nil
			}
			return message(text, openapiv2.NewDefinitions)
		}); err != nil {
			return nil, err
		}
		b.fill(before, appendLength(nil, fieldDefinitions2, b.body.size-begin))
		b.glue(string(tail))
		b.body.hash = from.hash
		return b.done(), nil
	})
}

// appendLength begins a field of a size.
func appendLength(b []byte, number protowire.Number, size int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.BytesType), uint64(size))
}

// message returns the message that JSON stands for.
func message[M proto.Message](text []byte, read func(*yaml.Node, *compiler.Context) (M, error)) ([]byte, error) {
	m, err := parse(text, read)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(m)
}

// schemaProto3 makes the message that packs have ready.
func schemaProto3(name string, schema []byte) ([]byte, error) {
	s, err := parse(schema, openapiv3.NewSchemaOrReference)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&openapiv3.NamedSchemaOrReference{Name: name, Value: s})
}

// parse reads JSON into a message of the OpenAPI models. They read YAML, for
// which JSON is easy: it takes a tenth of the time to make its nodes directly.
func parse[M any](text []byte, read func(*yaml.Node, *compiler.Context) (M, error)) (M, error) {
	var none M
	p := nodeParser{text: text}
	n, ok := p.node()
	if !ok {
		return none, fmt.Errorf("openapi: not JSON at byte %d", p.at)
	}
	return read(n, compiler.NewContext("$root", n, nil))
}
