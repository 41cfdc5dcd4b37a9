package h2_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestPendingResponsesAreSent: responses that wait for a window are sent when there is
// one, however many have waited before.
func TestPendingResponsesAreSent(t *testing.T) {
	body := strings.Repeat("x", 1000)
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, body) })
	p := dial(t, ts)
	_ = p.SetDeadline(time.Now().Add(10 * time.Second))
	// read reads a response, or its beginning.
	read := func(stream uint32, what string, until func(http2.Frame) bool) {
		t.Helper()
		for {
			frame, err := p.framer.ReadFrame()
			if err != nil {
				t.Fatalf("no %s of stream %d: %v", what, stream, err)
			}
			if frame.Header().StreamID == stream && until(frame) {
				return
			}
		}
	}
	headers := func(f http2.Frame) bool { return f.Header().Type == http2.FrameHeaders }
	end := func(f http2.Frame) bool { return f.Header().Flags.Has(http2.FlagDataEndStream) }
	_ = p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	_ = p.begin(1, true)
	read(1, "headers", headers)
	_ = p.framer.WriteWindowUpdate(1, 1<<20)
	read(1, "end", end)
	_ = p.begin(3, true)
	read(3, "headers", headers)
	_ = p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	read(3, "end", end)
}
