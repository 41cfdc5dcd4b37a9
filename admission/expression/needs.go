package expression

import (
	"strconv"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	"github.com/apikeel/kelson/admission/match"
)

const (
	// maxNeeds and maxNeedValues bound the cost of an expression that consists of needs,
	// far below the budget.
	maxNeeds      = 20
	maxNeedValues = 100
	maxNeedText   = 1000
)

// needsOf returns conditions that must hold for an expression to be true: the leading
// operands of && that compare a field with literal strings or test for its presence. If one
// does not hold, the expression is false whatever the other operands are, and those are not
// evaluated. all says that there are no other operands.
func needsOf(checked *ast.AST) (needs []match.Need, all bool) {
	if checked == nil || !checked.IsChecked() {
		return nil, false
	}
	s := simplifier{ast: checked, locals: map[string]int{}}
	all = s.parts(checked.Expr(), func(part ast.Expr) bool {
		n, ok := s.need(part)
		if ok = ok && len(needs) < maxNeeds; ok {
			needs = append(needs, n)
		}
		return ok
	})
	return needs, all
}

// parts calls each with the operands of &&, in order, until each returns false.
func (s *simplifier) parts(e ast.Expr, each func(ast.Expr) bool) bool {
	if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != operators.LogicalAnd {
		return each(e)
	}
	for _, arg := range e.AsCall().Args() {
		if !s.parts(arg, each) {
			return false
		}
	}
	return true
}

func (s *simplifier) need(e ast.Expr) (match.Need, bool) {
	if e.Kind() == ast.SelectKind && e.AsSelect().IsTestOnly() {
		_, path := s.follow(e.AsSelect().Operand())
		test := s.has(e)
		return match.Need{Path: "has " + path + "." + e.AsSelect().FieldName(), Find: finder(test, types.BoolType), Is: []string{"true"}}, test != nil && path != ""
	}
	if e.Kind() != ast.CallKind || len(e.AsCall().Args()) != 2 {
		return match.Need{}, false
	}
	c := e.AsCall()
	field, other := c.Args()[0], c.Args()[1]
	n := match.Need{Not: c.FunctionName() == operators.NotEquals}
	switch c.FunctionName() {
	case operators.Equals, operators.NotEquals:
		if field.Kind() == ast.LiteralKind {
			field, other = other, field
		}
		n.Is = literalString(other)
	case operators.In:
		if other.Kind() != ast.ListKind || other.AsList().Size() > maxNeedValues {
			return n, false
		}
		for _, item := range other.AsList().Elements() {
			values := literalString(item)
			if values == nil {
				return n, false
			}
			n.Is = append(n.Is, values...)
		}
	}
	if len(n.Is) == 0 || field.Kind() != ast.SelectKind && field.Kind() != ast.CallKind {
		return n, false
	}
	find, path := s.follow(field)
	n.Path, n.Find = path, finder(find, types.StringType)
	return n, find != nil && path != ""
}

// literalString returns the string of a literal, nil for other expressions.
func literalString(e ast.Expr) []string {
	if e.Kind() != ast.LiteralKind {
		return nil
	}
	text, ok := e.AsLiteral().(types.String)
	if !ok || len(text) > maxNeedText {
		return nil
	}
	return []string{string(text)}
}

// finder returns a function that evaluates find; known is false if the result is not of the
// type.
func finder(find quick, of ref.Type) func(*match.Write, *match.Form) (string, bool) {
	return func(w *match.Write, form *match.Form) (string, bool) {
		e := onObjects(w, form)
		if e == nil {
			return "", false
		}
		v := find(&e.run)
		if v == nil || v.Type() != of {
			return "", false
		}
		switch v := v.(type) {
		case types.String:
			return string(v), true
		case types.Bool:
			return strconv.FormatBool(bool(v)), true
		}
		return "", false
	}
}
