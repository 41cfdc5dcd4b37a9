package cel

import (
	"fmt"
	"testing"

	celgo "github.com/google/cel-go/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"

	"github.com/apikeel/kelson/internal/boundedregexp"
)

func expressions() []string {
	return []string{
		"self.n > 0", "self.n > 0.5", "self.s == 'a' || has(self.l) && self.l.all(x, x.k != '')", "self.l.exists_one(x, x.k.startsWith('a'))", "self.m['a'] == 1",
		"size(self.s) > 3", "self.s.matches('^[a-z]+$')", "self.s.matches('(')", "self.s.find('[')", "self.s.findAll('a+').size() > 1", "duration('1h') > duration('x')",
		"timestamp('2020-01-01T00:00:00Z') < timestamp('yesterday')", "int('x') > 1", "int('1') > 1", "bool('maybe')", "uint('-1') > 0u", "double('x') > 1.0", "quantity('10Mi').isGreaterThan(quantity('x'))",
		"[1, 'a'].size() > 0", "{'a': 1, 'a': 2}.size() > 0", "{'a': 1, 2: 'b'}.size() > 0", "self.nope", "nope", "self.n +", "self.n", "self", "self == self", "'a' in self.m", "self.l.map(x, x.v).sum() > 1",
		"self.l.filter(x, x.v > 1).size() == self.l.size()", "self.n in [1, 2, 3]", "type(self.n) == int", "dyn(self.n) == 'a'", "self.?n.orValue(1) == 1", "optional.of(self.n).hasValue()", "oldSelf == self",
		"self.__namespace__ == 'a'", "self.l.sort() == self.l", "self.l.isSorted()", "url('http://a').getHost() == 'a'", "url('::').getHost() == 'a'", "ip('1.2.3').family() == 4", "cidr('10.0.0.0/8').containsIP('x')",
		"self.s.lowerAscii() == 'x' ? self.n > 1 : false", "self.l[0].k == 'a' && self.l[0].v == self.n", "self.l.all(x, self.l.all(y, x.v + y.v > 0))", "'%d' .format([self.n]) == 'a'", "semver('1.2.3').major() == 1",
		"semver('x').major() == 1", "sets.contains([1], [self.n])", "self.l.all(i, x, x.v > i)", "cel.bind(a, self.n, a > 1)", "format.dns1123Label().validate(self.s).hasValue()", "self.b64 == b'abc'", "self.t < timestamp(self.s)",
		"string(self.n) + 'a' == 'b'", "self.metadata.name == 'a'", "self{}", "selfType{}", "self.s.charAt(100) == 'a'", "[].size() == self.n", "self.n / 0 > 1", "1 / 0 > 1", "-self.n < 0", "!(self.n > 1)", "self.s.split(',').join('-') == ''",
	}
}

// TestLanguage compares with environments that are extended as the library would
// have it: they accept the same expressions, at the same cost, and what is wrong
// is said in the same words.
func TestLanguage(t *testing.T) {
	typ := NewType(schema(t, `{"type":"object","properties":{"n":{"type":"integer"},"s":{"type":"string","maxLength":20},"namespace":{"type":"string"},"b64":{"type":"string","format":"byte"},"t":{"type":"string","format":"date-time"},
		"m":{"type":"object","additionalProperties":{"type":"integer"}},
		"l":{"type":"array","maxItems":10,"items":{"type":"object","properties":{"k":{"type":"string"},"v":{"type":"integer"}}}}},"x-kubernetes-validations":[{"rule":"true"}]}`), true)
	decl := typ.declared.decl.MaybeAssignTypeName("selfType")
	say := words{fails: "fails: ", wrongType: "type", program: "program: ", cost: "cost: "}
	for at, stored := range []bool{false, true} {
		c := &compiler{work: boundedregexp.NewWork(t.Context(), boundedregexp.MaxWork), decl: decl, stored: func(string) bool { return stored }, costs: &library.CostEstimator{SizeEstimator: sizes{decl}}}
		planned := *c
		planned.plan = true
		env := extended(t, at, decl)
		for _, text := range expressions() {
			want := compiled(env, c.costs, text)
			for _, c := range []*compiler{c, &planned} {
				_, _, cost, err := c.expression(text, false, celgo.BoolType, say)
				if got := fmt.Sprint(cost, err); got != want {
					t.Errorf("%s (stored: %v)\n got %s\nwant %s", text, stored, got, want)
				}
			}
		}
	}
}

// extended returns an environment with the variables of a type.
func extended(t *testing.T, at int, decl *apiservercel.DeclType) *celgo.Env {
	base := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	from := []*celgo.Env{base.NewExpressionsEnv(), base.StoredExpressionsEnv()}[at]
	provider := apiservercel.NewDeclTypeProvider(decl)
	provider.SetRecognizeKeywordAsFieldName(true)
	options, err := provider.EnvOptions(from.CELTypeProvider())
	if err != nil {
		t.Fatal(err)
	}
	env, err := from.Extend(append(options, celgo.Variable(selfName, decl.CelType()), celgo.Variable(oldName, decl.CelType()))...)
	if err != nil {
		t.Fatal(err)
	}
	return env
}

// compiled returns what becomes of an expression in an environment.
func compiled(env *celgo.Env, costs *library.CostEstimator, text string) string {
	ast, issues := env.Compile(text)
	if issues != nil {
		return fmt.Sprint(0, " fails: ", issues)
	}
	if ast.OutputType() != celgo.BoolType {
		return fmt.Sprint(0, " type")
	}
	if _, err := env.Program(ast, celgo.CostLimit(maxCallCost), celgo.CostTracking(costs), celgo.InterruptCheckFrequency(100)); err != nil {
		return fmt.Sprint(0, " program: ", err)
	}
	cost, err := env.EstimateCost(ast, costs)
	return fmt.Sprint(cost.Max, err)
}
