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
func (h *Handler) proto3(d *document, hash string) (*body, error) {
	return d.proto.get(func(old *body) (*body, error) {
		h.building.Lock()
		defer h.building.Unlock()
		b := h.newBuilder(newLibrary(), old, d.part.kind())
		sources := h.sourcesOf(d)
		w := writer3{parameters: map[parameter][]byte{}}
		paths, err := b.paths(entriesOf(sources), func(paths []path, _ []entry) ([]byte, []string, error) {
			text := []byte{'{'}
			for i, p := range paths {
				text = w.appendPath(separator(text, i), p)
			}
			out, err := message(append(text, '}'), openapiv3.NewPaths)
			return out, nil, err
		})
		if err != nil {
			return nil, err
		}
		names, err := h.definitionsOf(sources, b.l)
		if err != nil {
			return nil, err
		}
		definitions, err := b.definitions(names, func(out []byte, found *pack.Definition, _ int) (_ []byte, err error) {
			found = d.part.scoped(found)
			if found.V3Proto == nil {
				if found.V3Proto, err = schemaProto3(found.Name, found.V3); err != nil {
					return nil, err
				}
			}
			return appendField(out, fieldProperty, found.V3Proto), nil
		})
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
		schemas := appendLength(nil, fieldSchemas3, sizeOf(definitions))
		b.body.glue(appendLength(head, fieldPaths3, sizeOf(paths)))
		b.body.join(paths, "")
		b.body.glue(append(appendLength(nil, fieldComponents3, len(schemas)+sizeOf(definitions)+len(components)), schemas...))
		b.body.join(definitions, "")
		b.body.glue(components)
		b.body.hash = hash
		return b.body, nil
	})
}

// proto2 returns the document of version 2 in protobuf. It is made from the one in
// JSON, piece by piece.
func (h *Handler) proto2(s *state, from *body) (*body, error) {
	return s.whole.proto.get(func(old *body) (*body, error) {
		h.building.Lock()
		defer h.building.Unlock()
		q := newQuick()
		b := h.newBuilder(newLibrary2(), old, "")
		paths, err := b.recode(from.paths, func(text []byte) ([]byte, error) {
			if out, ok := q.encode(q.paths, text); ok {
				return out, nil
			}
			return message(text, openapiv2.NewPaths)
		})
		if err != nil {
			return nil, err
		}
		definitions, err := b.recode(from.definitions, func(text []byte) ([]byte, error) {
			if out, ok := q.encode(q.definitions, text); ok {
				return out, nil
			}
			return message(text, openapiv2.NewDefinitions)
		})
		if err != nil {
			return nil, err
		}

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
		b.body.glue(appendLength(head, fieldPaths2, sizeOf(paths)))
		b.body.join(paths, "")
		b.body.glue(appendLength(nil, fieldDefinitions2, sizeOf(definitions)))
		b.body.join(definitions, "")
		b.body.glue(tail)
		b.body.hash = from.hash
		return b.body, nil
	})
}

// appendLength begins a field of a size.
func appendLength(b []byte, number protowire.Number, size int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.BytesType), uint64(size))
}

func sizeOf(pieces []*piece) (size int) {
	for _, p := range pieces {
		size += p.Size
	}
	return size
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
