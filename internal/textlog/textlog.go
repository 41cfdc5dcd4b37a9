// Package textlog is a slog.Handler for the text log format of Kubernetes (klog). Start
// at New.
//
//	I1115 17:58:00.123456   12345 file.go:123] "message" key="value" err="why"
//
// The first letter is the severity (I, W or E), the number before the file is the
// process ID, and the time is local. Text with several lines is indented.
package textlog

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Handler is a slog.Handler.
type Handler struct {
	level  slog.Leveler
	out    *output
	attrs  []byte // attributes of WithAttrs, as written
	prefix string // of keys: the open groups
}

type output struct {
	mu  sync.Mutex
	w   io.Writer
	pid int
}

// New returns a handler that writes records of at least this level to w.
func New(w io.Writer, level slog.Leveler) *Handler {
	return &Handler{level: level, out: &output{w: w, pid: os.Getpid()}}
}

type plainKey struct{}

// Plain marks records whose message is written unquoted, such as traces of slow
// requests.
func Plain(ctx context.Context) context.Context { return context.WithValue(ctx, plainKey{}, true) }

// Enabled implements slog.Handler.
func (h *Handler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level.Level() }

// Handle implements slog.Handler. A record is one write.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	b := bytes.NewBuffer(make([]byte, 0, 512))
	h.header(b, &r)
	if plain, _ := ctx.Value(plainKey{}).(bool); plain {
		printable(b, strings.TrimSuffix(r.Message, "\n"))
	} else {
		b.WriteString(strconv.Quote(r.Message))
	}
	// The error of an error record comes first.
	first := ""
	if r.Level >= slog.LevelError {
		r.Attrs(func(a slog.Attr) bool {
			if isError(a.Key) {
				first = a.Key
				h.pair(b, h.prefix, a)
			}
			return first == ""
		})
	}
	b.Write(h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == first && first != "" {
			first = ""
			return true
		}
		h.pair(b, h.prefix, a)
		return true
	})
	b.WriteByte('\n')
	h.out.mu.Lock()
	defer h.out.mu.Unlock()
	_, err := h.out.w.Write(b.Bytes())
	return err
}

func (h *Handler) header(b *bytes.Buffer, r *slog.Record) {
	letter := byte('I')
	switch {
	case r.Level >= slog.LevelError:
		letter = 'E'
	case r.Level >= slog.LevelWarn:
		letter = 'W'
	}
	b.WriteByte(letter)
	when := r.Time
	if when.IsZero() {
		when = time.Now()
	}
	b.Write(when.Local().AppendFormat(b.AvailableBuffer(), "0102 15:04:05.000000"))
	file, line := "???", 1
	if r.PC != 0 {
		frame, _ := runtime.CallersFrames([]uintptr{r.PC}).Next()
		file, line = path.Base(frame.File), frame.Line
	}
	fmt.Fprintf(b, " %7d %s:%d] ", h.out.pid, file, line)
}

func isError(key string) bool { return key == "error" || key == "err" }

// pair writes an attribute, or all attributes of a group.
func (h *Handler) pair(b *bytes.Buffer, prefix string, a slog.Attr) {
	value := a.Value.Resolve()
	if value.Kind() == slog.KindGroup {
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, inner := range value.Group() {
			h.pair(b, prefix, inner)
		}
		return
	}
	if a.Equal(slog.Attr{}) {
		return
	}
	key := a.Key
	if key == "error" {
		key = "err"
	}
	b.WriteByte(' ')
	b.WriteString(prefix)
	b.WriteString(key)
	b.WriteByte('=')
	write(b, value)
}

func write(b *bytes.Buffer, value slog.Value) {
	switch value.Kind() {
	case slog.KindString, slog.KindDuration, slog.KindTime:
		text(b, value.String())
	case slog.KindAny:
		switch v := value.Any().(type) {
		case error:
			text(b, v.Error())
		case fmt.Stringer:
			text(b, v.String())
		case []byte:
			fmt.Fprintf(b, "%+q", v)
		default:
			encoded, err := json.Marshal(v)
			if err != nil {
				encoded = strconv.AppendQuote(nil, fmt.Sprintf("<internal error: %v>", err))
			}
			b.Write(encoded)
		}
	default:
		b.WriteString(value.String())
	}
}

// text writes a quoted line, or several lines indented.
func text(b *bytes.Buffer, s string) {
	if !strings.Contains(s, "\n") {
		b.Write(strconv.AppendQuote(b.AvailableBuffer(), s))
		return
	}
	b.WriteString("<\n")
	for line := range strings.Lines(s) {
		b.WriteByte('\t')
		printable(b, line)
	}
	if !strings.HasSuffix(s, "\n") {
		b.WriteByte('\n')
	}
	b.WriteString(" >")
}

// printable writes text, with control characters and other unprintable ones escaped.
func printable(b *bytes.Buffer, s string) {
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(b, `\x%02x`, s[0])
		case r == '\n' || r == '\t' || strconv.IsPrint(r):
			b.WriteString(s[:n])
		default:
			quoted := strconv.AppendQuote(b.AvailableBuffer(), s[:n])
			b.Write(quoted[1 : len(quoted)-1])
		}
		s = s[n:]
	}
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	b := bytes.NewBuffer(slices.Clone(h.attrs))
	for _, a := range attrs {
		h.pair(b, h.prefix, a)
	}
	with := *h
	with.attrs = b.Bytes()
	return &with
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	with := *h
	if name != "" {
		with.prefix += name + "."
	}
	return &with
}
