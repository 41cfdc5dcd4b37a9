package resource

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Cells of a table must depend on the object alone, because encoded rows are cached.
// A cell that shows an age is a Since or a Text; its text is computed when the row is
// written to a response.

// Since is a cell, or a part of a Text, with the time that has passed since a moment:
// "5m". The zero time is "<unknown>".
type Since time.Time

// Text is a cell that is the concatenation of strings and Since values.
type Text []any

// At returns the text of the cell at a moment.
func (s Since) At(now time.Time) string {
	if time.Time(s).IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(time.Time(s)))
}

// String returns the text of the cell now.
func (s Since) String() string { return s.At(time.Now()) }

// MarshalText implements encoding.TextMarshaler with the text of now.
func (s Since) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalText implements encoding.TextMarshaler with the text of now.
func (t Text) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// At returns the text of the cell at a moment.
func (t Text) At(now time.Time) string {
	var b strings.Builder
	for _, part := range t {
		switch part := part.(type) {
		case string:
			b.WriteString(part)
		case Since:
			b.WriteString(part.At(now))
		}
	}
	return b.String()
}

// String returns the text of the cell now.
func (t Text) String() string { return t.At(time.Now()) }
