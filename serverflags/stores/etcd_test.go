package stores

import "testing"

func TestEtcdPrefix(t *testing.T) {
	for flag, want := range map[string]string{
		"/registry": "/registry",
		"registry/": "/registry",
		"a/../b":    "/b",
		"":          "/",
	} {
		if got := (&Etcd{prefix: flag}).Options().Prefix; got != want {
			t.Errorf("%q: %q, want %q", flag, got, want)
		}
	}
}
