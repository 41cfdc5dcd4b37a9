// Package jsonlog is a slog.Handler for the JSON log format of Kubernetes: time in
// milliseconds (ts), caller, message (msg), verbosity (v), and err for an error. Start
// at New and Level. Error records have no v.
package jsonlog

import (
	"io"
	"log/slog"
	"path"
	"strconv"
)

// New returns a handler that writes records of at least this level to w.
func New(w io.Writer, level slog.Leveler) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, AddSource: true, ReplaceAttr: rename})
}

func rename(groups []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.TimeKey:
		return slog.Float64("ts", float64(a.Value.Time().UnixNano())/1e6)
	case slog.LevelKey:
		level, ok := a.Value.Any().(slog.Level)
		if !ok {
			return a
		}
		if level >= slog.LevelError {
			return slog.Attr{}
		}
		return slog.Int("v", Verbosity(level))
	case slog.SourceKey:
		at, ok := a.Value.Any().(*slog.Source)
		if !ok {
			return a
		}
		if at == nil || at.File == "" {
			return slog.Attr{}
		}
		folder, file := path.Split(at.File)
		return slog.String("caller", path.Join(path.Base(folder), file)+":"+strconv.Itoa(at.Line))
	case "error":
		a.Key = "err"
	}
	return a
}

// Level returns the lowest level that is logged at a verbosity: 0 logs warnings and
// errors, 1 info, 4 and more debug.
func Level(verbosity uint64) slog.Level {
	switch {
	case verbosity == 0:
		return slog.LevelInfo + 1
	case verbosity < 4:
		return slog.LevelInfo - slog.Level(verbosity-1)
	}
	return -slog.Level(min(verbosity, 1<<15))
}

// Verbosity returns the verbosity at which a level is logged.
func Verbosity(level slog.Level) int {
	switch {
	case level > slog.LevelInfo:
		return 0
	case level > slog.LevelDebug:
		return int(min(1-level, 4))
	}
	return int(-level)
}
