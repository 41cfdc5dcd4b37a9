package expression

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/admissiontest"
	"github.com/apikeel/kelson/admission/match"
	"github.com/apikeel/kelson/builtin/admissionregistration/policycel"
	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/request"
)

// inputs are writes of a struct and of a map.
func inputs() []Input {
	c := admissiontest.Catalog()
	object := admissiontest.ConfigMap("x", "app=web", "tier=front")
	object.Data = map[string]string{"a": "1", "b": "two", "long": strings.Repeat("ab", 50)}
	object.Finalizers = []string{"f.example/1", "f.example/2"}
	widget := admissiontest.Widget("w", 7)
	widget.Object["list"] = []any{int64(1), int64(2), "three", nil, map[string]any{"name": "n"}}
	var out []Input
	for _, a := range []*admission.Attributes{
		admissiontest.Write(c, admission.Create, "v1", "configmaps", object, nil),
		admissiontest.Write(c, admission.Update, "v1", "configmaps", object, admissiontest.ConfigMap("x")),
		admissiontest.Write(c, admission.Create, "v1", "widgets", widget, nil),
	} {
		a.Request = &request.Request{User: request.User{Name: "jane", Groups: []string{"testers", "system:authenticated"}}}
		w := match.New(a, admissiontest.Objects{"namespaces": {admissiontest.Namespace("default")}})
		form, err := everything().Match(context.Background(), w)
		if err != nil || form == nil {
			panic(fmt.Sprint(form, err))
		}
		out = append(out, Input{Write: w, Form: form, Params: admissiontest.ConfigMap("p"), Namespace: &corev1.Namespace{}})
	}
	return out
}

func everything() *match.Criteria {
	return match.ForPolicy(&registrationv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{}})
}

// sentence makes an expression at random, of a kind that policies are made of.
func sentence(r *rand.Rand, depth int) string {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	path := func() string {
		return pick("object.metadata.name", "object.metadata.labels.app", "object.metadata.labels['tier']", "object.metadata.labels.none",
			"object.data.a", "object.data.long", "object.spec.size", "oldObject.metadata.name", "request.userInfo.username", "request.operation",
			"request.resource.resource", "request.namespace", "request.dryRun", "params.data.a", "object.metadata.generation", "object.list[0]",
			"namespaceObject.metadata.name", "object.metadata", "oldObject", "object.metadata.finalizers", "object.list", "object.metadata.name.x")
	}
	value := func() string {
		return pick("'x'", "'web'", "'front'", "''", "'jane'", "1", "7", "2.5", "true", "null", "'CREATE'", "'ab'", "['x', 'web']", "[]", path(), path(), path())
	}
	list := func() string {
		return pick("['x', 'web', 'jane']", "[]", "request.userInfo.groups", "object.metadata.labels", "object.data", "object.metadata.finalizers", "object.list", "oldObject.data", "[1, 2]")
	}
	if depth == 0 {
		switch r.IntN(9) {
		case 0, 1, 2:
			return fmt.Sprintf("%s %s %s", path(), pick("==", "!=", "==", "<", "<=", ">", ">="), value())
		case 3:
			return fmt.Sprintf("has(%s)", pick("object.metadata.labels", "object.metadata.labels.app", "object.data.zz", "oldObject.data", "request.userInfo", "object.spec.size", "object.metadata.generation"))
		case 4:
			return fmt.Sprintf("%s in %s", value(), list())
		case 5:
			return fmt.Sprintf("%s.%s(%s)", path(), pick("startsWith", "endsWith", "contains", "matches"), pick("'x'", "'ja'", "''", "'^a(b|c)+$'", "'['", path()))
		case 6:
			return fmt.Sprintf("size(%s) %s %s", pick(path(), list()), pick("==", ">", "<="), pick("0", "1", "2"))
		case 7:
			return fmt.Sprintf("%s.%s(v, %s)", list(), pick("all", "exists", "exists"), pick("v == 'x'", "v != 'x'", "v.startsWith('t')", "v in ['app', 'testers']", "object.data[v] == '1'", "v.size() > 3",
				"request.userInfo.groups.exists(v, v == 'testers')", "['x'].all(w, w != v)"))
		}
		return pick("true", "false", "1 == 1", "request.dryRun == true", "oldObject == null")
	}
	switch r.IntN(5) {
	case 0, 1:
		return fmt.Sprintf("(%s) && (%s)", sentence(r, depth-1), sentence(r, depth-1))
	case 2, 3:
		return fmt.Sprintf("(%s) || (%s)", sentence(r, depth-1), sentence(r, depth-1))
	}
	if r.IntN(2) == 0 {
		return fmt.Sprintf("!(%s)", sentence(r, depth-1))
	}
	return fmt.Sprintf("(%s) ? (%s) : (%s)", sentence(r, depth-1), sentence(r, depth-1), sentence(r, depth-1))
}

// TestQuick compares quick forms with the interpreter: where there is a value, it
// is the same, and no less is charged for it.
func TestQuick(t *testing.T) {
	env := new(policycel.Environment)
	r := randomtest.From(t, 1)
	had, all := 0, 0
	in := inputs()
	for range 1000 {
		text := sentence(r, r.IntN(3))
		p := Compile(env.Compiler(), text, policycel.Variables{Params: true}, cel.BoolType)
		if p.err != nil {
			continue
		}
		if p.quick == nil {
			continue
		}
		for i := range in {
			e, err := in[i].Begin(Budget)
			if err != nil {
				t.Fatal(err)
			}
			e.ctx = context.Background()
			quick, cost := p.quick(&e.run), e.run.cost
			want, details, err := p.program.ContextEval(e.ctx, e)
			all++
			if quick == nil {
				continue
			}
			had++
			if err != nil || types.Equal(quick, want) != types.True || quick.Type() != want.Type() {
				t.Errorf("%s: %v, the interpreter says %v, %v", text, quick, want, err)
			}
			if actual := details.ActualCost(); actual == nil || int64(*actual) > cost {
				t.Errorf("%s: charged %d, it costs %d", text, cost, *actual)
			}
		}
	}
	if had < all/3 {
		t.Errorf("%d of %d have a value", had, all)
	}
}

// TestExcludes compares what is said of conditions at little cost, and what is
// said with quick forms, with what the interpreter alone says: whether they are
// met, and whether that is an error.
func TestExcludes(t *testing.T) {
	env := new(policycel.Environment)
	r := randomtest.From(t, 3)
	in := inputs()
	excluded, sieved := 0, 0
	for range 400 {
		var list []registrationv1.MatchCondition
		for range 1 + r.IntN(3) {
			text := sentence(r, r.IntN(2))
			if r.IntN(3) > 0 { // as most are
				text = fmt.Sprintf("%s && (%s)", []string{
					"object.metadata.name == 'x'", "object.metadata.name != 'x'", "has(object.metadata.labels.none)", "object.metadata.labels.none == 'x'",
					"object.metadata.labels['tier'] in ['front', 'back']", "request.operation == 'UPDATE'", "'web' != object.metadata.labels.app",
					"object.spec.size != 'x'", "oldObject.metadata.name == 'x'",
				}[r.IntN(9)], text)
			}
			list = append(list, registrationv1.MatchCondition{Name: "c", Expression: text})
		}
		c := CompileConditions(env.Compiler(), list, policycel.Variables{}, Owner{}, nil)
		slow := &Conditions{durations: c.durations}
		for _, p := range c.programs {
			slow.programs = append(slow.programs, &Program{Text: p.Text, program: p.program, err: p.err})
		}
		for i := range in {
			in := in[i]
			in.Params = nil
			quickly := c.Excludes(context.Background(), in.Write, in.Form)
			index := match.NewIndex([]*Conditions{c}, func(*Conditions) *match.Criteria { return everything() },
				func(c *Conditions) match.Needs { return match.Needs{All: c.Needs(), Excluded: c.Excluded} })
			if sieve := index.For(in.Write).Sieve(in.Write); sieve.Excludes(0) {
				sieved++
				quickly = true
			}
			met, err := c.Match(context.Background(), in)
			in.Write.Scratch = nil
			want, wantErr := slow.Match(context.Background(), in)
			if met != want || (err == nil) != (wantErr == nil) {
				t.Errorf("%v: %t, %v, the interpreter says %t, %v", list, met, err, want, wantErr)
			}
			if quickly && (want || wantErr != nil) {
				t.Errorf("%v excludes what the interpreter does not: %t, %v", list, want, wantErr)
			}
			if quickly {
				excluded++
			}
			if r.IntN(2) == 0 {
				in.Write.Scratch = nil
			}
		}
	}
	if excluded < 100 || sieved < 50 {
		t.Errorf("%d writes are excluded, %d by needs", excluded, sieved)
	}
}

// TestExcludesAnew checks that what is remembered of an object is forgotten when
// the object changes.
func TestExcludesAnew(t *testing.T) {
	in := inputs()[0]
	c := CompileConditions(new(policycel.Environment).Compiler(), []registrationv1.MatchCondition{
		{Name: "c", Expression: "object.data.a == '2' && object.data['a'] != '1'"}}, policycel.Variables{}, Owner{}, nil)
	if !c.Excludes(context.Background(), in.Write, in.Form) {
		t.Error("a = 1 is not excluded")
	}
	changed := admissiontest.ConfigMap("x")
	changed.Data = map[string]string{"a": "2"}
	if err := in.Form.Replace(changed); err != nil {
		t.Fatal(err)
	}
	if c.Excludes(context.Background(), in.Write, in.Form) {
		t.Error("a = 2 is excluded")
	}
	in.Params = nil
	if met, err := c.Match(context.Background(), in); !met || err != nil {
		t.Errorf("a = 2: %t, %v", met, err)
	}
}

// TestNeeds checks what is recognised as a need.
func TestNeeds(t *testing.T) {
	env := new(policycel.Environment)
	for text, want := range map[string]string{
		"object.metadata.name == 'y'":                                                       `object."metadata"."name" [y]`,
		"'y' != object.metadata.labels['a.b/c']":                                            `object."metadata"."labels"."a.b/c" not [y]`,
		"has(object.a.b) && object.a['b'] in ['x', 'y'] && object.c > 1 && has(o)":          "", // does not compile
		"has(object.a.b) && object.a['b'] in ['x', 'y'] && object.c > 1 && object.d == 'z'": `has object."a".b [true]; object."a"."b" [x y]`,
		"request.operation == 'CREATE' && (object.a == '1' || object.b == '2')":             `request."operation" [CREATE]`,
		"(request.operation == 'CREATE' && object.a == '1') && object.b == '2'":             `request."operation" [CREATE]; object."a" [1]; object."b" [2]`,
		"object.a == 1":                     "",
		"object.a == object.b":              "",
		"object.a in object.b":              "",
		"!(object.a == 'x')":                "",
		"object.list.exists(v, v.a == 'x')": "",
		"object.a in []":                    "",
		"variables.x == 'y'":                "",
		"object == 'x'":                     "",
	} {
		c := CompileConditions(env.Compiler(), []registrationv1.MatchCondition{{Name: "c", Expression: text}}, policycel.Variables{}, Owner{}, nil)
		var got []string
		for _, n := range c.Needs() {
			not := ""
			if n.Not {
				not = "not "
			}
			got = append(got, fmt.Sprintf("%s %s%v", n.Path, not, n.Is))
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("%s: %q", text, strings.Join(got, "; "))
		}
	}
	c := CompileConditions(env.Compiler(), []registrationv1.MatchCondition{
		{Name: "a", Expression: "object.a == 'x'"}, {Name: "b", Expression: "object.data.all(v, object.data.all(w, v != w))"},
	}, policycel.Variables{}, Owner{}, nil)
	if len(c.Needs()) != 0 {
		t.Error("a condition that may use up the budget is passed over")
	}
}

// TestQuickForms checks that what policies mostly say has a quick form.
func TestQuickForms(t *testing.T) {
	env := new(policycel.Environment)
	for text, quick := range map[string]bool{
		"object.metadata.name == 'y'":                                                 true,
		"!(request.userInfo.username.startsWith('system:'))":                          true,
		"!('system:nodes' in request.userInfo.groups)":                                true,
		"request.resource.group != 'coordination.k8s.io'":                             true,
		"has(object.metadata.labels) && object.metadata.labels['app'] == 'x'":         true,
		"request.userInfo.groups.exists(g, g == 'x' || g.matches('^system:.*'))":      true,
		"object.metadata.name.lowerAscii() == 'x'":                                    false,
		"authorizer.group('').resource('pods').check('get').allowed()":                false,
		"object.?metadata.?labels['x'].orValue('') == ''":                             false,
		"object.metadata.finalizers.map(f, f + 'x') == oldObject.metadata.finalizers": false,
	} {
		p := Compile(env.Compiler(), text, policycel.Variables{Authorizer: true}, cel.BoolType)
		if p.err != nil || (p.quick != nil) != quick {
			t.Errorf("%s: quick %t, %v", text, p.quick != nil, p.err)
		}
	}
}

// TestBudget checks that what is charged is what the interpreter charges,
// whoever has evaluated an expression.
func TestBudget(t *testing.T) {
	env := new(policycel.Environment)
	cheap := Compile(env.Compiler(), "object.metadata.name == 'x'", policycel.Variables{}, cel.BoolType)
	dear := Compile(env.Compiler(), "object.data.long.lowerAscii() == 'x'", policycel.Variables{}, cel.BoolType)
	in := inputs()[0]
	cost := func(p *Program) int64 {
		e, _ := in.Begin(Budget)
		_, details, err := p.program.ContextEval(context.Background(), e)
		if err != nil {
			t.Fatal(err)
		}
		return int64(*details.ActualCost())
	}
	exact := 3*cost(cheap) + cost(dear)
	for budget, fits := range map[int64]bool{exact: true, exact - 1: false, Budget: true} {
		e, err := in.Begin(budget)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []*Program{cheap, cheap, cheap, dear} {
			if err == nil {
				_, _, err = e.Eval(context.Background(), p)
			}
		}
		if (err == nil) != fits {
			t.Errorf("with %d for what costs %d: %v", budget, exact, err)
		}
		if fits && e.Rest(context.Background()) != budget-exact {
			t.Errorf("%d are left of %d", e.Rest(context.Background()), budget)
		}
	}
}
