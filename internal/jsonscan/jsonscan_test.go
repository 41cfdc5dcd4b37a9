package jsonscan

import (
	"encoding/json"
	"strings"
	"testing"
)

// FuzzString compares what is read of a string with encoding/json.
func FuzzString(f *testing.F) {
	for _, seed := range []string{`"a"`, `"\u0041\n"`, `"\ud83d\ude00"`, `"\ud83d"`, "\"\xff\"", `"a`, `"a\`, `"a\"`, "\"a\nb\"", `""x`, ` "a"`, "\"\u2028\"", `a`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s := Scanner{Text: text}
		got, ok := s.String()
		if s.At > len(text) {
			t.Fatalf("String of %q: got to byte %d, want at most %d", text, s.At, len(text))
		}
		if !ok {
			s.At = len(text) // all of it is not a string
		}
		var want string
		err := json.Unmarshal([]byte(text[:s.At]), &want)
		isString := strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), `"`)
		if ok != (err == nil && isString) {
			t.Fatalf("String of %q: %q, %v; encoding/json: %v", text, got, ok, err)
		}
		if ok && got != want {
			t.Fatalf("String of %q: %q, want %q", text, got, want)
		}
	})
}

// FuzzNumber compares what is read of a number with encoding/json.
func FuzzNumber(f *testing.F) {
	for _, seed := range []string{"0", "-0", "01", "-", "1.", "1.5", "1e", "1e+5", "-1E-5", ".5", "+1", " 12 ", "1x", "1..2"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s := Scanner{Text: text}
		got, whole, ok := s.Number()
		if !ok || !s.End() {
			return // what stands after it is the caller's
		}
		var want json.Number
		if err := json.Unmarshal([]byte(text), &want); err != nil || string(want) != got {
			t.Fatalf("Number of %q: %q; encoding/json: %q, %v", text, got, want, err)
		}
		if whole == strings.ContainsAny(got, ".eE") {
			t.Fatalf("Number of %q: whole is %v", text, whole)
		}
	})
}

func TestScanner(t *testing.T) {
	for text, want := range map[string]bool{"0": true, "-0": true, "12": true, "1.5e-3": true, "01": false, "-": false, "1.": false, "1e": false, ".5": false, "": false} {
		s := Scanner{Text: text}
		if _, _, ok := s.Number(); ok != want {
			t.Errorf("Number of %q: %v", text, ok)
		}
	}
	s := Scanner{Text: " \t\r\n null "}
	if s.Space() != 'n' || s.Word("nil") || !s.Word("null") || !s.End() {
		t.Errorf("stopped at %d of %q", s.At, s.Text)
	}
	if s = (Scanner{Text: "\x00"}); s.End() {
		t.Error("a zero byte is the end")
	}
}

// BenchmarkString reads a file as it stands in a config map.
func BenchmarkString(b *testing.B) {
	text := `"` + strings.Repeat(`a line of a file with \"quotes\"\n`, 32) + `"`
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		s := Scanner{Text: text}
		if _, ok := s.String(); !ok {
			b.Fatal("it is a string")
		}
	}
}

func TestMarks(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":[1,{"b":"}]\"{,:"}]}`:     `{:[,{:}]}`,
		`"\\"[`:                         `[`,
		`{"open":"`:                     `{:`,
		`{"escaped at the end":"\`:      `{:`,
		`[` + `"\u0022",` + `"x"` + `]`: `[,]`,
		``:                              ``,
	} {
		var got []byte
		for c := range Marks([]byte(text)) {
			got = append(got, c)
		}
		if string(got) != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
	for c := range Marks([]byte("[[[")) {
		if c == '[' {
			break
		}
	}
}
