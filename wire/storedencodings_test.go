package wire

import (
	"bytes"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/resource"
)

// TestStoredEncodings stores an object in each encoding that a built-in kind can have, and
// reads it whichever of them the definition wants now.
func TestStoredEncodings(t *testing.T) {
	def := func(asJSON, asYAML bool) *resource.Definition {
		d := *pods(t).Definition
		d.StoreJSON, d.StoreYAML = asJSON, asYAML
		return &d
	}
	all := map[string]*resource.Definition{"k8s\x00": def(false, false), `{"kind":"Pod"`: def(true, false), "apiVersion: v1\nkind: Pod\n": def(false, true)}
	want := testPod(t)
	want.TypeMeta = metav1.TypeMeta{}
	for prefix, writer := range all {
		stored, err := EncodeStored(writer, testPod(t))
		if err != nil || !bytes.HasPrefix(stored, []byte(prefix)) {
			// Keys of YAML are sorted.
			t.Errorf("got %.40q, %v, want it to begin with %q", stored, err, prefix)
		}
		for _, reader := range all {
			got, err := DecodeStored(reader, stored)
			if err != nil || !equality.Semantic.DeepEqual(got, resource.Object(want)) {
				t.Errorf("read from %.20q: got %.100v, %v, want %.100v", stored, got, err, want)
			}
			rec := NewRecord(Record{Key: "k", Name: "a", Revision: 9}, stored, nil, nil, nil, nil)
			if uid, err := UID(reader, rec); err != nil || uid != want.UID {
				t.Errorf("UID from %.20q: got %q, %v, want %q", stored, uid, err, want.UID)
			}
		}
		if meta, ok := StoredMetadata(stored); ok != (prefix != "k8s\x00") || ok && !bytes.Contains(meta, []byte(want.Name)) {
			t.Errorf("metadata of %.20q: got %s, %v", stored, meta, ok)
		}
	}
	for _, text := range []string{"", "x", "a: b: c", "- 1", "\t", "kind: Pod\napiVersion: v9"} {
		if obj, err := DecodeStored(def(false, true), []byte(text)); err == nil {
			t.Errorf("%q: got %v, want an error", text, obj)
		}
	}
}
