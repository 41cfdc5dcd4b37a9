package openapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"hash/fnv"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Documents are written, not marshalled: most of their bytes are ready-made
// definitions, and the rest is the same few shapes a thousand times. The order
// of keys is the one that kube-apiserver writes, so that documents, and with
// them their hashes, are the same.

const (
	refV3 = `{"$ref":"#/components/schemas/`
	refV2 = `{"$ref":"#/definitions/`
)

// separator returns what goes before the i-th element.
func separator(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	return b
}

// isPlain reports whether a string is the same in JSON, between quotes.
func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}

// appendText writes a string as json.Marshal does.
func appendText(b []byte, s string) []byte {
	if isPlain(s) {
		return append(append(append(b, '"'), s...), '"')
	}
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always has a JSON form
	}
	return append(b, text...)
}

// appendPlain writes a string and leaves <, > and & as they are.
func appendPlain(b []byte, s string) []byte {
	if isPlain(s) {
		return append(append(append(b, '"'), s...), '"')
	}
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(err) // a string always has a JSON form
	}
	return append(b, bytes.TrimSuffix(buf.Bytes(), []byte("\n"))...)
}

func appendTexts(b []byte, texts []string) []byte {
	b = append(b, '[')
	for i, s := range texts {
		b = appendPlain(separator(b, i), s)
	}
	return append(b, ']')
}

// writer3 writes the paths of documents of version 3.
type writer3 struct {
	parameters map[parameter][]byte
}

func (w *writer3) appendPath(b []byte, p path) []byte {
	b = append(appendText(b, p.path), ":{"...)
	for i, op := range p.operations {
		b = append(appendText(separator(b, i), op.method), ':')
		b = w.appendOperation(b, op)
	}
	if len(p.common) > 0 {
		b = append(b, `,"parameters":`...)
		b = w.appendParameters(b, p.common)
	}
	return append(b, '}')
}

func (w *writer3) appendOperation(b []byte, op operation) []byte {
	b = append(b, `{"tags":[`...)
	b = append(appendText(b, op.tag), `],"description":`...)
	b = append(appendText(b, op.description), `,"operationId":`...)
	b = appendText(b, op.id)
	if len(op.parameters) > 0 {
		b = append(b, `,"parameters":`...)
		b = w.appendParameters(b, op.parameters)
	}
	if op.body != "" {
		b = append(b, `,"requestBody":{"content":`...)
		b = appendContent(b, op.consumes, op.body)
		if op.bodyNeeded {
			b = append(b, `,"required":true`...)
		}
		b = append(b, '}')
	}
	b = append(b, `,"responses":{`...)
	for i, r := range op.responses {
		b = appendStatus(separator(b, i), r.code)
		b = append(b, `,"content":`...)
		b = append(appendContent(b, op.produces, r.definition), '}')
	}
	b = append(b, `,"401":{"description":"Unauthorized"}}`...)
	if op.action != "" {
		b = appendKind3(appendAction(b, op.action), op.kind)
	}
	return append(b, '}')
}

func appendKind3(b []byte, kind schema.GroupVersionKind) []byte {
	b = append(b, `{"group":`...)
	b = append(appendText(b, kind.Group), `,"version":`...)
	b = append(appendText(b, kind.Version), `,"kind":`...)
	return append(appendText(b, kind.Kind), '}')
}

func (w *writer3) appendParameters(b []byte, parameters []parameter) []byte {
	b = append(b, '[')
	for i, p := range parameters {
		b = append(separator(b, i), w.parameter(p)...)
	}
	return append(b, ']')
}

func (w *writer3) parameter(p parameter) []byte {
	if b := w.parameters[p]; b != nil {
		return b
	}
	b := append(appendText([]byte(`{"name":`), p.name), `,"in":`...)
	b = appendText(b, p.in)
	if p.description != "" {
		b = append(b, `,"description":`...)
		b = appendText(b, p.description)
	}
	if p.required {
		b = append(b, `,"required":true`...)
	}
	b = append(b, `,"schema":{"type":`...)
	b = append(appendText(b, p.kind), `,"uniqueItems":true}}`...)
	w.parameters[p] = b
	return b
}

// appendStatus begins a response.
func appendStatus(b []byte, code int) []byte {
	b = append(b, '"')
	b = append(strconv.AppendInt(b, int64(code), 10), `":{"description":`...)
	return appendText(b, http.StatusText(code))
}

func appendAction(b []byte, action string) []byte {
	b = append(b, `,"x-kubernetes-action":`...)
	return append(appendText(b, action), `,"x-kubernetes-group-version-kind":`...)
}

func appendContent(b []byte, types []string, definition string) []byte {
	b = append(b, '{')
	for i, t := range slices.Sorted(slices.Values(types)) {
		b = append(appendText(separator(b, i), t), `:{"schema":`...)
		b = append(appendSchema(b, refV3, definition), '}')
	}
	return append(b, '}')
}

func appendSchema(b []byte, ref, definition string) []byte {
	if definition == "" {
		return append(b, `{"type":"string"}`...)
	}
	b = append(b, ref...)
	return append(append(b, definition...), `"}`...)
}

// writer2 writes the paths of documents of version 2, in which parameters that
// operations share are kept in a place of their own.
type writer2 struct {
	// parameters as they are written, and what they refer to.
	parameters map[parameter]written2
	// shared parameters by their names in the document.
	shared map[string][]byte
	// used are the shared parameters that have been referred to.
	used map[string]bool
}

type written2 struct {
	text   []byte
	shared string // name of the parameter that is referred to, if it is
}

func newWriter2() *writer2 {
	return &writer2{parameters: map[parameter]written2{}, shared: map[string][]byte{}}
}

// appendPaths2 writes paths, of which those of others are written already, and
// returns the shared parameters that they refer to.
func appendPaths2(out []byte, l *library, paths []path, entries []entry) (_ []byte, shared []string, _ error) {
	w := l.paths2
	w.used = map[string]bool{}
	for i, e := range entries {
		out = separator(out, i)
		if e.from == nil {
			out = append(append(appendPlain(out, e.at), ':'), e.text...)
		} else {
			out = w.appendPath(out, paths[i])
		}
	}
	return out, slices.Sorted(maps.Keys(w.used)), nil
}

func (w *writer2) appendPath(b []byte, p path) []byte {
	b = append(appendPlain(b, p.path), ":{"...)
	for i, op := range p.operations {
		b = append(appendPlain(separator(b, i), op.method), ':')
		b = w.appendOperation(b, op)
	}
	if len(p.common) > 0 {
		b = append(b, `,"parameters":[`...)
		for i, p := range p.common {
			b = append(separator(b, i), w.parameter(p)...)
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

func (w *writer2) appendOperation(b []byte, op operation) []byte {
	b = append(appendPlain(append(b, `{"description":`...), op.description), ',')
	if len(op.consumes) > 0 {
		b = append(appendTexts(append(b, `"consumes":`...), op.consumes), ',')
	}
	b = appendTexts(append(b, `"produces":`...), op.produces)
	b = appendPlain(append(b, `,"schemes":["https"],"tags":[`...), op.tag)
	b = appendPlain(append(b, `],"operationId":`...), op.id)
	if op.body != "" || len(op.parameters) > 0 {
		b = append(b, `,"parameters":[`...)
		n := 0
		if op.body != "" { // its name sorts before all others
			b = append(b, w.body(op.body, op.bodyNeeded)...)
			n++
		}
		for _, p := range op.parameters {
			b = append(separator(b, n), w.parameter(p)...)
			n++
		}
		b = append(b, ']')
	}
	b = append(b, `,"responses":{`...)
	for i, r := range op.responses {
		b = append(appendStatus(separator(b, i), r.code), `,"schema":`...)
		b = append(appendSchema(b, refV2, r.definition), '}')
	}
	b = append(b, `,"401":{"description":"Unauthorized"}}`...)
	if op.action != "" {
		b = appendKind(appendAction(b, op.action), op.kind)
	}
	return append(b, '}')
}

func appendKind(b []byte, kind schema.GroupVersionKind) []byte {
	b = append(appendPlain(append(b, `{"group":`...), kind.Group), `,"kind":`...)
	b = append(appendPlain(b, kind.Kind), `,"version":`...)
	return append(appendPlain(b, kind.Version), '}')
}

func (w *writer2) parameter(p parameter) []byte {
	if known, ok := w.parameters[p]; ok {
		if known.shared != "" {
			w.used[known.shared] = true
		}
		return known.text
	}
	b := append(appendPlain([]byte(`{"uniqueItems":true,"type":`), p.kind), ',')
	if p.description != "" {
		b = append(appendPlain(append(b, `"description":`...), p.description), ',')
	}
	b = append(appendPlain(append(b, `"name":`...), p.name), `,"in":`...)
	b = appendPlain(b, p.in)
	if p.required {
		b = append(b, `,"required":true`...)
	}
	b = append(b, '}')
	// Names differ by resource, and clients look for the other two where they
	// are used.
	if p.name != "name" && p.name != "dryRun" && p.name != "fieldValidation" {
		b, name := w.share(p.name, b)
		w.parameters[p] = written2{b, name}
		return b
	}
	w.parameters[p] = written2{text: b}
	return b
}

// body returns the parameter for a body. Only options are shared.
func (w *writer2) body(definition string, needed bool) []byte {
	b := []byte(`{"name":"body","in":"body"`)
	if needed {
		b = append(b, `,"required":true`...)
	}
	b = append(appendSchema(append(b, `,"schema":`...), refV2, definition), '}')
	if strings.HasPrefix(definition, "io.k8s.apimachinery") {
		b, _ = w.share("body", b)
	}
	return b
}

// share puts a parameter among the shared ones and returns a reference to it.
// Its name there is made of its own name and of its content.
func (w *writer2) share(name string, b []byte) (reference []byte, shared string) {
	h := fnv.New64()
	h.Write(b)
	name += "-" + base64.URLEncoding.EncodeToString(h.Sum(nil)[:6])
	w.shared[name], w.used[name] = b, true
	return append(appendPlain([]byte(`{"$ref":`), "#/parameters/"+name), '}'), name
}
