package rules

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/apikeel/kelson/internal/randomtest"
)

// TestPlainNames: what is taken for right at first sight is right, and usual names are.
func TestPlainNames(t *testing.T) {
	checks := map[string]struct {
		plain func(string) bool
		check func(string) []string
	}{
		"subdomain": {isPlainSubdomain, validation.IsDNS1123Subdomain},
		"label":     {isPlainLabel, validation.IsDNS1123Label},
		"key":       {isPlainKey, validation.IsQualifiedName},
		"data key":  {isPlainDataKey, validation.IsConfigMapKey},
		"port":      {func(s string) bool { return CheckPortName(s) == nil }, validation.IsValidPortName},
	}
	for name, c := range checks {
		for seed := range randomtest.Seeds(t, 3000) {
			r := randomtest.Rand(seed, 3)
			const letters = "abz019AZ-._/é"
			value := []rune(letters)
			for i := range value {
				value[i] = []rune(letters)[r.IntN(len([]rune(letters)))]
			}
			s := string(value[:r.IntN(len(value))])
			if r.IntN(3) == 0 {
				s += strings.Repeat("a", 60*r.IntN(6))
			}
			if wrong := c.check(s); c.plain(s) && len(wrong) > 0 {
				t.Errorf("%s %q is taken for right: %v", name, s, wrong)
			} else if len(wrong) == 0 && !c.plain(s) {
				t.Errorf("%s %q is left to Kubernetes, which finds nothing wrong", name, s)
			}
		}
	}
}
