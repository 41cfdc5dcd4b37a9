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
	raw, ok := StoredProtoBody(s.Definition, s.Version, stored)
	if !ok {
		t.Fatal("no protobuf in the stored bytes")
	}
	plan := PlanProto(raw, 3)
	layout := plan.Layout(s.Index, stored, raw)
	if layout == 0 {
		t.Fatal("no layout")
	}
	for _, rv := range []string{"7", "123", "1234567890", ""} {
		want := PlanProto(raw, len(rv))
		again, got, ok := layout.Plan(s.Index, stored, len(rv))
		if !ok || !bytes.Equal(again, raw) || got != want {
			t.Errorf("resourceVersion %q: %v, plan %+v, want %+v", rv, ok, got, want)
		}
		if len(rv) > 0 && !bytes.Equal(got.Append(nil, raw, []byte(rv)), SpliceProto(raw, rv)) {
			t.Errorf("resourceVersion %q: other bytes", rv)
		}
	}
	if _, _, ok := layout.Plan(s.Index+1, stored, 3); ok {
		t.Error("a layout of another version is taken")
	}
	if _, _, ok := ProtoLayout(0).Plan(0, stored, 3); ok {
		t.Error("no layout is taken for one")
	}
	if l := plan.Layout(s.Index, append(bytes.Clone(stored), 0x2a, 0), raw); l != 0 {
		t.Error("a layout of bytes with more in the envelope")
	}
}
