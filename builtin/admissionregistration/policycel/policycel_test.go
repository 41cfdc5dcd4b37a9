package policycel

import (
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
)

func TestCompile(t *testing.T) {
	c := new(Environment).Compiler()
	for _, test := range []struct {
		expression string
		vars       Variables
		result     *cel.Type
		want       string
	}{
		{"object.spec.replicas > 1", Variables{}, cel.BoolType, ""},
		{"request.userInfo.username == 'x' && namespaceObject.metadata.name == 'y'", Variables{}, cel.BoolType, ""},
		{"request.nothing == 'x'", Variables{}, cel.BoolType, "undefined field 'nothing'"},
		{"params.x == 1", Variables{}, cel.BoolType, "undeclared reference to 'params'"},
		{"params.x == 1", Variables{Params: true}, cel.BoolType, ""},
		{"authorizer.requestResource.check('get').allowed()", Variables{Authorizer: true}, cel.BoolType, ""},
		{"variables.x == 1", Variables{}, cel.BoolType, "undeclared reference to 'variables'"},
		{"'x'", Variables{}, cel.BoolType, "must evaluate to bool but got string"},
		{"[JSONPatch{op: 'add', path: '/x', value: 1}]", Variables{Patch: true}, cel.ListType(cel.ObjectType("JSONPatch")), ""},
		{"Object{spec: Object.spec{replicas: 1}}", Variables{Patch: true}, cel.ObjectType("Object"), ""},
	} {
		_, err := c.Compile(nil, test.expression, test.vars, false, test.result)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Detail, test.want) {
			t.Errorf("%s: %v, want %q", test.expression, err, test.want)
		}
	}
}

func TestDefine(t *testing.T) {
	c := new(Environment).Composed()
	for _, v := range [][2]string{{"number", "1"}, {"names", "['a']"}, {"broken", "1 +"}, {"next", "variables.number + 1"}} {
		_, err := c.Define(nil, v[0], v[1], Variables{}, false)
		if (err != nil) != (v[0] == "broken") {
			t.Errorf("%s: %v", v[0], err)
		}
	}
	for expression, ok := range map[string]bool{
		"variables.next == 2":                true,
		"variables.number == 'x'":            false,
		"variables.names.all(n, n != 'b')":   true,
		"variables.broken == variables.next": true,
		"variables.other == 1":               false,
	} {
		if _, err := c.Compile(nil, expression, Variables{}, false, cel.BoolType); (err == nil) != ok {
			t.Errorf("%s: %v", expression, err)
		}
	}
}

func BenchmarkComposed(b *testing.B) {
	env := new(Environment)
	for b.Loop() {
		c := env.Composed()
		if _, err := c.Define(nil, "x", "object.x", Variables{}, false); err != nil {
			b.Fatal(err)
		}
	}
}
