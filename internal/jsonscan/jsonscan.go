// Package jsonscan reads the words of JSON from a text: what internal/jsonvalue, which
// makes maps of it, and internal/jsonstruct, which fills structs, have in common. It knows
// valid JSON only: for anything else a method returns false, and callers leave the text to
// a decoder that has the error. Start at Scanner.
package jsonscan

import (
	"bytes"
	"encoding/json"
	"iter"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Scanner is a place in a text.
type Scanner struct {
	Text string
	At   int // of the byte that is read next
	// Clone says that strings are copied, so that one which is kept does not keep the text.
	Clone bool
}

// Space skips white space and returns the next byte, 0 at the end.
func (s *Scanner) Space() byte {
	for ; s.At < len(s.Text); s.At++ {
		if c := s.Text[s.At]; c > ' ' || c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c
		}
	}
	return 0
}

// End reports whether nothing but white space is left.
func (s *Scanner) End() bool { return s.Space() == 0 && s.At == len(s.Text) }

// Word reads a word: true, false or null.
func (s *Scanner) Word(w string) bool {
	if !strings.HasPrefix(s.Text[s.At:], w) {
		return false
	}
	s.At += len(w)
	return true
}

// String reads a string.
func (s *Scanner) String() (string, bool) {
	if s.Space() != '"' {
		return "", false
	}
	start, escaped, ascii := s.At, false, true
	for s.At++; s.At < len(s.Text); s.At++ {
		switch c := s.Text[s.At]; {
		case c == '"':
			s.At++
			raw := s.Text[start:s.At]
			if !escaped && (ascii || utf8.ValidString(raw)) {
				if raw = raw[1 : len(raw)-1]; s.Clone {
					raw = strings.Clone(raw)
				}
				return raw, true
			}
			if ascii || utf8.ValidString(raw) {
				return unescape(raw[1 : len(raw)-1])
			}
			var text string
			err := json.Unmarshal([]byte(raw), &text)
			return text, err == nil
		case c == '\\':
			escaped = true
			s.At++
		case c < ' ':
			return "", false
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	s.At = len(s.Text) // also after an escape that the text ends in
	return "", false
}

// unescape returns the value of what stands between the quotes of a string, which is valid
// UTF-8.
func unescape(raw string) (string, bool) {
	var text strings.Builder
	text.Grow(len(raw))
	for {
		n := strings.IndexByte(raw, '\\')
		if n < 0 {
			text.WriteString(raw)
			return text.String(), true
		}
		text.WriteString(raw[:n])
		if raw = raw[n+1:]; raw == "" {
			return "", false
		}
		c := raw[0]
		raw = raw[1:]
		switch c {
		case '"', '\\', '/':
			text.WriteByte(c)
		case 'b':
			text.WriteByte('\b')
		case 'f':
			text.WriteByte('\f')
		case 'n':
			text.WriteByte('\n')
		case 'r':
			text.WriteByte('\r')
		case 't':
			text.WriteByte('\t')
		case 'u':
			r, ok := codeUnit(raw)
			if !ok {
				return "", false
			}
			raw = raw[4:]
			if utf16.IsSurrogate(r) {
				var second rune
				if strings.HasPrefix(raw, `\u`) {
					second, _ = codeUnit(raw[2:])
				}
				if r = utf16.DecodeRune(r, second); r != utf8.RuneError {
					raw = raw[6:]
				}
			}
			text.WriteRune(r)
		default:
			return "", false
		}
	}
}

// codeUnit returns the four hexadecimal digits that a text begins with.
func codeUnit(raw string) (rune, bool) {
	if len(raw) < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(raw[:4], 16, 16)
	return rune(n), err == nil
}

// Number reads a number. It is whole if it has neither a fraction nor an exponent. The
// text of it is never cloned.
func (s *Scanner) Number() (text string, whole, ok bool) {
	c := s.Space()
	start := s.At
	if c == '-' {
		s.At++
	}
	first := s.At
	n := s.digits()
	if n == 0 || n > 1 && s.Text[first] == '0' {
		return "", false, false
	}
	whole = true
	if s.At < len(s.Text) && s.Text[s.At] == '.' {
		s.At++
		whole = false
		if s.digits() == 0 {
			return "", false, false
		}
	}
	if s.At < len(s.Text) && s.Text[s.At]|0x20 == 'e' {
		s.At++
		whole = false
		if s.At < len(s.Text) && (s.Text[s.At] == '+' || s.Text[s.At] == '-') {
			s.At++
		}
		if s.digits() == 0 {
			return "", false, false
		}
	}
	return s.Text[start:s.At], whole, true
}

func (s *Scanner) digits() int {
	start := s.At
	for s.At < len(s.Text) && '0' <= s.Text[s.At] && s.Text[s.At] <= '9' {
		s.At++
	}
	return s.At - start
}

// stringLength returns how many bytes a string has, up to its closing quote.
func stringLength(text []byte) int {
	for i := 0; ; {
		quote := bytes.IndexByte(text[i:], '"')
		if quote < 0 {
			return len(text)
		}
		escapes := 0
		for before := i + quote - 1; before >= i && text[before] == '\\'; before-- {
			escapes++
		}
		if i += quote; escapes%2 == 0 {
			return i
		}
		i++
	}
}

// Depth returns how many levels of objects and lists a text has.
func Depth(text []byte) (depth int) {
	level := 0
	for c := range Marks(text) {
		switch c {
		case '{', '[':
			level++
			depth = max(depth, level)
		case '}', ']':
			level--
		}
	}
	return depth
}

// Marks returns the braces, brackets, commas and colons of a text that are not in strings. The
// text need not be JSON.
func Marks(text []byte) iter.Seq[byte] {
	return func(yield func(byte) bool) {
		for i := 0; i < len(text); i++ {
			switch c := text[i]; c {
			case '"':
				i += 1 + stringLength(text[i+1:])
			case '{', '}', '[', ']', ',', ':':
				if !yield(c) {
					return
				}
			}
		}
	}
}
