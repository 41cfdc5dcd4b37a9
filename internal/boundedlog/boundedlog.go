// Package boundedlog bounds the lines of a log. Much of what a server logs is chosen
// by others: a client chooses its headers and its path, a webhook the text of its
// error. Without a bound any of them decides how fast a disk fills up.
//
// Start at New, which wraps any slog.Handler. A message, a value or a line that is too
// long is cut, and says by how much: "beginning…(+4711 bytes)".
package boundedlog

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"unicode/utf8"
)

const (
	// MaxValue is the largest length in bytes of an attribute value, as written.
	MaxValue = 2 << 10
	// MaxMessage is the largest length in bytes of a message: some contain a stack or a
	// trace.
	MaxMessage = 10 << 10
	// MaxLine is the largest length in bytes of a record, without its keys and what the
	// handler adds to every record. Stacks, under the key "stack", may use all of it.
	MaxLine = 16 << 10

	// maxEscape is the largest number of bytes that one byte of text becomes when it is
	// escaped: a control character in JSON takes six.
	maxEscape = 6
)

// Handler is a slog.Handler that bounds the length of records.
type Handler struct {
	next slog.Handler
	// left is what remains of MaxLine after the attributes of WithAttrs.
	left int
}

// New returns a handler that passes records on to next, cut to the bounds.
func New(next slog.Handler) slog.Handler {
	if bounded, ok := next.(*Handler); ok {
		return bounded
	}
	return &Handler{next: next, left: MaxLine}
}

// Logger returns a logger that writes what log writes, bounded.
func Logger(log *slog.Logger) *slog.Logger {
	bounded := New(log.Handler())
	if bounded == log.Handler() {
		return log
	}
	return slog.New(bounded)
}

// Enabled implements slog.Handler.
func (h *Handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if h.isShort(&r) {
		return h.next.Handle(ctx, r)
	}
	left := h.left
	message := cut(r.Message, min(MaxMessage, left), &left)
	bounded := slog.NewRecord(r.Time, r.Level, message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		bounded.AddAttrs(bound(a, &left))
		return true
	})
	return h.next.Handle(ctx, bounded)
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	left := h.left
	bounded := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		bounded[i] = bound(a, &left)
	}
	return &Handler{next: h.next.WithAttrs(bounded), left: left}
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{next: h.next.WithGroup(name), left: h.left}
}

// isShort reports whether a record is within the bounds even if all of it is escaped.
// Almost all records are, and need not be copied.
func (h *Handler) isShort(r *slog.Record) bool {
	short := len(r.Message)*maxEscape <= min(MaxMessage, h.left)
	total := len(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		n, ok := length(a.Value)
		total += n
		short = short && ok && n*maxEscape <= MaxValue && total*maxEscape <= h.left
		return short
	})
	return short
}

// length returns the length of a value before escaping, and false if it is not known
// without encoding it.
func length(v slog.Value) (int, bool) {
	switch v.Kind() {
	case slog.KindString:
		return len(v.String()), true
	case slog.KindAny:
		switch v := v.Any().(type) {
		case nil:
			return 0, true
		case error:
			return len(errorText(v)), true
		}
		return 0, false
	case slog.KindGroup, slog.KindLogValuer:
		return 0, false
	}
	return 0, true // a number or a time: a few bytes
}

// bound cuts an attribute, and subtracts its length from left.
func bound(a slog.Attr, left *int) slog.Attr {
	value := a.Value.Resolve()
	limit := min(MaxValue, *left)
	if a.Key == "stack" {
		limit = *left
	}
	switch value.Kind() {
	case slog.KindString:
		value = slog.StringValue(cut(value.String(), limit, left))
	case slog.KindGroup:
		group := make([]slog.Attr, len(value.Group()))
		for i, inner := range value.Group() {
			group[i] = bound(inner, left)
		}
		value = slog.GroupValue(group...)
	case slog.KindAny:
		if value.Any() == nil {
			break
		}
		text := anyText(value.Any())
		if short := cut(text, limit, left); len(short) != len(text) {
			value = slog.StringValue(short)
		}
	}
	return slog.Attr{Key: a.Key, Value: value}
}

// anyText formats a value as a handler may write it.
func anyText(v any) (text string) {
	defer func() {
		if cause := recover(); cause != nil {
			text = fmt.Sprintf("!PANIC: %v", cause)
		}
	}()
	switch v := v.(type) {
	case error:
		return errorText(v)
	case fmt.Stringer:
		return v.String()
	case []byte:
		return string(v)
	}
	encoded, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%+v", v)
	}
	return string(encoded)
}

// errorText returns the text of an error, also if its Error method panics.
func errorText(err error) (text string) {
	defer func() {
		if cause := recover(); cause != nil {
			text = fmt.Sprintf("!PANIC: %v", cause)
		}
	}()
	return err.Error()
}

// cut cuts a text to limit bytes as written, and appends how much is missing. It
// subtracts the length from left.
func cut(s string, limit int, left *int) string {
	cost, end := 0, len(s)
	for i, r := range s {
		c := escaped(r, s[i:])
		if cost+c > limit {
			end = i
			break
		}
		cost += c
	}
	*left = max(0, *left-cost)
	if end == len(s) {
		return s
	}
	return s[:end] + Mark(len(s)-end)
}

// Mark is the text that replaces n missing bytes.
func Mark(n int) string { return "…(+" + strconv.Itoa(n) + " bytes)" }

// escaped returns how many bytes a character takes in a line, as text or as JSON. rest
// is the text that begins with it.
func escaped(r rune, rest string) int {
	switch {
	case r == '"', r == '\\', r == '\n', r == '\t', r == '\r':
		return 2
	case r == utf8.RuneError:
		if _, n := utf8.DecodeRuneInString(rest); n == 1 {
			return maxEscape // not UTF-8
		}
	case strconv.IsPrint(r):
		return utf8.RuneLen(r)
	case r > 0xffff:
		return 10
	default:
		return maxEscape
	}
	return utf8.RuneLen(r)
}
