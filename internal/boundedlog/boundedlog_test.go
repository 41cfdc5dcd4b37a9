package boundedlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/slogtest"
	"time"

	"github.com/apikeel/kelson/internal/jsonlog"
	"github.com/apikeel/kelson/internal/textlog"
)

type stringer string

func (s stringer) String() string { return string(s) }

// broken is an error that panics when its text is wanted, as a nil pointer may.
type broken struct{}

func (broken) Error() string { panic("no text") }

// forms are the handlers of the program.
func forms() map[string]func(out *bytes.Buffer) slog.Handler {
	return map[string]func(out *bytes.Buffer) slog.Handler{
		"text": func(out *bytes.Buffer) slog.Handler { return textlog.New(out, slog.LevelDebug) },
		"json": func(out *bytes.Buffer) slog.Handler { return jsonlog.New(out, slog.LevelDebug) },
	}
}

// TestLinesAreBounded logs what a client may choose, at any length and of any bytes,
// in any place of a record: a line is never longer than it may be.
func TestLinesAreBounded(t *testing.T) {
	const size = 500 << 10
	texts := map[string]string{
		"letters":        strings.Repeat("a", size),
		"quotes":         strings.Repeat(`"\`, size/2),
		"lines":          strings.Repeat("\n", size),
		"control":        strings.Repeat("\x00\x1b\x7f", size/3),
		"not UTF-8":      strings.Repeat("\xff\xc3", size/2),
		"umlauts":        strings.Repeat("ü", size/2),
		"not printable":  strings.Repeat("\u200b\U000e0001\u2028", size/10),
		"lines of two":   strings.Repeat("x\n", size/2),
		"replacement":    strings.Repeat("\ufffd", size/3),
		"controls of C1": strings.Repeat("\u009b", size/2),
	}
	places := map[string]func(log *slog.Logger, text string){
		"value":      func(log *slog.Logger, text string) { log.Warn("m", "a", 1, "key", text, "b", 2) },
		"message":    func(log *slog.Logger, text string) { log.Warn(text, "a", 1) },
		"error":      func(log *slog.Logger, text string) { log.Error("m", "error", errors.New(text)) },
		"stringer":   func(log *slog.Logger, text string) { log.Warn("m", "key", stringer(text)) },
		"bytes":      func(log *slog.Logger, text string) { log.Warn("m", "key", []byte(text)) },
		"list":       func(log *slog.Logger, text string) { log.Warn("m", "key", []string{text, text}) },
		"group":      func(log *slog.Logger, text string) { log.Warn("m", slog.Group("g", "key", text)) },
		"attributes": func(log *slog.Logger, text string) { log.With("key", text).WithGroup("g").Warn("m", "other", text) },
		"stack":      func(log *slog.Logger, text string) { log.Error("m", "panic", text, "stack", text) },
		"many": func(log *slog.Logger, text string) {
			var all []any
			for i := range 40 {
				all = append(all, fmt.Sprint("key", i), text)
			}
			log.Warn(text, all...)
		},
		"log.Logger": func(log *slog.Logger, text string) { slog.NewLogLogger(log.Handler(), slog.LevelWarn).Print(text) },
	}
	for form, handler := range forms() {
		for what, text := range texts {
			for place, write := range places {
				var out bytes.Buffer
				write(slog.New(New(handler(&out))), text)
				// What is added: keys, marks, and the beginning of the line.
				if got, most := out.Len(), MaxLine+2<<10; got > most || got == 0 {
					t.Errorf("%s of %s as %s: %d bytes of log, want 1 to %d", place, what, form, got, most)
				}
				if place == "value" && !strings.Contains(out.String(), " bytes)") {
					t.Errorf("%s as %s: %s…: nothing says that something is missing", what, form, out.String()[:100])
				}
				if form == "json" && (!json.Valid(out.Bytes()) || bytes.Count(out.Bytes(), []byte("\n")) != 1) {
					t.Errorf("%s of %s: not one line of JSON", place, what)
				}
			}
		}
	}
}

// TestNothingBreaksLines logs what would look like a line of its own, or write over
// what a terminal shows.
func TestNothingBreaksLines(t *testing.T) {
	const forged = "x\nE0101 00:00:00.000000       1 pipeline.go:1] \"forged\"\r\x1b[2Ky\u009b2Kz\x7f"
	for form, handler := range forms() {
		var out bytes.Buffer
		log := slog.New(New(handler(&out)))
		log.Info(forged)
		log.Warn("m", "key", forged, "list", []string{forged}, "bytes", []byte(forged), "stringer", stringer(forged))
		log.Error("m", "error", errors.New(forged))
		for line := range strings.Lines(out.String()) {
			if strings.HasPrefix(line, "E0101 00:00:00") {
				t.Errorf("%s: a value has become a line: %q", form, line)
			}
			if i := strings.IndexAny(line, "\r\x1b"); i >= 0 {
				t.Errorf("%s: a control character is in a line: %q", form, line)
			}
		}
	}
}

// TestShortRecordsPass: what is within the bounds is passed on as it came.
func TestShortRecordsPass(t *testing.T) {
	var bounded, want bytes.Buffer
	at := time.Now()
	for _, log := range []*slog.Logger{slog.New(New(textlog.New(&bounded, slog.LevelInfo))), slog.New(textlog.New(&want, slog.LevelInfo))} {
		for _, write := range []func(log *slog.Logger){
			func(log *slog.Logger) {
				log.Info("m", "a", 1, "b", "text", "c", []string{"x"}, "d", time.Second, "e", nil)
			},
			func(log *slog.Logger) {
				log.With("a", 1).WithGroup("g").Error("m", "error", errors.New("why"), "at", at)
			},
			func(log *slog.Logger) {
				log.Warn("m", "long", strings.Repeat("ü", MaxValue/2), "group", slog.GroupValue(slog.Int("x", 1)))
			},
			func(log *slog.Logger) { log.Debug("not wanted") },
		} {
			write(log)
		}
	}
	lines := func(b bytes.Buffer) []string {
		all := strings.Split(b.String(), "\n")
		for i, line := range all {
			if _, rest, ok := strings.Cut(line, "] "); ok {
				all[i] = rest // without the time
			}
		}
		return all
	}
	if !slices.Equal(lines(bounded), lines(want)) {
		t.Errorf("got\n%s\nwant\n%s", &bounded, &want)
	}
	log := slog.New(New(slog.DiscardHandler))
	if Logger(log) != log {
		t.Error("a logger that is bounded is bounded again")
	}
}

// TestErrorWithoutText: an error that panics costs its text.
func TestErrorWithoutText(t *testing.T) {
	var out bytes.Buffer
	slog.New(New(jsonlog.New(&out, slog.LevelInfo))).Error("m", "error", broken{}, "list", []error{broken{}})
	if !strings.Contains(out.String(), "PANIC") {
		t.Errorf("got %s, want that the text could not be had", &out)
	}
}

func TestHandler(t *testing.T) {
	var out bytes.Buffer
	slogtest.Run(t, func(*testing.T) slog.Handler {
		out.Reset()
		return New(slog.NewJSONHandler(&out, nil))
	}, func(t *testing.T) map[string]any {
		var m map[string]any
		if err := json.Unmarshal(out.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		return m
	})
}

// BenchmarkHandle is a line for a request.
func BenchmarkHandle(b *testing.B) {
	h := New(slog.DiscardHandler)
	r := slog.NewRecord(time.Now(), slog.LevelInfo, "HTTP", 0)
	r.AddAttrs(slog.String("verb", "GET"), slog.String("URI", "/api/v1/namespaces/default/pods/some-pod"), slog.Duration("latency", time.Millisecond),
		slog.String("userAgent", "kubectl/v1.37.0 (linux/amd64) kubernetes/abcdef"), slog.Int("resp", 200), slog.Any("error", errors.New("none")))
	b.ReportAllocs()
	for b.Loop() {
		_ = h.Handle(b.Context(), r)
	}
}
