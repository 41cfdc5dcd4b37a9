package wire

import (
	"bytes"
	"testing"
)

// TestProtoLayout: what a layout says of stored bytes is what one finds in them.
func TestProtoLayout(t *testing.T) {
	s := pods(t)
	stored, err := EncodeStored(s.Definition, testPod(t))
	if err != nil {
		t.Fatal(err)
	}
	raw, ok := storedProtoBody(s.Definition, s.Version, stored)
	if !ok {
		t.Fatal("no protobuf in the stored bytes")
	}
	splice := newProtoSplice(raw, 3)
	layout := splice.layout(s.Index, stored, raw)
	if layout == 0 {
		t.Fatal("no layout")
	}
	for _, rv := range []string{"7", "123", "1234567890", ""} {
		want := newProtoSplice(raw, len(rv))
		got, head, ok := layout.splice(s.Index, len(stored), len(rv))
		if !ok || !bytes.HasPrefix(stored[head:], raw) || got != want {
			t.Errorf("resourceVersion %q: %v, splice %+v, want %+v", rv, ok, got, want)
		}
		if len(rv) > 0 && !bytes.Equal(got.append(nil, raw, []byte(rv)), spliceProto(raw, rv)) {
			t.Errorf("resourceVersion %q: other bytes", rv)
		}
	}
	if _, _, ok := layout.splice(s.Index+1, len(stored), 3); ok {
		t.Error("a layout of another version is taken")
	}
	if _, _, ok := protoLayout(0).splice(0, len(stored), 3); ok {
		t.Error("no layout is taken for one")
	}
	if l := splice.layout(s.Index, append(bytes.Clone(stored), 0x2a, 0), raw); l != 0 {
		t.Error("a layout of bytes with more in the envelope")
	}
}
