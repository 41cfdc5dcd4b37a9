package replay

import (
	"bytes"
	"strings"
)

// lineWidth is how long a line of JSON may become before the value on it is spread over
// several.
const lineWidth = 120

// layout indents compact JSON for readers. What fits on a line stays on one, so that an
// object of two fields does not take four lines. Scalars, the order of keys and repeated
// keys stay as they are.
func layout(compact []byte) string {
	l := &layouter{in: compact}
	var out strings.Builder
	l.parse().write(&out, "", 0)
	return out.String()
}

// jsonNode is a JSON value, or a key and its value.
type jsonNode struct {
	key string // with quotes and a colon; "" in arrays and at the top
	// scalar is the text of a value that has no parts.
	scalar   string
	brackets string // {} or []
	parts    []jsonNode
	width    int // on one line
}

type layouter struct {
	in []byte
	at int
}

// parse reads a value of valid, compact JSON.
func (l *layouter) parse() jsonNode {
	switch l.in[l.at] {
	case '{':
		return l.parts("{}")
	case '[':
		return l.parts("[]")
	}
	s := l.scalar()
	return jsonNode{scalar: s, width: len(s)}
}

func (l *layouter) scalar() string {
	from := l.at
	if l.in[l.at] != '"' {
		if n := bytes.IndexAny(l.in[l.at:], ",:]}"); n >= 0 {
			l.at += n
		} else {
			l.at = len(l.in)
		}
		return string(l.in[from:l.at])
	}
	for l.at++; l.in[l.at] != '"'; l.at++ {
		if l.in[l.at] == '\\' {
			l.at++
		}
	}
	l.at++
	return string(l.in[from:l.at])
}

func (l *layouter) parts(brackets string) jsonNode {
	n := jsonNode{brackets: brackets, width: len(brackets)}
	for l.at++; l.in[l.at] != brackets[1]; {
		if l.in[l.at] == ',' {
			l.at++
		}
		key := ""
		if brackets == "{}" {
			key = l.scalar() + ": "
			l.at++ // the colon
		}
		part := l.parse()
		part.key = key
		part.width += len(key)
		if len(n.parts) > 0 {
			n.width += len(", ")
		}
		n.width += part.width
		n.parts = append(n.parts, part)
	}
	l.at++
	return n
}

// write writes a value after the indent, on one line if it fits there together with extra
// characters.
func (n jsonNode) write(out *strings.Builder, indent string, extra int) {
	out.WriteString(n.key)
	if n.brackets == "" {
		out.WriteString(n.scalar)
		return
	}
	oneLine := len(n.parts) == 0 || indent == oneLineIndent || len(indent)+n.width+extra <= lineWidth
	out.WriteByte(n.brackets[0])
	for i, part := range n.parts {
		if oneLine {
			if i > 0 {
				out.WriteString(", ")
			}
			part.write(out, oneLineIndent, 0)
			continue
		}
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteString("\n" + indent + "  ")
		part.write(out, indent+"  ", 1)
	}
	if !oneLine {
		out.WriteString("\n" + indent)
	}
	out.WriteByte(n.brackets[1])
}

// oneLineIndent stands for the indent of a value that is in the midst of a line.
const oneLineIndent = "-"
