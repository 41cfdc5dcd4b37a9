package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/apikeel/kelson/internal/yamltext"
)

// NewRenderer returns a writer that is Render for a list that comes in pieces: it gets the JSON
// that List.WriteTo writes, and passes on what is sent. It holds one item of the list at a
// time. Close must be called at the end, and returns the error of what cannot be rendered;
// those of to are returned by Write.
func (f Format) NewRenderer(to io.Writer) io.WriteCloser {
	if f.Media == YAML {
		return &yamlRenderer{to: to}
	}
	return &indenter{to: to}
}

// jsonText follows JSON byte by byte, far enough to know what is inside of strings, and how
// deep in objects and arrays.
type jsonText struct {
	depth    int
	inString bool
	escaped  bool // the byte before was a backslash
}

// string returns how many of the first bytes of p belong to the string that is open. The
// string ends with them unless inString is still set.
func (t *jsonText) string(p []byte) int {
	quote := -1 // the next one
	for i := 0; i < len(p); {
		if t.escaped {
			t.escaped = false
			i++
			continue
		}
		if quote < i {
			if quote = bytes.IndexByte(p[i:], '"') + i; quote < i {
				quote = len(p)
			}
		}
		n := bytes.IndexByte(p[i:quote], '\\')
		if n >= 0 {
			t.escaped = true
			i += n + 1
			continue
		}
		if quote < len(p) {
			t.inString = false
			return quote + 1
		}
		break
	}
	return len(p)
}

// indenter indents JSON by two spaces, as json.Indent does.
type indenter struct {
	jsonText
	to io.Writer
	// opened: the byte before opened an object or an array, which may be empty.
	opened bool
	out    []byte
}

// Write implements io.Writer.
func (w *indenter) Write(p []byte) (int, error) {
	out := w.out[:0]
	for i := 0; i < len(p); {
		if w.inString {
			n := w.string(p[i:])
			out = append(out, p[i:i+n]...)
			i += n
			continue
		}
		c := p[i]
		i++
		if c == ' ' || c == '\t' || c == '\n' || c == '\r' {
			continue
		}
		if w.opened && c != ']' && c != '}' {
			w.opened = false
			w.depth++
			out = w.newLine(out)
		}
		switch c {
		case '"':
			w.inString = true
			out = append(out, c)
		case '{', '[':
			w.opened = true // whether it is empty is not known yet
			out = append(out, c)
		case ',':
			out = w.newLine(append(out, c))
		case ':':
			out = append(out, c, ' ')
		case '}', ']':
			if w.opened {
				w.opened = false
			} else {
				w.depth--
				out = w.newLine(out)
			}
			out = append(out, c)
		default:
			out = append(out, c)
		}
	}
	w.out = out
	if _, err := w.to.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (w *indenter) newLine(out []byte) []byte {
	out = append(out, '\n')
	for range w.depth {
		out = append(out, ' ', ' ')
	}
	return out
}

// Close implements io.Closer.
func (w *indenter) Close() error { return nil }

// yamlRenderer makes YAML of a list: its fields sorted, and in their midst the items, each of
// which is converted by itself.
type yamlRenderer struct {
	jsonText
	to io.Writer
	// value is the text of what is being read: a key, a field, or an item.
	value []byte
	key   string
	// fields are those that were read and not written.
	fields []listField
	// items is the name of the array whose items are being read, "" if there is none.
	items string
	some  bool  // the array has items
	err   error // of what cannot be rendered
}

// listField is a field of a list, in JSON.
type listField struct {
	key   string
	value []byte
}

// Write implements io.Writer.
func (w *yamlRenderer) Write(p []byte) (int, error) {
	for i := 0; i < len(p); {
		if w.inString {
			n := w.string(p[i:])
			w.value = append(w.value, p[i:i+n]...)
			i += n
			continue
		}
		if err := w.next(p[i]); err != nil {
			return 0, err
		}
		i++
	}
	return len(p), nil
}

// next takes a byte that is not within a string.
func (w *yamlRenderer) next(c byte) error {
	// top is the depth of the values that are read as a whole.
	top := 1
	if w.items != "" {
		top = 2
	}
	switch {
	case c == '"':
		w.inString = true
	case c == '{' || c == '[':
		w.depth++
		if w.depth == 1 {
			return nil
		}
		if w.depth == 2 && c == '[' && isItems(w.key) {
			w.items, w.some = w.key, false
			return w.writeFields(w.items)
		}
	case c == ',' && w.depth == top:
		return w.end()
	case c == ':' && w.depth == 1 && w.key == "":
		w.err = json.Unmarshal(w.value, &w.key)
		w.value = w.value[:0]
		return w.err
	case c == '}' || c == ']':
		w.depth--
		if w.depth == top-1 {
			if err := w.end(); err != nil {
				return err
			}
			if w.items != "" && !w.some {
				if _, err := fmt.Fprintf(w.to, "%s: []\n", w.items); err != nil {
					return err
				}
			}
			w.items, w.key = "", ""
			return nil
		}
	}
	w.value = append(w.value, c)
	return nil
}

// isItems reports whether a field of a list has what the list is of.
func isItems(key string) bool { return key == "items" || key == "rows" }

// end ends a field or an item.
func (w *yamlRenderer) end() error {
	if len(w.value) == 0 {
		return nil // of an array that is empty, or was written
	}
	if w.items == "" {
		w.fields = append(w.fields, listField{w.key, bytes.Clone(w.value)})
		w.key, w.value = "", w.value[:0]
		return nil
	}
	// Where lines are broken depends on how far the text is indented, so an item is
	// converted inside of a list.
	list := fmt.Appendf(nil, `{"items":[%s]}`, w.value)
	w.value = w.value[:0]
	text, err := yamltext.FromJSON(list)
	if err != nil {
		w.err = err
		return err
	}
	if !w.some {
		w.some = true
		if _, err := fmt.Fprintf(w.to, "%s:\n", w.items); err != nil {
			return err
		}
	}
	_, err = w.to.Write(bytes.TrimPrefix(text, []byte("items:\n")))
	return err
}

// writeFields writes the fields that come before one with a key, or all if that is "".
func (w *yamlRenderer) writeFields(before string) error {
	slices.SortFunc(w.fields, func(a, b listField) int { return bytes.Compare([]byte(a.key), []byte(b.key)) })
	for len(w.fields) > 0 && (before == "" || w.fields[0].key < before) {
		text, err := yamltext.FromJSON(fmt.Appendf(nil, `{%q:%s}`, w.fields[0].key, w.fields[0].value))
		if err != nil {
			w.err = err
			return err
		}
		if _, err := w.to.Write(text); err != nil {
			return err
		}
		w.fields = w.fields[1:]
	}
	return nil
}

// Close implements io.Closer.
func (w *yamlRenderer) Close() error {
	if w.err == nil {
		_ = w.writeFields("")
	}
	return w.err
}
