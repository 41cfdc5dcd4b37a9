package boundedlog_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apikeel/kelson/internal/boundedlog"
)

// TestLimit: a line that is written too often is counted instead.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&out, nil))
		var limit boundedlog.Limit
		write := func(n int) {
			for range n {
				limit.Log(context.Background(), logger, slog.LevelWarn, "no")
			}
		}
		write(boundedlog.LimitBurst + 1000)
		if got := strings.Count(out.String(), "\n"); got != boundedlog.LimitBurst {
			t.Errorf("%d lines at once, want %d", got, boundedlog.LimitBurst)
		}
		out.Reset()
		time.Sleep(time.Second) // of the bubble's clock
		write(1000)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != boundedlog.LimitRate || !strings.Contains(lines[0], "suppressed=1000") || strings.Contains(lines[1], "suppressed") {
			t.Errorf("a second later: %d lines, want %d, the first with what was suppressed: %q", len(lines), boundedlog.LimitRate, lines[0])
		}
		out.Reset()
		time.Sleep(time.Hour)
		write(1)
		if !strings.Contains(out.String(), "suppressed=990") {
			t.Errorf("an hour later: %q", out.String())
		}
		write(boundedlog.LimitBurst * 2)
		if got := strings.Count(out.String(), "\n"); got > boundedlog.LimitBurst {
			t.Errorf("an hour of silence allows %d lines, want %d", got, boundedlog.LimitBurst)
		}
	})
}
