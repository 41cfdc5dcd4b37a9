package configfile

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for data, want := range map[string]string{
		"apiVersion: a/v1\nkind: K\nmore: 1": "",
		`{"apiVersion":"a/v2","kind":"K"}`:   "",
		"":                                   "Object 'Kind' is missing in ''",
		"kind: K":                            "Object 'apiVersion' is missing in 'kind: K'",
		"a: [":                               "yaml: line 1: did not find expected node content",
		"words":                              "couldn't get version/kind; json parse error: json: cannot unmarshal string into Go value of type struct",
		"apiVersion: v1\nkind: ConfigMap":    `no kind "ConfigMap" is registered for version "v1" in scheme "pkg/runtime/scheme.go:111"`,
		"apiVersion: a/v3\nkind: K":          `no kind "K" is registered for version "a/v3" in scheme`,
	} {
		got := ""
		if err := Check([]byte(data), "K", "a/v1", "a/v2"); err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%q: %s, want %s", data, got, want)
		}
	}
}
