package connect

import (
	"strings"
	"testing"
)

// TestTerminalSizes: a size that does not end is none, and is not kept.
func TestTerminalSizes(t *testing.T) {
	sizes := newTerminalSizes(strings.NewReader(`{"Width":80,"Height":24} {"Width":100,"Height":30}`))
	for _, want := range []uint16{80, 100} {
		if got := sizes.Next(); got == nil || got.Width != want {
			t.Errorf("got %v, want a width of %d", got, want)
		}
	}
	endless := strings.NewReader(`{"x":"` + strings.Repeat("a", 1<<20))
	if got := newTerminalSizes(endless).Next(); got != nil {
		t.Errorf("got %v, want nothing", got)
	}
	if read := 1<<20 + 6 - endless.Len(); read > maxResizeBytes {
		t.Errorf("%d bytes were read of a size, want at most %d", read, maxResizeBytes)
	}
}
