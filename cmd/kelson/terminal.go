package main

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Others choose the names of users, objects and clients, and what is in objects: none of it
// may reach a terminal as it is.

// clean returns text that cannot change a terminal: what is not printable is escaped as
// JSON does it.
func clean(text string) string {
	if strings.IndexFunc(text, unprintable) < 0 && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case !unprintable(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

func unprintable(r rune) bool { return r != ' ' && !unicode.IsPrint(r) }

// cleaner is a writer that escapes what could change a terminal, but for tabs and newlines.
type cleaner struct{ io.Writer }

func (c cleaner) Write(b []byte) (int, error) {
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		text, newline := strings.CutSuffix(line, "\n")
		for i, part := range strings.Split(text, "\t") {
			if i > 0 {
				out.WriteByte('\t')
			}
			out.WriteString(clean(part))
		}
		if newline {
			out.WriteByte('\n')
		}
	}
	_, err := io.WriteString(c.Writer, out.String())
	return len(b), err
}
