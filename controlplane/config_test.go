package controlplane

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/apikeel/kelson/internal/boundedlog"
)

// TestLogsAreBounded: every part of a control plane gets its logger from the
// configuration, and a webhook or a server behind this one may choose the text of an
// error.
func TestLogsAreBounded(t *testing.T) {
	var out bytes.Buffer
	c := Config{Logger: slog.New(slog.NewTextHandler(&out, nil)), DataDir: t.TempDir()}
	c.defaults()
	for name, log := range map[string]*slog.Logger{"the control plane": c.Logger, "etcd": c.Etcd.Logger, "kubelets": c.Kubelets.Logger} {
		out.Reset()
		log.Error("webhook failed", "error", errors.New(strings.Repeat("x", 1<<20)))
		if got, most := out.Len(), boundedlog.MaxValue+1<<10; got > most || got == 0 {
			t.Errorf("%s: %d bytes of log, want 1 to %d", name, got, most)
		}
	}
}
