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
		form, err := match.ForPolicy(&registrationv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{}}).Match(context.Background(), w)
		if err != nil || form == nil {
			panic(fmt.Sprint(form, err))
		}
		out = append(out, Input{Write: w, Form: form, Params: admissiontest.ConfigMap("p"), Namespace: &corev1.Namespace{}})
	}
	return out
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
	r := rand.New(rand.NewPCG(1, 2))
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
