package admissionregistration

import (
	"errors"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/admissionregistration/policycel"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/internal/boundedregexp"
)

const maxConditions = 64

// expressions are those of the old object, by their use. They stay allowed even if this server
// would not accept them as new ones.
type expressions map[[2]string]bool

func (e expressions) add(use, text string) { e[[2]string{use, text}] = true }

func (e expressions) has(use, text string) bool { return e[[2]string{use, text}] }

func (e expressions) addConditions(conditions []admissionv1.MatchCondition) {
	for _, c := range conditions {
		e.add("match", c.Expression)
	}
}

// compiler validates the expressions of one object.
type compiler struct {
	// plain compiles match conditions; policy, which may know variables, everything
	// else.
	plain, policy *policycel.Compiler
	known         expressions
	// work is what may be spent on the expressions of the object.
	work   *boundedregexp.Work
	params bool
}

// check compiles an expression. shown is what an error prints of it.
func (c *compiler) check(with *policycel.Compiler, use, text, shown string, vars policycel.Variables, path *field.Path, results ...*cel.Type) field.ErrorList {
	vars.Params = c.params
	_, err := with.Compile(c.work, text, vars, c.known.has(use, shown), results...)
	return problem(err, shown, path)
}

func problem(err *policycel.Error, shown string, path *field.Path) field.ErrorList {
	switch {
	case err == nil:
		return nil
	case err.Internal:
		return field.ErrorList{field.InternalError(path, errors.New(err.Detail))}
	}
	return field.ErrorList{field.Invalid(path, shown, err.Detail)}
}

func (c *compiler) matchConditions(conditions []admissionv1.MatchCondition, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if n := len(conditions); n > maxConditions {
		errs = append(errs, field.TooMany(path, n, maxConditions))
	}
	seen := map[string]bool{}
	for i, m := range conditions {
		path := path.Index(i)
		if text := strings.TrimSpace(m.Expression); text == "" {
			errs = append(errs, field.Required(path.Child("expression"), ""))
		} else {
			errs = append(errs, c.check(c.plain, "match", text, text, policycel.Variables{Authorizer: true}, path.Child("expression"), cel.BoolType)...)
		}
		if m.Name == "" {
			errs = append(errs, field.Required(path.Child("name"), ""))
			continue
		}
		errs = append(errs, rules.Invalid(path.Child("name"), m.Name, validation.IsQualifiedName(m.Name))...)
		if seen[m.Name] {
			errs = append(errs, field.Duplicate(path.Child("name"), m.Name))
		}
		seen[m.Name] = true
	}
	return errs
}

// define validates the variables of a policy, and declares them for later expressions.
func (c *compiler) define(variables []admissionv1.Variable, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, v := range variables {
		path := path.Index(i)
		if strings.TrimSpace(v.Name) == "" {
			errs = append(errs, field.Required(path.Child("name"), "name is not specified"))
		} else if !isIdentifier(v.Name) {
			errs = append(errs, field.Invalid(path.Child("name"), v.Name, "must be a valid CEL identifier"))
		}
		if strings.TrimSpace(v.Expression) == "" {
			errs = append(errs, field.Required(path.Child("expression"), "expression is not specified"))
			continue
		}
		vars := policycel.Variables{Params: c.params, Authorizer: true}
		_, err := c.policy.Define(c.work, v.Name, v.Expression, vars, c.known.has("validation", v.Expression))
		errs = append(errs, problem(err, v.Expression, path.Child("expression"))...)
	}
	return errs
}

// isIdentifier reports whether CEL can use a name as it is.
func isIdentifier(name string) bool {
	for i, r := range name {
		letter := r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != "" && !slices.Contains([]string{
		"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let",
		"loop", "package", "namespace", "return", "var", "void", "while",
	}, name)
}
