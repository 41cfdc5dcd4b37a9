package openapi

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/gnostic-models/compiler"
	yaml "go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protowire"
)

// The OpenAPI models decode a message into structs by trying what it could be, and then
// encode these. Most of a v2 document is simple and can be encoded while it is read,
// which takes a small part of the time. What is not simple is left to the models: quick
// gives up on it.

// shape is how a message is made from an object in JSON.
type shape struct {
	// members by name, and the names that must be there.
	members  map[string]shapeMember
	required []string
	// extensions is the field of what begins with x-; 0 for none.
	extensions protowire.Number
	// entries is the field of all other names, each with a message of a shape; nil
	// for none.
	entries *shapeMember
	// choose returns which of its fields a message has, for those that have one;
	// nil for others. Without a shape it is not known.
	choose func(n *yaml.Node) (protowire.Number, *shape)
}

// shapeMember is a field of a message.
type shapeMember struct {
	number protowire.Number
	kind   memberKind
	of     *shape
}

type memberKind uint8

const (
	isText memberKind = iota
	isTexts
	isFlag
	isCount
	isNumber
	isMessage
	isMessages
	isAny
	isAnys
	isTypes        // a text, or several
	isSchemaOrFlag // additionalProperties
)

// Fields of messages that hold a value and little else.
const (
	valueInNamed    = 2
	yamlInAny       = 2
	flagInSchemaBox = 2
)

// maxMember is more than the number of any field.
const maxMember = 32

// quick encodes messages of version 2.
type quick struct {
	paths, definitions *shape
	// texts are values in YAML, by what they are.
	texts map[string][]byte
	key   []byte
	// unsure is that something was not plain.
	unsure bool
}

func newQuick() *quick {
	q := &quick{texts: map[string][]byte{}}
	text := func(n protowire.Number) shapeMember { return shapeMember{number: n, kind: isText} }
	texts := func(n protowire.Number) shapeMember { return shapeMember{number: n, kind: isTexts} }
	flag := func(n protowire.Number) shapeMember { return shapeMember{number: n, kind: isFlag} }
	count := func(n protowire.Number) shapeMember { return shapeMember{number: n, kind: isCount} }
	number := func(n protowire.Number) shapeMember { return shapeMember{number: n, kind: isNumber} }
	message := func(n protowire.Number, of *shape) shapeMember { return shapeMember{n, isMessage, of} }
	messages := func(n protowire.Number, of *shape) shapeMember { return shapeMember{n, isMessages, of} }

	schema := &shape{extensions: 31}
	schemaAt := func(n protowire.Number) *shape {
		return &shape{choose: func(*yaml.Node) (protowire.Number, *shape) { return n, schema }}
	}
	schema.members = map[string]shapeMember{
		"$ref": text(1), "format": text(2), "title": text(3), "description": text(4), "default": {5, isAny, nil},
		"multipleOf": number(6), "maximum": number(7), "exclusiveMaximum": flag(8), "minimum": number(9), "exclusiveMinimum": flag(10),
		"maxLength": count(11), "minLength": count(12), "pattern": text(13), "maxItems": count(14), "minItems": count(15),
		"uniqueItems": flag(16), "maxProperties": count(17), "minProperties": count(18), "required": texts(19), "enum": {20, isAnys, nil},
		"additionalProperties": {21, isSchemaOrFlag, schema}, "type": {22, isTypes, nil}, "items": message(23, schemaAt(1)),
		"allOf": messages(24, schema), "properties": message(25, &shape{entries: &shapeMember{number: 1, of: schema}}), "readOnly": flag(27),
	}
	reference := &shape{members: map[string]shapeMember{"$ref": text(1), "description": text(2)}, required: []string{"$ref"}}
	// or is a shape, or a reference to one.
	or := func(of *shape) *shape {
		return &shape{choose: func(n *yaml.Node) (protowire.Number, *shape) {
			if memberOf(n, "$ref") != nil {
				return 2, reference
			}
			return 1, of
		}}
	}
	body := &shape{extensions: 6, required: []string{"in", "name", "schema"}, members: map[string]shapeMember{
		"description": text(1), "name": text(2), "in": text(3), "required": flag(4), "schema": message(5, schema)}}
	query := &shape{extensions: 23, required: []string{"in", "name", "type"}, members: map[string]shapeMember{
		"required": flag(1), "in": text(2), "description": text(3), "name": text(4), "type": text(6), "uniqueItems": flag(20)}}
	path := &shape{extensions: 22, required: []string{"in", "name", "type", "required"}, members: map[string]shapeMember{
		"required": flag(1), "in": text(2), "description": text(3), "name": text(4), "type": text(5), "uniqueItems": flag(19)}}
	outsideBody := &shape{choose: func(n *yaml.Node) (protowire.Number, *shape) {
		if !slices.Contains([]string{"string", "number", "boolean", "integer", "array"}, textOf(memberOf(n, "type"))) {
			return 0, nil
		}
		switch textOf(memberOf(n, "in")) {
		case "query":
			return 3, query
		case "path":
			return 4, path
		}
		return 0, nil
	}}
	parameters := or(&shape{choose: func(n *yaml.Node) (protowire.Number, *shape) {
		if textOf(memberOf(n, "in")) == "body" {
			return 1, body
		}
		return 2, outsideBody
	}})
	response := or(&shape{extensions: 5, required: []string{"description"}, members: map[string]shapeMember{
		"description": text(1), "schema": message(2, &shape{choose: func(n *yaml.Node) (protowire.Number, *shape) {
			if textOf(memberOf(n, "type")) == "file" {
				return 0, nil
			}
			return 1, schema
		}})}})
	operation := &shape{extensions: 13, required: []string{"responses"}, members: map[string]shapeMember{
		"tags": texts(1), "summary": text(2), "description": text(3), "operationId": text(5), "produces": texts(6), "consumes": texts(7),
		"parameters": messages(8, parameters), "responses": message(9, &shape{extensions: 2, entries: &shapeMember{number: 1, of: response}}),
		"schemes": texts(10), "deprecated": flag(11)}}
	item := &shape{extensions: 10, members: map[string]shapeMember{
		"get": message(2, operation), "put": message(3, operation), "post": message(4, operation), "delete": message(5, operation),
		"options": message(6, operation), "head": message(7, operation), "patch": message(8, operation), "parameters": messages(9, parameters)}}
	q.definitions, q.paths = &shape{entries: &shapeMember{number: 1, of: schema}}, &shape{extensions: 1, entries: &shapeMember{number: 2, of: item}}
	return q
}

// encode returns the message of a text; false if it is not plain.
func (q *quick) encode(s *shape, text []byte) ([]byte, bool) {
	p := nodeParser{text: text}
	n, ok := p.node()
	if !ok {
		return nil, false
	}
	q.unsure = false
	b := q.message(make([]byte, 0, len(text)), s, n)
	return b, !q.unsure
}

// message appends the content of a message.
func (q *quick) message(b []byte, s *shape, n *yaml.Node) []byte {
	if n.Kind != yaml.MappingNode {
		q.unsure = true
		return b
	}
	if s.choose != nil {
		number, of := s.choose(n)
		if of == nil {
			q.unsure = true
			return b
		}
		return q.nested(b, number, of, n)
	}
	for _, name := range s.required {
		if memberOf(n, name) == nil {
			q.unsure = true
		}
	}
	// Fields have the order of their numbers.
	var found [maxMember]struct {
		shapeMember
		n *yaml.Node
	}
	extended := false
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i].Value
		if m, ok := s.members[name]; ok {
			found[m.number].shapeMember, found[m.number].n = m, n.Content[i+1]
		} else if strings.HasPrefix(name, "x-") && s.extensions != 0 {
			extended = true
		} else if s.entries == nil {
			q.unsure = true
		}
	}
	for number := range found {
		switch number := protowire.Number(number); {
		case number == 0:
		case number == s.extensions && extended:
			b = q.named(b, number, n, nil, func(name string) bool { return strings.HasPrefix(name, "x-") })
		case s.entries != nil && number == s.entries.number:
			b = q.named(b, number, n, s.entries.of, func(name string) bool { return !strings.HasPrefix(name, "x-") || s.extensions == 0 })
		case found[number].n != nil:
			b = q.member(b, found[number].shapeMember, found[number].n)
		}
	}
	return b
}

// named appends members of an object with their names: messages of a shape, or
// any values.
func (q *quick) named(b []byte, number protowire.Number, n *yaml.Node, of *shape, which func(name string) bool) []byte {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if name := n.Content[i].Value; which(name) {
			b = within(b, number, func(b []byte) []byte {
				b = q.text(b, 1, name)
				if of == nil {
					return q.any(b, valueInNamed, n.Content[i+1])
				}
				return q.nested(b, valueInNamed, of, n.Content[i+1])
			})
		}
	}
	return b
}

// member appends a field.
func (q *quick) member(b []byte, m shapeMember, n *yaml.Node) []byte {
	list := func(add func(n *yaml.Node)) {
		q.unsure = q.unsure || n.Kind != yaml.SequenceNode
		for _, item := range n.Content {
			add(item)
		}
	}
	switch m.kind {
	case isText:
		q.unsure = q.unsure || n.Tag != "!!str"
		return q.text(b, m.number, n.Value)
	case isTexts:
		list(func(n *yaml.Node) { b = q.item(b, m.number, n) })
	case isTypes:
		return within(b, m.number, func(b []byte) []byte {
			if n.Kind != yaml.SequenceNode {
				return q.item(b, 1, n)
			}
			for _, item := range n.Content {
				b = q.item(b, 1, item)
			}
			return b
		})
	case isFlag:
		q.unsure = q.unsure || n.Tag != "!!bool"
		return protoFlag(b, m.number, n.Value == "true")
	case isCount:
		v, err := strconv.ParseInt(n.Value, 10, 64)
		q.unsure = q.unsure || n.Tag != "!!int" || err != nil
		if v != 0 {
			b = protowire.AppendVarint(protowire.AppendTag(b, m.number, protowire.VarintType), uint64(v))
		}
	case isNumber:
		v, err := strconv.ParseFloat(n.Value, 64)
		q.unsure = q.unsure || n.Tag != "!!int" && n.Tag != "!!float" || err != nil
		if v != 0 {
			b = protowire.AppendFixed64(protowire.AppendTag(b, m.number, protowire.Fixed64Type), math.Float64bits(v))
		}
	case isMessage:
		return q.nested(b, m.number, m.of, n)
	case isMessages:
		list(func(n *yaml.Node) { b = q.nested(b, m.number, m.of, n) })
	case isAny:
		return q.any(b, m.number, n)
	case isAnys:
		list(func(n *yaml.Node) { b = q.any(b, m.number, n) })
	case isSchemaOrFlag:
		return within(b, m.number, func(b []byte) []byte {
			if n.Tag == "!!bool" {
				return protowire.AppendVarint(protowire.AppendTag(b, flagInSchemaBox, protowire.VarintType), protowire.EncodeBool(n.Value == "true"))
			}
			return q.nested(b, 1, m.of, n)
		})
	}
	return b
}

// text appends a text, unless it is empty; item does in any case.
func (q *quick) text(b []byte, number protowire.Number, text string) []byte {
	q.unsure = q.unsure || !utf8.ValidString(text)
	return protoText(b, number, text)
}

func (q *quick) item(b []byte, number protowire.Number, n *yaml.Node) []byte {
	q.unsure = q.unsure || n.Tag != "!!str" || !utf8.ValidString(n.Value)
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), n.Value)
}

// any appends a value as YAML. Most are there many times.
func (q *quick) any(b []byte, number protowire.Number, n *yaml.Node) []byte {
	q.key = appendNode(q.key[:0], n)
	text, ok := q.texts[string(q.key)]
	if !ok {
		key := string(q.key)
		text = compiler.Marshal(n)
		q.texts[key] = text
	}
	q.unsure = q.unsure || !utf8.Valid(text)
	return within(b, number, func(b []byte) []byte { return q.text(b, yamlInAny, string(text)) })
}

// appendNode appends what a value is.
func appendNode(b []byte, n *yaml.Node) []byte {
	b = append(append(b, n.Tag...), ' ')
	b = strconv.AppendInt(b, int64(len(n.Value)), 10)
	b = append(append(b, ' '), n.Value...)
	b = strconv.AppendInt(b, int64(len(n.Content)), 10)
	for _, c := range n.Content {
		b = appendNode(append(b, ' '), c)
	}
	return b
}

// nested appends a message in a field.
func (q *quick) nested(b []byte, number protowire.Number, s *shape, n *yaml.Node) []byte {
	return within(b, number, func(b []byte) []byte { return q.message(b, s, n) })
}

// within appends a field whose content is written in place: its length comes when
// that is known.
func within(b []byte, number protowire.Number, content func([]byte) []byte) []byte {
	b = append(protowire.AppendTag(b, number, protowire.BytesType), 0)
	start := len(b)
	b = content(b)
	size := len(b) - start
	if more := protowire.SizeVarint(uint64(size)) - 1; more > 0 {
		b = append(b, make([]byte, more)...)
		copy(b[start+more:], b[start:start+size])
	}
	protowire.AppendVarint(b[:start-1], uint64(size))
	return b
}

// memberOf returns a member of an object, nil if it has none.
func memberOf(n *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	return nil
}

// textOf returns a text, "" for what is none.
func textOf(n *yaml.Node) string {
	if n == nil || n.Tag != "!!str" {
		return ""
	}
	return n.Value
}
