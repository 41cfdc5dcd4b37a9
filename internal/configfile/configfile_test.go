package configfile

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCheck(t *testing.T) {
	for data, want := range map[string]string{
		"apiVersion: a/v1\nkind: K\nmore: 1": "",
		`{"apiVersion":"a/v2","kind":"K"}`:   "",
		"":                                   "Object 'Kind' is missing in ''",
		"kind: K":                            "Object 'apiVersion' is missing in 'the file'",
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

// TestErrorsQuoteNoValues has what decoders quote of a file.
func TestErrorsQuoteNoValues(t *testing.T) {
	type config struct {
		Number  int             `json:"number"`
		Text    string          `json:"text"`
		Timeout metav1.Duration `json:"timeout"`
		Time    metav1.Time     `json:"time"`
		Keys    []string        `json:"keys"`
	}
	const marker, digits = "Zm9vYmFyMARKER", "7319731973197319"
	for _, text := range []string{
		"number: " + marker, "text: " + digits, "text: {a: " + marker + "}", "keys: " + marker, "timeout: " + marker, "timeout: 5" + marker, "time: " + marker,
		"number: " + digits + digits, "number: 1." + digits, "text: *" + marker, "text: &a " + marker + "\ntext: *b", "text: \"\\q" + marker + "\"", "text: '" + marker, "text: `" + marker,
		"- " + marker, marker, "text: " + marker + "\n bad", "text: !!int " + marker, "text: !!binary " + marker, "\x00" + marker, "? [" + marker + "]\n: x", "<<: " + marker,
		`{"text":"` + marker, `{"text":` + marker + `}`, `{"text":"a"} ` + marker, "text: " + marker + "\ntext: " + marker, "unknown: " + marker,
	} {
		var errs []error
		json, _, err := Kind([]byte(text))
		errs = append(errs, err, Check([]byte(text), "K", "a/v1"), UnmarshalYAML([]byte(text), &config{}))
		if err == nil {
			problems, err := UnmarshalStrict(json, &config{})
			errs = append(append(errs, problems...), err)
		}
		_, err = ToJSON([]byte(text))
		for _, err := range append(errs, err) {
			if err != nil && (strings.Contains(err.Error(), marker) || strings.Contains(err.Error(), digits)) {
				t.Errorf("%q: got %q, want nothing of the file in it", text, err)
			}
		}
	}
	if err := UnmarshalYAML([]byte("unknown: 1"), &config{}); err == nil || !strings.Contains(err.Error(), "unknown") {
		t.Errorf("got %v, want the name of the field in it", err)
	}
}
