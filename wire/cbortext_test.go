package wire

import (
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
)

// FuzzIsTextCBOR decodes bodies that are said to be text: all strings are UTF-8 then.
func FuzzIsTextCBOR(f *testing.F) {
	for body, want := range map[string]bool{
		"\xa1\x41a\x41b":                                true,
		"\xa1\x41a\x41\xff":                             false,
		"\xa1\x41\xff\x01":                              false,
		"\xa1\x41a\xd6\x41\xff":                         true, // as base64
		"\xa1\x41a\xd6\xd9\xd9\xf7\x41\xff":             true,
		"\xa2\x41a\xd6\x01\x41b\x41\xff":                false,
		"\xa1\x41a\xd6\x81\x41\xff":                     false,
		"\xa1\x41a\xd6\x5f\x41\xff\x41\xfe\xff":         true,
		"\xa1\x41a\x5f\x41a\x41\xfe\xff":                false,
		"\xbf\x41a\x9f\xff\x41b\x41\xff\xff":            false,
		"\xa1\x41a\xfb\x40\xff\xff\xff\xff\xff\xff\xff": true,
		"\xa1\x41a\x5b\xff\xff\xff\xff\xff\xff\xff\xff": true,
		"\x1c": true,
	} {
		if got := IsTextCBOR([]byte(body)); got != want {
			f.Errorf("%x: got %v, want %v", body, got, want)
		}
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var v any
		if IsTextCBOR(body) && direct.Unmarshal(body, &v) == nil && !isText(v) {
			t.Errorf("%x is said to be text, and is %q", body, v)
		}
	})
}

func isText(v any) bool {
	switch v := v.(type) {
	case string:
		return utf8.ValidString(v)
	case []any:
		for _, item := range v {
			if !isText(item) {
				return false
			}
		}
	case map[string]any:
		for key, value := range v {
			if !utf8.ValidString(key) || !isText(value) {
				return false
			}
		}
	}
	return true
}
