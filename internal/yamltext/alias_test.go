package yamltext

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestAliasesAreCountedAsTheirValues has a text of 40 KB that is 200 MB of JSON, and others with
// aliases that may be read.
func TestAliasesAreCountedAsTheirValues(t *testing.T) {
	SetLimit(32 << 20)
	t.Cleanup(func() { gate.Store(nil) })
	many := func(text string, n int) string {
		return "a: &a " + text + "\nb: [*a" + strings.Repeat(",*a", n-1) + "]\n"
	}
	var nested strings.Builder
	nested.WriteString("a: &a " + strings.Repeat("x", 1000) + "\n")
	for i := range 5 {
		name, before := string(rune('b'+i)), string(rune('a'+i))
		fmt.Fprintf(&nested, "%s: &%s [*%s%s]\n", name, name, before, strings.Repeat(",*"+before, 9))
	}
	for name, c := range map[string]struct {
		text    string
		refused bool
	}{
		"a long string":      {many(strings.Repeat("x", 30_000), 5000), true},
		"nested":             {nested.String(), true},
		"UTF-16":             {"\xff\xfe" + wide(many(strings.Repeat("x", 30_000), 5000)), true},
		"short":              {many("x", 100), false},
		"no alias":           {"a: '& *a b'\nb: \"**bold** &amp; x\"\n", false},
		"not the first word": {"a: 2 *a\nb: x&y\n", false},
		"merged":             {"a: &a {b: 1, c: 2}\nd:\n  <<: *a\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ToJSONStrict([]byte(c.text))
			release, holdErr := Hold([]byte(c.text))
			if holdErr == nil {
				release()
			}
			if errors.Is(err, errAliases) != c.refused || errors.Is(holdErr, errAliases) != c.refused {
				t.Fatalf("got %d bytes, %v and %v, want a refusal: %t", len(got), err, holdErr, c.refused)
			}
			if c.refused {
				return
			}
			if want, err := yaml.YAMLToJSONStrict([]byte(c.text)); err != nil || string(got) != string(want) {
				t.Errorf("got %s, want %s (%v)", got, want, err)
			}
		})
	}
}

// wide returns ASCII in UTF-16.
func wide(text string) string {
	var b strings.Builder
	for i := range len(text) {
		b.WriteString(text[i:i+1] + "\x00")
	}
	return b.String()
}

// TestAliasesThatContainThemselvesEnd parses a value that is a part of itself.
func TestAliasesThatContainThemselvesEnd(t *testing.T) {
	for _, text := range []string{"a: &a [*a]", "a: &a {b: &b [*a, *b]}", "a: *b\nb: &b 1"} {
		if _, err := ToJSON([]byte(text)); err == nil || IsRefusal(err) {
			t.Errorf("%s: got the error %v, want that the text is wrong", text, err)
		}
	}
}

// FuzzAliases: the JSON of a text is not longer than what it is taken to need.
func FuzzAliases(f *testing.F) {
	for _, text := range []string{"a: &a [x, y]\nb: [*a, *a]", "a: &a xxxxxxxxx\n? *a\n: *a", "- &a {b: &c 1}\n- *c\n- <<: *a\n", "- &a !!binary aGk=\n- *a"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1000 || !hasAliases([]byte(text)) {
			return
		}
		bytes, err := aliasedMemory([]byte(text))
		if err != nil {
			return
		}
		got, err := yaml.YAMLToJSON([]byte(text))
		if err == nil && int64(len(got)) > max(bytes, memoryToRead([]byte(text))) {
			t.Errorf("%q is %d bytes of JSON, and was taken to need %d", text, len(got), bytes)
		}
	})
}
