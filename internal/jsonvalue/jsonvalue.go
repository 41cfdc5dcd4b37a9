// Package jsonvalue reads, writes and compares JSON that has no Go type: values
// are map[string]any, []any, string, int64, float64, bool and nil, as objects of
// custom resources are.
//
// It does what encoding/json and sigs.k8s.io/json do with such values, byte for byte,
// at a third of the cost: without reflection and without a validating pass. Rare cases
// are left to them. Start at Parse and Append.
package jsonvalue

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/apikeel/kelson/internal/jsonscan"
)

// Append appends the JSON of a value as json.Marshal does: keys are sorted, and HTML
// characters are escaped.
func Append(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case string:
		return AppendString(dst, v), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case int64:
		return strconv.AppendInt(dst, v, 10), nil
	case float64:
		if math.Abs(v) < 1e15 && v == math.Trunc(v) && (v != 0 || !math.Signbit(v)) {
			return strconv.AppendInt(dst, int64(v), 10), nil
		}
	case []any:
		if v == nil {
			return append(dst, "null"...), nil
		}
		dst = append(dst, '[')
		for i, item := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			var err error
			if dst, err = Append(dst, item); err != nil {
				return nil, err
			}
		}
		return append(dst, ']'), nil
	case map[string]any:
		return appendObject(dst, v)
	}
	raw, err := json.Marshal(v)
	return append(dst, raw...), err
}

func appendObject(dst []byte, v map[string]any) ([]byte, error) {
	if v == nil {
		return append(dst, "null"...), nil
	}
	var few [16]string
	names := few[:0]
	for name := range v {
		names = append(names, name)
	}
	slices.Sort(names)
	dst = append(dst, '{')
	for i, name := range names {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(AppendString(dst, name), ':')
		var err error
		if dst, err = Append(dst, v[name]); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

// plain are the bytes that a string has in JSON as they are.
var plain = func() (plain [256]bool) {
	for c := ' '; c <= '~'; c++ {
		plain[c] = !strings.ContainsRune(`"\<>&`, c)
	}
	return plain
}()

// AppendString appends a quoted string.
func AppendString(dst []byte, s string) []byte {
	start := len(dst)
	dst = append(dst, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		if plain[c] {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, `\n`...)
		case '\t':
			dst = append(dst, `\t`...)
		case '<':
			dst = append(dst, `\u003c`...)
		case '>':
			dst = append(dst, `\u003e`...)
		case '&':
			dst = append(dst, `\u0026`...)
		default:
			quoted, _ := json.Marshal(s) // never fails for a string
			return append(dst[:start], quoted...)
		}
	}
	return append(append(dst, s[from:]...), '"')
}

// Parse parses an object. Integers are int64 if they fit. It returns false for anything
// else than a valid object without duplicate keys; the caller then uses another
// decoder, which has the error.
func Parse(data []byte) (map[string]any, bool) {
	p := parser{jsonscan.Scanner{Text: string(data), Clone: true}}
	if p.Space() != '{' {
		return nil, false
	}
	obj, ok := p.object(0)
	if !ok || !p.End() {
		return nil, false
	}
	return obj, true
}

// maxDepth limits the recursion.
const maxDepth = 1000

// parser reads values. Their strings are copied: one that is kept does not keep the text.
type parser struct{ jsonscan.Scanner }

func (p *parser) value(depth int) (any, bool) {
	switch c := p.Space(); {
	case c == '{':
		return p.object(depth + 1)
	case c == '[':
		return p.list(depth + 1)
	case c == '"':
		return p.String()
	case c == '-' || '0' <= c && c <= '9':
		return p.number()
	case c == 't':
		return true, p.Word("true")
	case c == 'f':
		return false, p.Word("false")
	case c == 'n':
		return nil, p.Word("null")
	}
	return nil, false
}

func (p *parser) object(depth int) (map[string]any, bool) {
	p.At++
	obj := map[string]any{}
	if p.Space() == '}' {
		p.At++
		return obj, depth < maxDepth
	}
	for depth < maxDepth && p.Space() == '"' {
		name, ok := p.String()
		if !ok || p.Space() != ':' {
			return nil, false
		}
		p.At++
		v, ok := p.value(depth)
		if !ok {
			return nil, false
		}
		before := len(obj)
		obj[name] = v
		if len(obj) == before {
			return nil, false
		}
		c := p.Space()
		p.At++
		if c == '}' {
			return obj, true
		}
		if c != ',' {
			return nil, false
		}
	}
	return nil, false
}

func (p *parser) list(depth int) ([]any, bool) {
	p.At++
	list := []any{}
	if p.Space() == ']' {
		p.At++
		return list, depth < maxDepth
	}
	for depth < maxDepth {
		v, ok := p.value(depth)
		if !ok {
			return nil, false
		}
		list = append(list, v)
		c := p.Space()
		p.At++
		if c == ']' {
			return list, true
		}
		if c != ',' {
			return nil, false
		}
	}
	return nil, false
}

func (p *parser) number() (any, bool) {
	text, whole, ok := p.Number()
	if !ok {
		return nil, false
	}
	if whole {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n, true
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	return f, err == nil
}

// IsDeeper reports whether a value has more levels of objects and lists than some.
func IsDeeper(v any, levels int) bool {
	switch v := v.(type) {
	case map[string]any:
		for _, item := range v {
			if IsDeeper(item, levels-1) {
				return true
			}
		}
		return levels < 1
	case []any:
		for _, item := range v {
			if IsDeeper(item, levels-1) {
				return true
			}
		}
		return levels < 1
	}
	return false
}

// Equal reports whether values are equal. Numbers of different types are not.
func Equal(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for name, v := range a {
			if other, ok := b[name]; !ok || !Equal(v, other) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i, v := range a {
			if !Equal(v, b[i]) {
				return false
			}
		}
		return true
	}
	switch b.(type) {
	case map[string]any, []any:
		return false
	}
	return a == b
}
