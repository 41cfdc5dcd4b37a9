package managedfields

import (
	"bytes"
	"strconv"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// encode appends the set in the FieldsV1 format.
func (n *node) encode(buf []byte) []byte {
	buf = append(buf, '{')
	first := true
	if n.flags&member != 0 && len(n.kids) > 0 {
		buf = append(buf, `".":{}`...)
		first = false
	}
	for _, k := range n.kids {
		if !first {
			buf = append(buf, ',')
		}
		first = false
		buf = k.step.encode(buf)
		buf = append(buf, ':')
		if len(k.kids) == 0 {
			buf = append(buf, '{', '}')
		} else {
			buf = k.encode(buf)
		}
	}
	return append(buf, '}')
}

// encode appends a step as the key of a JSON object.
func (s *step) encode(buf []byte) []byte {
	start := len(buf)
	switch s.kind {
	case byName:
		buf = append(buf, `"f:`...)
		buf = appendEscaped(buf, s.name)
		return append(buf, '"')
	case byKeys:
		buf = append(buf, `"k:{`...)
		for i := range s.keys {
			if i > 0 {
				buf = append(buf, ',')
			}
			if !plain(s.keys[i].name) {
				return s.encodeRare(buf[:start])
			}
			buf = append(buf, '\\', '"')
			buf = append(buf, s.keys[i].name...)
			buf = append(buf, '\\', '"', ':')
			var ok bool
			if buf, ok = s.keys[i].val.encode(buf); !ok {
				return s.encodeRare(buf[:start])
			}
		}
		return append(buf, '}', '"')
	case byValue:
		var ok bool
		buf = append(buf, `"v:`...)
		if buf, ok = s.keys[0].val.encode(buf); !ok {
			return s.encodeRare(buf[:start])
		}
		return append(buf, '"')
	default:
		return append(strconv.AppendInt(append(buf, `"i:`...), s.keys[0].val.n, 10), '"')
	}
}

// encodeRare encodes a step with nested escapes, with structured-merge-diff.
func (s *step) encodeRare(buf []byte) []byte {
	text, err := fieldpath.SerializePathElement(s.element())
	if err != nil {
		text = ""
	}
	buf = append(buf, '"')
	buf = appendEscaped(buf, text)
	return append(buf, '"')
}

// encode appends a value inside of a JSON string; false if the value needs encodeRare.
func (s *scalar) encode(buf []byte) ([]byte, bool) {
	switch s.kind {
	case isString:
		if !plain(s.s) {
			return buf, false
		}
		buf = append(buf, '\\', '"')
		buf = append(buf, s.s...)
		return append(buf, '\\', '"'), true
	case isInt:
		return strconv.AppendInt(buf, s.n, 10), true
	case isBool:
		return strconv.AppendBool(buf, s.n != 0), true
	case isFloat:
		if n := int64(s.float()); float64(n) == s.float() && n > -1<<50 && n < 1<<50 {
			return strconv.AppendInt(buf, n, 10), true
		}
	}
	return buf, false
}

// plain reports whether a string needs no escapes in JSON.
func plain(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c >= 0x7f, c == '"', c == '\\', c == '<', c == '>', c == '&':
			return false
		}
	}
	return true
}

const hex = "0123456789abcdef"

// appendEscaped appends a string between quotes as structured-merge-diff does: only
// quotes, backslashes and control characters are escaped.
func appendEscaped(buf []byte, s string) []byte {
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		buf = append(buf, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			buf = append(buf, '\\', c)
		case '\n':
			buf = append(buf, '\\', 'n')
		case '\r':
			buf = append(buf, '\\', 'r')
		case '\t':
			buf = append(buf, '\\', 't')
		default:
			buf = append(buf, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(buf, s[start:]...)
}

// decode decodes a set in the FieldsV1 format.
func decode(data []byte) (*node, error) {
	p := setParser{data: data}
	if root, ok := p.parse(); ok {
		return root, nil
	}
	set := &fieldpath.Set{}
	if err := set.FromJSON(bytes.NewReader(data)); err != nil {
		return nil, err
	}
	return treeOf(set), nil
}

// setParser decodes what encode writes. Anything else is left to structured-merge-diff.
type setParser struct {
	data []byte
	i    int
}

func (p *setParser) parse() (*node, bool) {
	root := &node{}
	if !p.object(root, 0) || p.i != len(p.data) || root.flags != 0 {
		return nil, false
	}
	return root, true
}

func (p *setParser) accept(c byte) bool {
	if p.i < len(p.data) && p.data[p.i] == c {
		p.i++
		return true
	}
	return false
}

// object decodes the children of a node. An empty object makes the node a member of the
// set, except the root.
func (p *setParser) object(n *node, depth int) bool {
	if depth > 100 || !p.accept('{') {
		return false
	}
	if p.accept('}') {
		if depth > 0 {
			n.flags |= member
		}
		return true
	}
	for {
		key, escaped, ok := p.key()
		if !ok || !p.accept(':') {
			return false
		}
		if string(key) == "." {
			if n.flags != 0 || len(n.kids) > 0 || !p.accept('{') || !p.accept('}') {
				return false
			}
			n.flags |= member
		} else {
			k := &node{}
			if k.step, ok = parseStep(key, escaped); !ok {
				return false
			}
			if l := len(n.kids); l > 0 && n.kids[l-1].step.compare(&k.step) >= 0 {
				return false
			}
			if !p.object(k, depth+1) {
				return false
			}
			n.kids = append(n.kids, k)
		}
		if p.accept(',') {
			continue
		}
		// A member without children is encoded as an empty object.
		return p.accept('}') && len(n.kids) > 0
	}
}

// key reads a string whose only escapes are those of quotes and backslashes, which are
// left in it.
func (p *setParser) key() (key []byte, escaped, ok bool) {
	if !p.accept('"') {
		return nil, false, false
	}
	start := p.i
	for p.i < len(p.data) {
		switch c := p.data[p.i]; {
		case c == '"':
			p.i++
			return p.data[start : p.i-1], escaped, true
		case c == '\\':
			escaped = true
			p.i++
			if p.i == len(p.data) || p.data[p.i] != '"' && p.data[p.i] != '\\' {
				return nil, false, false
			}
		case c < ' ':
			return nil, false, false
		}
		p.i++
	}
	return nil, false, false
}

func parseStep(key []byte, escaped bool) (step, bool) {
	if len(key) < 2 || key[1] != ':' {
		return step{}, false
	}
	text := string(key)
	if escaped {
		plain := make([]byte, 0, len(key))
		for i := 0; i < len(key); i++ {
			if key[i] == '\\' {
				i++
			}
			plain = append(plain, key[i])
		}
		text = string(plain)
	}
	if text[0] == 'f' {
		return fieldStep(text[2:]), true
	}
	e, err := fieldpath.DeserializePathElement(text)
	if err != nil {
		return step{}, false
	}
	return stepOf(e), true
}
