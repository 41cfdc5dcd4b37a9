package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// logFlags say what is logged.
type logFlags struct {
	verbosity int
	format    string
}

func (f *logFlags) bind(fs *pflag.FlagSet) {
	fs.IntVarP(&f.verbosity, "v", "v", 0, "`level` of logs: 0 has warnings, 1 what the server does, 4 what connections do")
	fs.StringVar(&f.format, "logging-format", "text", "`format` of logs: text or json")
}

func (f *logFlags) apply(*setup) error { return nil }

// logger logs to w as the flags say.
func (f *logFlags) logger(w io.Writer) (*slog.Logger, error) {
	options := &slog.HandlerOptions{Level: slog.LevelWarn}
	switch {
	case f.verbosity >= 4:
		options.Level = slog.LevelDebug
	case f.verbosity >= 1:
		options.Level = slog.LevelInfo
	}
	switch f.format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, fmt.Errorf("--logging-format %q: it is text or json", f.format)
}
