package wire

import (
	"slices"
	"testing"
	"unsafe"
)

// TestOwnAttributes checks that labels and fields of a record say what they said, and no longer
// hold on to the bytes that they came from, for one allocation.
func TestOwnAttributes(t *testing.T) {
	body := []byte("Running node-7 web blue")
	text := unsafe.String(unsafe.SliceData(body), len(body))
	fields := []string{text[:7], "", text[8:14]}
	labels := []string{"app", text[15:18], "color", text[19:]}
	if n := testing.AllocsPerRun(10, func() { OwnAttributes(labels, fields) }); n != 1 {
		t.Errorf("%v allocations, want 1", n)
	}
	clear(body)
	if want := []string{"Running", "", "node-7"}; !slices.Equal(fields, want) {
		t.Errorf("the fields are %q, want %q", fields, want)
	}
	if want := []string{"app", "web", "color", "blue"}; !slices.Equal(labels, want) {
		t.Errorf("the labels are %q, want %q", labels, want)
	}
	OwnAttributes(nil, nil)
}
