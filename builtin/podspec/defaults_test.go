package podspec

import (
	"strings"
	"testing"
)

func TestPullPolicy(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("a", 64)
	for image, latest := range map[string]bool{
		"nginx":                      true,
		"nginx:latest":               true,
		"nginx:1":                    false,
		"nginx" + digest:             false,
		"nginx:latest" + digest:      true,
		"nginx:latest@sha256:beef":   false,
		"localhost/x":                true,
		"example.com:5000/a/b":       true,
		"example.com:5000/a/b:1":     false,
		"[::1]:5000/a":               true,
		"UPPER":                      false, // no valid name, so not latest either
		"Upper/x":                    true,  // a host
		"a//b":                       false,
		"":                           false,
		strings.Repeat("a", 64):      false, // an identifier
		strings.Repeat("a", 65):      true,
		strings.Repeat("x", 248):     false, // library/ makes it too long
		strings.Repeat("x", 247):     true,
		"example.com/a:" + "bad tag": false,
	} {
		if got := isLatest(image); got != latest {
			t.Errorf("isLatest(%q) = %v, want %v", image, got, latest)
		}
	}
}
