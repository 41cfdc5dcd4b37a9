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
	// MaxValue is how many bytes the value of an attribute takes when it is written.
	MaxValue = 2 << 10
	// MaxMessage is how many bytes a message takes: some have a stack or a trace in
	// them.
	MaxMessage = 10 << 10
	// MaxLine is how many bytes a record takes, except for its keys and what the
	// handler adds to every record. Stacks, under the key "stack", may take all of it.
	MaxLine = 16 << 10

	// maxEscape is how many bytes a byte of text becomes at most when it is written:
	// a control character in JSON is six.
	maxEscape = 6
)

// Handler passes on records whose length is bounded.
type Handler struct {
	next slog.Handler
	// left is what attributes of WithAttrs leave of MaxLine.
	left int
}

// New returns a handler that passes on to next what it gets, if it is short, and else
// as much of it as the bounds allow.
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

// isShort reports whether a record is within the bounds, whatever has to be escaped
// in it. Almost all are, and need not be copied.
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

// length returns the length of a value before it is escaped, and false if that is
// not known without work.
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
	return 0, true // a number, a time: some bytes
}

// bound bounds an attribute, and takes what it has from left.
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

// anyText is a value as a handler may write it.
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

// errorText is the text of an error, also of one that cannot tell it.
func errorText(err error) (text string) {
	defer func() {
		if cause := recover(); cause != nil {
			text = fmt.Sprintf("!PANIC: %v", cause)
		}
	}()
	return err.Error()
}

// cut cuts a text so that it takes no more than limit bytes when it is written, and
// says how much is missing. It takes what is there from left.
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

// Mark is what stands for n bytes that are missing.
func Mark(n int) string { return "…(+" + strconv.Itoa(n) + " bytes)" }

// escaped is how many bytes a character takes in a line, as text or as JSON. rest is
// the text that begins with it.
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
