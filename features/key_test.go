package features_test

import (
	"testing"

	"github.com/apikeel/kelson/features"
)

// TestKeyTellsGatesApart: what is shared between servers is shared by this key.
func TestKeyTellsGatesApart(t *testing.T) {
	gates := func(c features.Config) features.Gates {
		t.Helper()
		g, err := features.New(c)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	usual := features.Gates{}.Key()
	if got := gates(features.Config{}).Key(); got != usual {
		t.Errorf("gates that nobody has set: got %q, want %q", got, usual)
	}
	on := features.Config{Set: map[string]bool{features.AllAlpha: true, features.AllBeta: true}}
	older := features.Config{EmulatedVersion: "1.36"}
	both := features.Config{Set: on.Set, EmulatedVersion: "1.36"}
	seen := map[string]string{usual: "the zero value"}
	for name, c := range map[string]features.Config{"alpha": on, "emulated": older, "both": both} {
		key := gates(c).Key()
		if other, ok := seen[key]; ok {
			t.Errorf("%s has the key of %s: %q", name, other, key)
		}
		seen[key] = name
		if again := gates(c).Key(); again != key {
			t.Errorf("%s: got %q, then %q", name, key, again)
		}
	}
}
