// Package jsonscan reads the words of JSON from a text: what internal/jsonvalue, which
// makes maps of it, and internal/jsonstruct, which fills structs, have in common. It knows
// valid JSON only: for anything else a method returns false, and callers leave the text to
// a decoder that has the error. Start at Scanner.
package jsonscan

import (
	"encoding/json"
	"strings"
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
	return "", false
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
