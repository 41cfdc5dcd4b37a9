package main

import (
	"fmt"
	"io"
	"log/slog"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/apikeel/kelson/internal/jsonlog"
	"github.com/apikeel/kelson/internal/textlog"
)

// logFlags are the flags of logging.
type logFlags struct {
	verbosity verbosity
	modules   modules
	format    string
}

// setKube makes verbosity 0 log notices too, as kube-apiserver does, not only warnings.
func (f *logFlags) setKube() {
	f.verbosity.notices = true
	f.verbosity.set(f.verbosity.n)
}

func (f *logFlags) bind(fs *pflag.FlagSet) {
	f.verbosity.level = new(slog.LevelVar)
	f.verbosity.set(0)
	fs.VarP(&f.verbosity, "v", "v", "`level` of logs: 0 has warnings, 1 what the server does, 3 a line for each request, 4 what connections do")
	fs.Var(&f.modules, "vmodule", "`levels` for some source files, by pattern: rest*=4,watch=5")
	fs.StringVar(&f.format, "logging-format", "text", "`format` of logs: text or json")
}

func (f *logFlags) apply(s *setup) {
	s.config.Debug.SetVerbosity = f.verbosity.use
}

// logger returns a logger to w as the flags configure it.
func (f *logFlags) logger(w io.Writer) (*slog.Logger, error) {
	level := slog.Leveler(f.verbosity.level)
	if len(f.modules.all) > 0 {
		level = slog.Level(-1 << 16) // moduleHandler decides
	}
	var handler slog.Handler
	switch f.format {
	case "text":
		handler = textlog.New(w, level)
	case "json":
		handler = jsonlog.New(w, level)
	default:
		return nil, fmt.Errorf("--logging-format %q: it is text or json", f.format)
	}
	if len(f.modules.all) > 0 {
		handler = newModuleHandler(handler, f.verbosity.level, f.modules.all)
	}
	return slog.New(handler), nil
}

// verbosity is the log verbosity, which can be changed at any time.
type verbosity struct {
	n       uint64
	notices bool // verbosity 0 logs more than warnings
	level   *slog.LevelVar
}

func (v *verbosity) set(n uint64) {
	v.n = n
	v.use(n)
}

// use changes what is logged, without changing the flag's value.
func (v *verbosity) use(n uint64) {
	if n == 0 && !v.notices {
		v.level.Set(slog.LevelWarn)
		return
	}
	v.level.Set(jsonlog.Level(n))
}

// Set implements pflag.Value.
func (v *verbosity) Set(text string) error {
	n, err := strconv.ParseUint(text, 10, 31)
	if err == nil {
		v.set(n)
	}
	return err
}

// String implements pflag.Value.
func (v *verbosity) String() string { return strconv.FormatUint(v.n, 10) }

// Type implements pflag.Value.
func (*verbosity) Type() string { return "Level" }
