package cel

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/boundedregexp"
)

// bounded evaluates a rule about the field a of an object.
func bounded(t *testing.T, ctx context.Context, rule, a string) string {
	t.Helper()
	text, err := json.Marshal(rule)
	if err != nil {
		t.Fatal(err)
	}
	p := schema(t, `{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"x-kubernetes-validations":[{"message":"broken","rule":`+string(text)+`}]}`)
	obj := map[string]any{"a": a, "b": `(?:a|aa|aaa){1000}b`}
	return NewRules(NewType(p, true), roomy).Validate(ctx, nil, obj, nil, nil, &Check{Budget: Budget}).ToAggregate().Error()
}

// TestRegularExpressionsOfRulesAreBounded has rules whose cost CEL takes for small: it counts the
// characters of a regular expression, which are a program of 7,000 instructions.
func TestRegularExpressionsOfRulesAreBounded(t *testing.T) {
	for _, rule := range []string{
		"self.a.matches('(?:a|aa|aaa){1000}b')", "self.a.matches(self.b)", "self.a.find('(?:a|aa|aaa){1000}b') == 'a'",
		"self.a.findAll('a.*b|a').size() == 1", "self.a.findAll('a.*b|a', 100000).size() == 1",
	} {
		began := time.Now()
		if got := bounded(t, context.Background(), rule, strings.Repeat("a", 500_000)); !strings.Contains(got, "no further validation rules will be run due to call cost exceeds limit") {
			t.Errorf("%s: got %s, want that its cost exceeds the limit", rule, got)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s took %v", rule, took)
		}
	}
	for _, rule := range []string{"self.a.matches('b')", "self.a.find('b+') == 'b'", "self.a.findAll('a').size() == 2", "self.a.findAll('a', 1).size() == 2", "self.a.matches(self.b)"} {
		if got := bounded(t, context.Background(), rule, "aaa"); !strings.Contains(got, "broken") {
			t.Errorf("%s: got %s, want that it is broken", rule, got)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if got := bounded(t, ctx, "self.a.matches('(?:a|aa|aaa){1000}b')", strings.Repeat("a", 10_000)); !strings.Contains(got, "interrupted") {
		t.Errorf("got %s after the request had ended", got)
	}
}

// TestComplexRulesAreRefused has rules whose compilation takes a time that grows with the square
// of their length, or exponentially.
func TestComplexRulesAreRefused(t *testing.T) {
	for _, rule := range []string{
		strings.Repeat("self.a==''||", 67<<10/12) + "true",
		strings.Repeat("[]==[]||", 67<<10/8) + "true",
		"[1]" + strings.Repeat(".map(a,{a:a})", 30) + ".size()==0",
	} {
		text, err := json.Marshal(rule)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		p := schema(t, `{"type":"object","properties":{"a":{"type":"string"}},"x-kubernetes-validations":[{"rule":`+string(text)+`}]}`)
		programs, err := Compile(boundedregexp.NewWork(context.Background(), boundedregexp.MaxWork), NewType(p, true), func(string) bool { return false })
		if err != nil || len(programs) != 1 || programs[0].Error == nil || !strings.Contains(programs[0].Error.Error(), "too complex") {
			t.Errorf("%.50s is not refused: %v", rule, err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%.50s took %v", rule, took)
		}
	}
}
