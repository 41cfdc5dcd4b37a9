package openapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	openapiv2 "github.com/google/gnostic-models/openapiv2"
	openapiv3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/google/gnostic-models/compiler"
	yaml "go.yaml.in/yaml/v3"
)

// Documents in protobuf are put together like those in JSON: definitions are
// ready, and a message may be written field by field. Only paths are built.

// Numbers of fields in the messages of the two versions.
const (
	fieldPaths3       = 4 // Document
	fieldComponents3  = 5
	fieldSchemas3     = 1 // Components
	fieldPaths2       = 8 // Document
	fieldDefinitions2 = 9
	fieldProperty     = 1 // SchemasOrReferences, Definitions
)

func appendField(b []byte, number protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), message)
}

func (h *Handler) buildProto3(d *document, ofJSON answer) (answer, error) {
	l := newLibrary()
	paths, err := d.part.paths(newParameters(), l)
	if err != nil {
		return answer{}, err
	}
	definitions, err := l.closure(paths)
	if err != nil {
		return answer{}, err
	}
	var schemas []byte
	for _, d := range d.part.scoped(definitions) {
		message := d.V3Proto
		if message == nil {
			if message, err = schemaProto3(d.Name, d.V3); err != nil {
				return answer{}, err
			}
		}
		schemas = appendField(schemas, fieldProperty, message)
	}

	text := append([]byte(`{"openapi":"3.0.0","info":`), h.info()...)
	frame, err := parse(append(text, `,"paths":{},"components":{"securitySchemes":{"BearerToken":`+security3+`}}}`...), openapiv3.NewDocument)
	if err != nil {
		return answer{}, err
	}
	content, err := parse(h.appendPaths3(nil, paths), openapiv3.NewPaths)
	if err != nil {
		return answer{}, err
	}
	components := appendField(nil, fieldSchemas3, schemas)
	if components, err = appendMessage(components, frame.Components); err != nil {
		return answer{}, err
	}
	frame.Paths, frame.Components = nil, nil
	b, err := appendMessage(nil, frame)
	if err != nil {
		return answer{}, err
	}
	message, err := proto.Marshal(content)
	if err != nil {
		return answer{}, err
	}
	b = appendField(b, fieldPaths3, message)
	return l.newAnswer(appendField(b, fieldComponents3, components), ofJSON.hash)
}

func (h *Handler) buildProto2(s *state, ofJSON answer) (answer, error) {
	if s.remotes.hasV2() {
		return mergedProto2(ofJSON)
	}
	paths, l, err := s.allPaths()
	if err != nil {
		return answer{}, err
	}
	definitions, err := l.closure(paths)
	if err != nil {
		return answer{}, err
	}
	var schemas []byte
	for _, d := range definitions {
		message := d.V2Proto
		if message == nil {
			if message, err = schemaProto2(d.Name, d.V2); err != nil {
				return answer{}, err
			}
		}
		schemas = appendField(schemas, fieldProperty, message)
	}

	pathText, shared := h.appendPaths2(nil, paths)
	content, err := parse(pathText, openapiv2.NewPaths)
	if err != nil {
		return answer{}, err
	}
	head := append([]byte(`{"swagger":"2.0","info":`), h.info()...)
	first, err := parse(append(head, `,"paths":{}}`...), openapiv2.NewDocument)
	if err != nil {
		return answer{}, err
	}
	first.Paths = nil
	b, err := appendMessage(nil, first)
	if err != nil {
		return answer{}, err
	}
	message, err := proto.Marshal(content)
	if err != nil {
		return answer{}, err
	}
	b = appendField(b, fieldPaths2, message)
	b = appendField(b, fieldDefinitions2, schemas)

	rest := append([]byte(`{"swagger":"2.0","info":{"title":"","version":""},"paths":{},"parameters":`), shared...)
	last, err := parse(append(rest, `,"securityDefinitions":{"BearerToken":`+security2+`},"security":[{"BearerToken":[]}]}`...), openapiv2.NewDocument)
	if err != nil {
		return answer{}, err
	}
	last.Swagger, last.Info, last.Paths = "", nil, nil
	if b, err = appendMessage(b, last); err != nil {
		return answer{}, err
	}
	return l.newAnswer(b, ofJSON.hash)
}

// mergedProto2 makes the message of a document of which a part is not ready-made.
func mergedProto2(ofJSON answer) (answer, error) {
	text, err := ofJSON.plain()
	if err != nil {
		return answer{}, err
	}
	document, err := parse(text, openapiv2.NewDocument)
	if err != nil {
		return answer{}, err
	}
	b, err := proto.Marshal(document)
	if err != nil {
		return answer{}, err
	}
	return newLibrary().newAnswer(b, ofJSON.hash)
}

func appendMessage(b []byte, m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{}.MarshalAppend(b, m)
}

// schemaProto3 and schemaProto2 make the messages that packs have ready.
func schemaProto3(name string, schema []byte) ([]byte, error) {
	s, err := parse(schema, openapiv3.NewSchemaOrReference)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&openapiv3.NamedSchemaOrReference{Name: name, Value: s})
}

func schemaProto2(name string, schema []byte) ([]byte, error) {
	s, err := parse(schema, openapiv2.NewSchema)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&openapiv2.NamedSchema{Name: name, Value: s})
}

// parse reads JSON into a message of the OpenAPI models. They read YAML, for
// which JSON is easy: it takes a tenth of the time to make its nodes directly.
func parse[M any](text []byte, read func(*yaml.Node, *compiler.Context) (M, error)) (M, error) {
	var none M
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	n, err := node(d)
	if err != nil {
		return none, err
	}
	return read(n, compiler.NewContext("$root", n, nil))
}

func node(d *json.Decoder) (*yaml.Node, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Style: yaml.FlowStyle}
		if t == '[' {
			n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		}
		for d.More() {
			// In an object keys and values take turns.
			child, err := node(d)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, child)
		}
		_, err := d.Token()
		return n, err
	case string:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: t}, nil
	case json.Number:
		tag := "!!int"
		if bytes.ContainsAny([]byte(t), ".eE") {
			tag = "!!float"
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: t.String()}, nil
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: fmt.Sprint(t)}, nil
	case nil:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
	default:
		return nil, io.ErrUnexpectedEOF
	}
}
