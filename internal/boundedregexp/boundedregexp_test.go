package boundedregexp

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"testing"
	"time"
)

// bomb is a few characters that are a program of 2,100 instructions.
const bomb = `(?:a|aa|aaa){300}b`

func TestCostlyMatchesAreRefused(t *testing.T) {
	began := time.Now()
	_, err := New(bomb).Match(NewWork(context.Background(), MaxWork), strings.Repeat("a", 2_900_000))
	if !errors.Is(err, ErrTooCostly) {
		t.Errorf("got %v, want %v", err, ErrTooCostly)
	}
	if _, err := New(strings.Repeat(bomb, 100)).Match(NewWork(context.Background(), MaxWork), ""); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v for a large expression, want %v", err, ErrTooLarge)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("refusing took %v", took)
	}
}

// TestMatchesEndWithTheirContext ends a context while a match is under way that takes seconds.
func TestMatchesEndWithTheirContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := New(bomb).Match(NewWork(ctx, 1<<40), strings.Repeat("a", 2_900_000))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a match went on for %v after its request had ended", took)
	}
}

// TestAPatternIsJudgedOnce matches the same costly text again, for which nothing is left.
func TestAPatternIsJudgedOnce(t *testing.T) {
	p, text := New(bomb), strings.Repeat("a", 4000)
	work := NewWork(context.Background(), 24<<20)
	for range 10 {
		if ok, err := p.Match(work, text); ok || err != nil {
			t.Fatalf("got %v, %v, want no match", ok, err)
		}
	}
}

// TestProgramsStayInTheirBound compiles more than a set may keep.
func TestProgramsStayInTheirBound(t *testing.T) {
	s, work := NewSet(), NewWork(context.Background(), 1<<40)
	for i := range 3000 {
		if ok, err := s.Pattern(fmt.Sprintf("^(?:a|b|c){50}x%d$", i)).Match(work, "a"); ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if kept := s.kept.Load(); kept > maxKept || kept == 0 || kept > int64(s.Weight()) {
		t.Errorf("%d bytes of programs are kept, want at most %d", kept, maxKept)
	}
}

func TestInstructionsAreNeverTooFew(t *testing.T) {
	for _, text := range expressions {
		tree, err := syntax.Parse(text, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		bound := instructions(tree)
		program, err := syntax.Compile(tree.Simplify())
		if err != nil {
			t.Fatal(err)
		}
		if has := int64(len(program.Inst)) - 2; bound < has { // fail and match are there always
			t.Errorf("%s: %d instructions are expected, it has %d", text, bound, has)
		}
	}
}

var expressions = []string{
	``, `a`, `abc`, `^a$`, `a*`, `a+?`, `a?`, `(a|b|c)`, `(?:)`, `[a-z]`, `\pL+`, `(?i)straße`, `a{0}`, `a{3}`, `a{3,}`, `a{0,5}`, `a{2,5}`, `(a{2,3}){4,5}`, `(?:a*)*`,
	`(?:a|aa|aaa){300}b`, `^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`, `(|a|)`, `\bx\B`, `.{0,100}`, `(?:(?:){1000})`, `x{1000}`, `(a{0,}){3,}`,
}

// FuzzMatch holds Match equal to regexp, with and without a reader, and the bound of the
// instructions above what they are.
func FuzzMatch(f *testing.F) {
	for _, text := range expressions {
		f.Add(text, "aabbcc")
		f.Add(text, strings.Repeat("aé", 40))
	}
	f.Fuzz(func(t *testing.T, expression, text string) {
		if len(expression) > 200 || len(text) > 2000 {
			return
		}
		want, err := regexp.Compile(expression)
		if checked := Check(expression); (err == nil) != (checked == nil) || err != nil && err.Error() != checked.Error() {
			t.Fatalf("got %v, want %v", checked, err)
		}
		if err != nil {
			return
		}
		tree, _ := syntax.Parse(expression, syntax.Perl)
		bound := instructions(tree)
		if bound > maxProgram {
			return
		}
		if program, err := syntax.Compile(tree.Simplify()); err == nil && bound < int64(len(program.Inst))-2 {
			t.Errorf("%d instructions are expected, %q has %d", bound, expression, len(program.Inst)-2)
		}
		got, err := New(expression).Match(NewWork(context.Background(), 1<<50), text)
		if err != nil || got != want.MatchString(text) {
			t.Errorf("got %v, %v", got, err)
		}
		if read := want.MatchReader(&runes{ctx: context.Background(), text: text, every: 1}); read != got {
			t.Errorf("%q on %q is %v with a reader, %v without", expression, text, read, got)
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	const expression, text = `^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`, "an-ordinary-name"
	b.Run("bounded", func(b *testing.B) {
		p, work := New(expression), NewWork(context.Background(), 1<<60)
		for b.Loop() {
			if ok, err := p.Match(work, text); !ok || err != nil {
				b.Fatal(ok, err)
			}
		}
	})
	b.Run("regexp", func(b *testing.B) {
		p := regexp.MustCompile(expression)
		for b.Loop() {
			if !p.MatchString(text) {
				b.Fatal("no match")
			}
		}
	})
}

// TestLongListsOfShortTextsMatch: a large program takes little time on most texts, so that a list of
// ten thousand of them, as of addresses, is not refused, and it is compiled once.
func TestLongListsOfShortTextsMatch(t *testing.T) {
	pattern, work := New("^.{1,1000}$"), NewWork(context.Background(), MaxWork)
	for i := range 10_000 {
		if matches, err := pattern.Match(work, "a-name-that-is-rather-long.example.com"); err != nil || !matches {
			t.Fatalf("text %d: got %v, %v, want a match", i, matches, err)
		}
	}
	if pattern.program.Load() == nil {
		t.Error("the program is compiled for each text, want it kept")
	}
}

// TestTimeIsSpent: what takes its time is not given back.
func TestTimeIsSpent(t *testing.T) {
	pattern, work := New(bomb), NewWork(context.Background(), MaxWork/16)
	began := time.Now()
	for i := range 1_000_000 {
		if _, err := pattern.Match(work, strings.Repeat("a", 300)+strconv.Itoa(i)); err != nil {
			if !errors.Is(err, ErrTooCostly) {
				t.Errorf("got %v, want %v", err, ErrTooCostly)
			}
			return
		}
		if spent := time.Since(began); spent > time.Minute {
			t.Fatalf("still matching after %v", spent)
		}
	}
	t.Error("a million costly matches were not refused")
}
