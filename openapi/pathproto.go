package openapi

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/google/gnostic-models/compiler"
	"google.golang.org/protobuf/encoding/protowire"
)

// protoWriter3 writes the paths of documents of version 3 in protobuf, as the
// models would from what writer3 writes: reading that would take ten times as long.
// The numbers are those of the fields.
type protoWriter3 struct {
	parameters map[parameter][]byte
	// values are extensions in YAML, by what they are in JSON.
	values map[string][]byte
}

// Fields that messages have in common.
const (
	protoName  = 1 // of those with a name
	protoValue = 2
	protoThis  = 1 // of those that are something or a reference
	protoOther = 2
)

// appendPath appends a path to the content of a message Paths.
func (w *protoWriter3) appendPath(b []byte, p path) []byte {
	return within(b, 1, func(b []byte) []byte {
		b = protoText(b, protoName, p.path)
		return within(b, protoValue, func(b []byte) []byte {
			for _, op := range p.operations {
				b = within(b, protowire.Number(4+slices.Index(methods, op.method)), func(b []byte) []byte { return w.appendOperation(b, op) })
			}
			return w.appendParameters(b, 13, p.common)
		})
	})
}

func (w *protoWriter3) appendOperation(b []byte, op operation) []byte {
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), op.tag)
	b = protoText(protoText(b, 3, op.description), 5, op.id)
	b = w.appendParameters(b, 6, op.parameters)
	if op.body != "" {
		b = within(b, 7, func(b []byte) []byte {
			return within(b, protoThis, func(b []byte) []byte { // RequestBody
				return protoFlag(w.appendContent(b, 2, op.consumes, op.body), 3, op.bodyNeeded)
			})
		})
	}
	response := func(b []byte, code int, content func(b []byte) []byte) []byte {
		return within(b, 2, func(b []byte) []byte {
			b = protoText(b, protoName, strconv.Itoa(code))
			return within(b, protoValue, func(b []byte) []byte {
				return within(b, protoThis, func(b []byte) []byte { return content(protoText(b, 1, http.StatusText(code))) })
			})
		})
	}
	b = within(b, 8, func(b []byte) []byte {
		for _, r := range op.responses {
			b = response(b, r.code, func(b []byte) []byte { return w.appendContent(b, 3, op.produces, r.definition) })
		}
		return response(b, http.StatusUnauthorized, func(b []byte) []byte { return b })
	})
	if op.action == "" {
		return b
	}
	b = w.appendExtension(b, "x-kubernetes-action", appendText(nil, op.action))
	return w.appendExtension(b, gvkExtension, appendKind3(nil, op.kind))
}

func (w *protoWriter3) appendExtension(b []byte, name string, value []byte) []byte {
	text, ok := w.values[string(value)]
	if !ok {
		n, _ := (&nodeParser{text: value}).node() // it has just been written
		text = compiler.Marshal(n)
		w.values[string(value)] = text
	}
	return within(b, 13, func(b []byte) []byte {
		b = protoText(b, protoName, name)
		return within(b, protoValue, func(b []byte) []byte { return protoText(b, yamlInAny, string(text)) })
	})
}

// appendContent appends a field with what is sent in media types.
func (w *protoWriter3) appendContent(b []byte, number protowire.Number, types []string, definition string) []byte {
	return within(b, number, func(b []byte) []byte {
		for _, t := range slices.Sorted(slices.Values(types)) {
			b = within(b, 1, func(b []byte) []byte {
				b = protoText(b, protoName, t)
				return within(b, protoValue, func(b []byte) []byte {
					return within(b, 1, func(b []byte) []byte { // MediaType
						if definition == "" {
							return within(b, protoThis, func(b []byte) []byte { return protoText(b, 25, "string") })
						}
						return within(b, protoOther, func(b []byte) []byte { return protoText(b, 1, referencePrefix+definition) })
					})
				})
			})
		}
		return b
	})
}

func (w *protoWriter3) appendParameters(b []byte, number protowire.Number, parameters []parameter) []byte {
	for _, p := range parameters {
		made, ok := w.parameters[p]
		if !ok {
			made = within(nil, protoThis, func(b []byte) []byte {
				b = protoText(protoText(protoText(b, 1, p.name), 2, p.in), 3, p.description)
				return within(protoFlag(b, 4, p.required), 10, func(b []byte) []byte {
					return within(b, protoThis, func(b []byte) []byte { return protoText(protoFlag(b, 20, true), 25, p.kind) })
				})
			})
			w.parameters[p] = made
		}
		b = appendField(b, number, made)
	}
	return b
}

// protoText appends a text unless it is empty, and protoFlag what is true.
func protoText(b []byte, number protowire.Number, text string) []byte {
	if text == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), text)
}

func protoFlag(b []byte, number protowire.Number, flag bool) []byte {
	if !flag {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), 1)
}
