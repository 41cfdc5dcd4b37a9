package jsonpatched

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

func decode(t testing.TB, text string) jsonpatch.Patch {
	t.Helper()
	patch, err := jsonpatch.DecodePatch([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return patch
}

// TestHostilePatches: patches of some kilobytes that would take gigabytes or minutes are refused.
func TestHostilePatches(t *testing.T) {
	deep := func(levels int, leaf string) string {
		return strings.Repeat(`{"a":`, levels) + leaf + strings.Repeat("}", levels)
	}
	zeros := "[" + strings.Repeat("0,", 1<<20) + "0]"
	repeated := func(op string, n int) string { return strings.TrimSuffix(strings.Repeat(op+",", n), ",") }
	for name, c := range map[string]struct {
		patch string
		want  error
	}{
		"a path through a deep value": {`[{"op":"add","path":"/x","value":` + deep(9000, `"`+strings.Repeat("x", 100_000)+`"`) +
			`},{"op":"test","path":"/x` + strings.Repeat("/a", 9000) + `/z","value":1}]`, ErrTooDeep},
		"a deep value that is tested": {`[{"op":"add","path":"/x","value":` + deep(9000, `"`+strings.Repeat("x", 100_000)+`"`) +
			`},{"op":"test","path":"/x","value":` + deep(9000, "1") + `}]`, ErrTooDeep},
		"a path with escapes": {`[{"op":"add","path":"/x","value":` + deep(9000, `"`+strings.Repeat("x", 100_000)+`"`) +
			`},{"op":"test","path":"\u002fx` + strings.Repeat(`\u002fa`, 9000) + `/z","value":1}]`, ErrTooDeep},
		"a copy below a deep value": {`[{"op":"add","path":"/x","value":` + deep(2000, "{}") + `},{"op":"add","path":"/y","value":{"s":"` + strings.Repeat("x", 1000) + `"}},` +
			repeated(`{"op":"copy","from":"/y","path":"/y/b"}`, 10) + `,{"op":"move","from":"/y","path":"/x` + strings.Repeat("/a", 2000) + `/q"},{"op":"test","path":"/x` +
			strings.Repeat("/a", 2000) + `/none","value":1}]`, ErrTooDeep},
		"removals at a negative index": {`[{"op":"add","path":"/x","value":` + zeros + `},` + repeated(`{"op":"remove","path":"/x/-1"}`, 9000) + `]`, ErrMovesTooMuch},
		"many operations":              {"[" + repeated(`{"op":"remove","path":"/x"}`, MaxOperations+1) + "]", ErrTooManyOperations},
		"an ordinary patch":            {`[{"op":"add","path":"/x","value":{"a":{"b":["c"]}}},{"op":"copy","from":"/x/a","path":"/x/d"},{"op":"test","path":"/x/d/b/0","value":"c"}]`, nil},
		"appending":                    {`[{"op":"add","path":"/x","value":[]},` + repeated(`{"op":"add","path":"/x/-","value":1}`, 5000) + `]`, nil},
	} {
		patch := decode(t, c.patch)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		_, err := Apply([]byte(`{"metadata":{"name":"a"}}`), patch, nil)
		took := time.Since(began)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
		if bytes := after.TotalAlloc - before.TotalAlloc; c.want != nil && bytes > 16<<20 {
			t.Errorf("%s: refused after %d bytes and %v", name, bytes, took)
		}
	}
}

// TestHold: memory is asked for before a patch takes much, and a refusal is returned.
func TestHold(t *testing.T) {
	busy := errors.New("busy")
	document := []byte(`{"a":{"b":"` + strings.Repeat("x", 1000) + `"},"deep":` + strings.Repeat("[", 500) + `"` + strings.Repeat("x", 10_000) + `"` + strings.Repeat("]", 500) + `}`)
	for patch, want := range map[string]bool{
		`[{"op":"add","path":"/a/c","value":"d"}]`:                                    false,
		`[{"op":"copy","from":"/a","path":"/c"}]`:                                     true,
		`[{"op":"test","path":"/deep` + strings.Repeat("/0", 500) + `","value":"x"}]`: true,
	} {
		_, err := Apply(document, decode(t, patch), func(int64) error { return busy })
		if got := err == busy; got != want {
			t.Errorf("%.60s: got %v, want to be refused: %v", patch, err, want)
		}
	}
}

// TestGrowthIsABound: what a patch makes of a document is no larger than Growth says.
func TestGrowthIsABound(t *testing.T) {
	for name, patch := range map[string]string{
		"doubling": `[` + strings.TrimSuffix(strings.Repeat(`{"op":"copy","from":"/a","path":"/a/b"},`, 9), ",") + `]`,
		"a value that is copied": `[{"op":"add","path":"/v","value":"` + strings.Repeat("x", 100_000) + `"},` +
			`{"op":"copy","from":"/v","path":"/w"},{"op":"copy","from":"/v","path":"/y"},{"op":"copy","from":"/v","path":"/z"}]`,
	} {
		document := []byte(fmt.Sprintf(`{"a":{"c":%q}}`, strings.Repeat("x", 1000)))
		p := decode(t, patch)
		got, err := Apply(document, p, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if bound := int64(len(document)+valueBytes(p)+100) + Growth(p, len(document)); int64(len(got)) > bound {
			t.Errorf("%s: %d bytes, want %d at most", name, len(got), bound)
		}
	}
}
