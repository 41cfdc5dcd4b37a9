package jsonlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"regexp"
	"testing"
	"time"
)

func TestForm(t *testing.T) {
	var b bytes.Buffer
	log := slog.New(New(&b, Level(9)))
	for _, c := range []struct {
		write func()
		want  string
	}{
		{func() { log.Info("HTTP", "latency", 1500*time.Microsecond, "resp", 200) }, `^\{"ts":\d{13}(\.\d+)?,"v":1,"caller":"jsonlog/jsonlog_test.go:\d+","msg":"HTTP","latency":"1.5ms","resp":200\}\n$`},
		{func() { log.Warn("w") }, `"v":0,`},
		{func() { log.Log(t.Context(), slog.LevelInfo-2, "x") }, `"v":3,`},
		{func() { log.Debug("x") }, `"v":4,`},
		{func() { log.Error("failed", "error", errors.New("no")) }, `^\{"ts":[\d.]+,"caller":"[^"]+","msg":"failed","err":"no"\}\n$`},
		{func() { log.Info("g", slog.Group("flags", slog.String("time", "x"), slog.String("error", "y"))) }, `"flags":\{"time":"x","error":"y"\}`},
	} {
		b.Reset()
		c.write()
		if !regexp.MustCompile(c.want).Match(b.Bytes()) || !json.Valid(b.Bytes()) {
			t.Errorf("%s does not match %s", b.Bytes(), c.want)
		}
	}
}

func TestVerbosity(t *testing.T) {
	for v := range uint64(10) {
		if got := Verbosity(Level(v)); got != int(v) {
			t.Errorf("verbosity %d is level %v, which is verbosity %d", v, Level(v), got)
		}
	}
}
