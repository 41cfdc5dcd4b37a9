package rest

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
)

// FuzzQuickMeta: what is valid at a glance is what the library finds valid.
func FuzzQuickMeta(f *testing.F) {
	for _, seed := range []string{"", "a", "A.b_c-1", "-a", "a-", "example.com/a", "Example.com/a", "a.-b", "a..b", "a-.b", "/a", "a/", "a/b/c", "\u00e9", strings.Repeat("a", 63),
		strings.Repeat("a", 64), strings.Repeat("a", 253), strings.Repeat("a", 254), strings.Repeat("a", 253) + "/" + strings.Repeat("b", 63)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, c := range []struct {
			of        string
			got, want bool
		}{
			{"label key", isLabelKey(text), len(content.IsLabelKey(text)) == 0},
			{"label value", text == "" || isLabelText(text), len(content.IsLabelValue(text)) == 0},
			{"subdomain", isSubdomain(text), len(apivalidation.NameIsDNSSubdomain(text, false)) == 0},
		} {
			if c.got != c.want {
				t.Errorf("%q as a %s: %v, want %v", text, c.of, c.got, c.want)
			}
		}
		if isSubdomain(text) && len(apivalidation.NameIsDNSSubdomain(text, true)) > 0 {
			t.Errorf("%q is a name, but not the prefix of one", text)
		}
		if isLabelKey(text) && len(content.IsLabelKey(strings.ToLower(text))) > 0 {
			t.Errorf("%q is the key of a label, but not of an annotation", text)
		}
	})
}
