package celbound

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/apikeel/kelson/internal/boundedregexp"
	"github.com/apikeel/kelson/internal/testsize"
)

func environmentOf(t testing.TB) *cel.Env {
	t.Helper()
	set, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions: []cel.EnvOption{
			cel.Variable("x", cel.DynType), cel.Variable("s", cel.StringType), cel.Variable("l", cel.ListType(cel.StringType)), cel.Variable("m", cel.MapType(cel.StringType, cel.DynType)),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return set.NewExpressionsEnv()
}

// forms are expressions of any length whose cost grows faster than that.
var forms = map[string]func(n int) string{
	"comparisons":  func(n int) string { return strings.Repeat("s==''||", n/7) + "true" },
	"dynamic":      func(n int) string { return strings.Repeat("x==1&&", n/6) + "true" },
	"lists":        func(n int) string { return strings.Repeat("[]==[]||", n/8) + "true" },
	"items":        func(n int) string { return "[" + strings.Repeat("[],", n/3) + "[]]==x" },
	"entries":      func(n int) string { return "{" + strings.Repeat("1:[],", n/5) + "1:[]}==x" },
	"macros":       func(n int) string { return strings.Repeat("l.map(a,[]).map(b,[b]).size()==0||", n/34) + "true" },
	"errors":       func(n int) string { return strings.Repeat("1+'a'==2||", n/10) + "true" },
	"optionals":    func(n int) string { return strings.Repeat("optional.none()==optional.none()||", n/34) + "true" },
	"indexes":      func(n int) string { return strings.Repeat("x[0]==x[1]||", n/12) + "true" },
	"nested lists": func(n int) string { d := min(n/2, 200); return strings.Repeat("[", d) + strings.Repeat("]", d) + "==x" },
	"many nested lists": func(n int) string {
		return strings.Repeat(strings.Repeat("[", 60)+strings.Repeat("]", 60)+"==x||", n/125) + "true"
	},
	"nested maps": func(n int) string { d := min(n/6, 20); return doubled(d) },
	"nested bindings": func(n int) string {
		d := min(n/12, 200)
		return "l" + strings.Repeat(".map(a,[a])", d) + ".size()==0"
	},
}

// doubled has a type that doubles with each level.
func doubled(levels int) string {
	return "[1]" + strings.Repeat(".map(a,{a:a})", levels) + ".size()==0"
}

// TestCompilationIsBounded compiles what is allowed of each form, and sees what is not.
func TestCompilationIsBounded(t *testing.T) {
	env := environmentOf(t)
	bounds := New(env.Functions())
	for name, form := range forms {
		refused := false
		for _, n := range []int{500, 2000, 8000, 32000, 64000}[:testsize.Pick(3, 5, 5)] {
			text := form(n)
			parsed, issues := env.Parse(text)
			if issues.Err() != nil {
				continue // it is nested too deeply
			}
			work := boundedregexp.NewWork(context.Background(), boundedregexp.MaxWork)
			if err := bounds.Check(work, parsed.NativeRep()); errors.Is(err, ErrTooComplex) {
				refused = true
				break
			} else if err != nil {
				t.Errorf("%s of %d bytes: %v", name, len(text), err)
				break
			}
			began := time.Now()
			_, _ = env.Check(parsed)
			took := time.Since(began)
			t.Logf("%s of %d bytes: %v", name, len(text), took)
			if took > 30*time.Second {
				t.Errorf("%s of %d bytes takes %v", name, len(text), took)
			}
		}
		if !refused && !testsize.Race() && !strings.HasPrefix(name, "nested") {
			t.Errorf("%s of 64 KB are not refused", name)
		}
	}
	if parsed, issues := env.Parse(doubled(30)); issues.Err() != nil || bounds.Check(boundedregexp.NewWork(context.Background(), boundedregexp.MaxWork), parsed.NativeRep()) == nil {
		t.Errorf("a type with 2^30 parts is not refused: %v", issues)
	}
}

// TestOrdinaryExpressionsAreAccepted has a rule of 10 KB of the kind that people write.
func TestOrdinaryExpressionsAreAccepted(t *testing.T) {
	env := environmentOf(t)
	rule := `(has(m.kind) && m.kind in ['Gateway', 'Service', 'HTTPRoute'] && size(m.name) <= 63 && l.all(a, a.matches('^[a-z]+$') && a != s)
		? m.port > 0 && m.port < 65536 : !has(m.port) || l.exists_one(b, b == m.name + '-suffix'))`
	text := rule
	for len(text) < 10_000 {
		text += " && " + rule
	}
	parsed, issues := env.Parse(text)
	if issues.Err() != nil {
		t.Fatal(issues.Err())
	}
	if err := New(env.Functions()).Check(boundedregexp.NewWork(context.Background(), boundedregexp.MaxWork), parsed.NativeRep()); err != nil {
		t.Errorf("a rule of %d bytes is refused: %v", len(text), err)
	}
}

// TestBoundedRegexpsCostTheSame evaluates calls as they are in CEL and bounded: values and costs
// are equal.
func TestBoundedRegexpsCostTheSame(t *testing.T) {
	env := environmentOf(t)
	for _, text := range []string{
		"s.matches('^a+$')", "s.matches(x)", "s.find('b+')", "s.find(x)", "s.findAll('a')", "s.findAll(x)", "s.findAll('a|b', 2)", "s.findAll(x, 0)", "l.all(e, e.matches('a'))",
		"l.exists(e, e.matches(s))", "s.matches('b') || s.find('a') == 'a'", "s.matches(s + '(')", "s.find(s + '(')", "x.matches(1)", "dyn(1).matches('a')", "s.matches(1 == 1 ? 'a' : 'b')",
	} {
		ast, issues := env.Compile(text)
		if issues.Err() != nil {
			continue
		}
		eval := func(options ...cel.ProgramOption) string {
			program, err := env.Program(ast, options...)
			if err != nil {
				t.Fatal(err)
			}
			v, details, err := program.Eval(map[string]any{"s": "aaabb", "x": "a+b", "l": []string{"a", "ba"}})
			return fmt.Sprint(v, err, *details.ActualCost())
		}
		if got, want := eval(Program(nil)...), eval(); got != want {
			t.Errorf("%s:\n got %s\nwant %s", text, got, want)
		}
	}
}
