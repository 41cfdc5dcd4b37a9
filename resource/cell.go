package resource

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Cells of a table are a function of the object alone, so that rows are made
// once and kept. What goes on with time is written as one of these.

// Since is a cell, or a part of a Text, that says how long ago a moment was:
// 5m. The zero time is unknown.
type Since time.Time

// Text is a cell that is put together of strings and Since.
type Text []any

// At returns what the cell says at a moment.
func (s Since) At(now time.Time) string {
	if time.Time(s).IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(time.Time(s)))
}

// String returns what the cell says now.
func (s Since) String() string { return s.At(time.Now()) }

// MarshalText implements encoding.TextMarshaler, for who shows a cell now.
func (s Since) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalText implements encoding.TextMarshaler, for who shows a cell now.
func (t Text) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// At returns what the cell says at a moment.
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

// String returns what the cell says now.
func (t Text) String() string { return t.At(time.Now()) }
