package textlog

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/slogtest"
	"time"
)

func TestLines(t *testing.T) {
	logs := func(f func(ctx context.Context, log *slog.Logger)) string {
		var out bytes.Buffer
		f(t.Context(), slog.New(New(&out, slog.LevelDebug)))
		return out.String()
	}
	header := regexp.MustCompile(`^([IWE])(\d{4} \d\d:\d\d:\d\d\.\d{6}) +(\d+) textlog_test\.go:\d+\] `)
	for _, test := range []struct {
		name string
		log  func(ctx context.Context, log *slog.Logger)
		want string // after the header, whose letter is first
	}{
		{"values", func(_ context.Context, log *slog.Logger) {
			log.Info("HTTP", "verb", "GET", "latency", 541*time.Microsecond, "resp", 200, "ok", true, "list", []string{"a"}, "none", nil, "bytes", []byte("x\n"), "half", 0.5)
		}, `I"HTTP" verb="GET" latency="541µs" resp=200 ok=true list=["a"] none=null bytes="x\n" half=0.5`},
		{"an error comes first", func(_ context.Context, log *slog.Logger) {
			log.Error("command failed", "where", "here", "error", errors.New(`a "quoted" one`))
		}, `E"command failed" err="a \"quoted\" one" where="here"`},
		{"also with attributes of its own", func(_ context.Context, log *slog.Logger) {
			log.With("a", 1).Error("x", "b", 2, "err", "why", "c", 3)
		}, `E"x" err="why" a=1 b=2 c=3`},
		{"unless it is none", func(_ context.Context, log *slog.Logger) {
			log.Warn("not ready", "where", "here", "error", errors.New("why"))
		}, `W"not ready" where="here" err="why"`},
		{"several lines", func(_ context.Context, log *slog.Logger) {
			log.Debug("m", "text", "one\ntwo", "ends", "so\n", "next", 1)
		}, "I\"m\" text=<\n\tone\n\ttwo\n > ends=<\n\tso\n > next=1"},
		{"groups", func(_ context.Context, log *slog.Logger) {
			log.WithGroup("g").With("a", 1).Info("m", slog.Group("h", "b", 2), slog.Attr{})
		}, `I"m" g.a=1 g.h.b=2`},
		{"plain", func(ctx context.Context, log *slog.Logger) {
			log.InfoContext(Plain(ctx), "Trace[1]: \"List\" (total 1s)\n")
		}, `ITrace[1]: "List" (total 1s)`},
		{"too verbose", func(_ context.Context, log *slog.Logger) { log.Log(t.Context(), slog.LevelDebug-1, "m") }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := logs(test.log)
			parts := header.FindStringSubmatch(got)
			if test.want == "" {
				if got != "" {
					t.Errorf("it is logged: %s", got)
				}
				return
			}
			if parts == nil {
				t.Fatalf("no header: %s", got)
			}
			if rest := parts[1] + strings.TrimPrefix(got, parts[0]); rest != test.want+"\n" {
				t.Errorf("\n got %s\nwant %s", rest, test.want)
			}
			if parts[3] != strconv.Itoa(os.Getpid()) {
				t.Errorf("process %s", parts[3])
			}
			if _, err := time.Parse("0102 15:04:05.000000", parts[2]); err != nil {
				t.Error(err)
			}
		})
	}
}

// The rules for handlers. A line has a time even if the record has none.
func TestHandler(t *testing.T) {
	var out bytes.Buffer
	pair := regexp.MustCompile(` ([\w.]+)="?([^" ]*)"?`)
	slogtest.Run(t, func(*testing.T) slog.Handler {
		out.Reset()
		return New(&out, slog.LevelInfo)
	}, func(t *testing.T) map[string]any {
		_, text, _ := strings.Cut(out.String(), "] ")
		message, err := strconv.QuotedPrefix(text)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]any{slog.LevelKey: "I", slog.MessageKey: strings.Trim(message, `"`)}
		if !strings.HasSuffix(t.Name(), "zero-time") {
			all[slog.TimeKey] = "now"
		}
		for _, found := range pair.FindAllStringSubmatch(strings.TrimPrefix(text, message), -1) {
			into, keys := all, strings.Split(found[1], ".")
			for _, group := range keys[:len(keys)-1] {
				if into[group] == nil {
					into[group] = map[string]any{}
				}
				into = into[group].(map[string]any)
			}
			into[keys[len(keys)-1]] = found[2]
		}
		return all
	})
}
