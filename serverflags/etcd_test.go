package serverflags

import "testing"

func TestEtcdPrefix(t *testing.T) {
	for flag, want := range map[string]string{
		"/registry":       "",
		"registry":        "",
		"/registry/":      "",
		"/a/registry":     "/a",
		"a/b/registry/":   "/a/b",
		"/registry/other": "!",
		"/aregistry":      "!",
		"":                "!",
	} {
		got := "!"
		if options, err := (&Etcd{prefix: flag}).Options(); err == nil {
			got = options.Prefix
		}
		if got != want {
			t.Errorf("%q: %q, want %q", flag, got, want)
		}
	}
}
