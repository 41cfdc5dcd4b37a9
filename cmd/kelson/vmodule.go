package main

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/apikeel/kelson/internal/jsonlog"
)

// modules are verbosities by source file (--vmodule): pattern=N,…. A pattern with a
// slash matches the whole path of a file, another its name; both without .go.
type modules struct{ all []module }

type module struct {
	pattern string
	n       uint64
}

// Set implements pflag.Value.
func (m *modules) Set(text string) error {
	m.all = nil
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		pattern, level, ok := strings.Cut(part, "=")
		if !ok || pattern == "" || level == "" || strings.Contains(level, "=") {
			return fmt.Errorf("%q does not have the pattern=N format", part)
		}
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("%q is not a pattern: %w", pattern, err)
		}
		n, err := strconv.ParseUint(level, 10, 31)
		if err != nil {
			return fmt.Errorf("parsing verbosity in %q: %w", part, err)
		}
		m.all = append(m.all, module{pattern, n})
	}
	return nil
}

// String implements pflag.Value.
func (m *modules) String() string {
	var all []string
	for _, one := range m.all {
		all = append(all, fmt.Sprintf("%s=%d", one.pattern, one.n))
	}
	return strings.Join(all, ",")
}

// Type implements pflag.Value.
func (*modules) Type() string { return "pattern=N,..." }

// moduleHandler is a slog.Handler with a level for each source file.
type moduleHandler struct {
	slog.Handler
	level   slog.Leveler
	modules []module
	least   slog.Level // the lowest level of all modules
	files   *sync.Map  // program counter -> level of its file (slog.Level), nil if it has none
}

func newModuleHandler(next slog.Handler, level slog.Leveler, all []module) *moduleHandler {
	h := &moduleHandler{Handler: next, level: level, modules: all, least: slog.LevelError, files: &sync.Map{}}
	for _, m := range all {
		h.least = min(h.least, jsonlog.Level(m.n))
	}
	return h
}

// Enabled implements slog.Handler.
func (h *moduleHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= min(h.least, h.level.Level())
}

// Handle implements slog.Handler.
func (h *moduleHandler) Handle(ctx context.Context, r slog.Record) error {
	level, known := h.files.Load(r.PC)
	if !known {
		level = h.find(r.PC)
		h.files.Store(r.PC, level)
	}
	least := h.level.Level()
	if own, ok := level.(slog.Level); ok {
		least = own
	}
	if r.Level < least {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h *moduleHandler) find(pc uintptr) any {
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	file := strings.TrimSuffix(filepath.ToSlash(frame.File), ".go")
	for _, m := range h.modules {
		name := path.Base(file)
		if strings.Contains(m.pattern, "/") {
			name = file
		}
		if ok, _ := path.Match(m.pattern, name); ok {
			return jsonlog.Level(m.n)
		}
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (h *moduleHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.Handler = h.Handler.WithAttrs(attrs)
	return &with
}

// WithGroup implements slog.Handler.
func (h *moduleHandler) WithGroup(name string) slog.Handler {
	with := *h
	with.Handler = h.Handler.WithGroup(name)
	return &with
}
