package expression

import (
	"context"
	"slices"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/parser"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/builtin/admissionregistration/policycel"
)

// maxValues is the largest number of values of an expression.
const maxValues = 20

// Values returns what an expression read, and what it found: for object.spec.replicas <=
// params.max the values of object.spec.replicas and of params.max. It compiles them, so it
// is for people who ask, not for writes. The expression must be valid.
func Values(ctx context.Context, c *policycel.Compiler, text string, vars policycel.Variables, in Input) (values []admission.Value) {
	compiled, wrong := c.Compile(nil, text, vars, true, cel.AnyType, cel.BoolType)
	if wrong != nil || compiled.AST == nil {
		return nil
	}
	r := reads{info: compiled.AST.SourceInfo()}
	r.collect(compiled.AST.Expr(), nil)
	e, err := in.Begin(Budget)
	if err != nil {
		return nil
	}
	for _, read := range r.found {
		v, failed, err := e.Eval(ctx, Compile(c, read.Expression, vars, cel.AnyType))
		switch {
		case err != nil:
			return values
		case failed != nil:
			read.Value = "an error: " + failed.Error()
		default:
			read.Value = admission.Shown(v.Value())
		}
		values = append(values, read)
	}
	return values
}

// reads finds the parts of an expression that read variables.
type reads struct {
	info  *ast.SourceInfo
	found []admission.Value
}

// collect finds the longest parts such as object.spec.x that begin with a variable which is
// not one of locals, those of comprehensions.
func (r *reads) collect(e ast.Expr, locals []string) {
	if root := rootOf(e); root != "" && root != "authorizer" && !slices.Contains(locals, root) {
		text, err := parser.Unparse(e, r.info)
		known := slices.ContainsFunc(r.found, func(v admission.Value) bool { return v.Expression == text })
		if err == nil && !known && len(r.found) < maxValues {
			r.found = append(r.found, admission.Value{Expression: text, Root: root})
		}
		return
	}
	switch e.Kind() {
	case ast.SelectKind:
		r.collect(e.AsSelect().Operand(), locals)
	case ast.CallKind:
		call := e.AsCall()
		if call.IsMemberFunction() {
			r.collect(call.Target(), locals)
		}
		for _, arg := range call.Args() {
			r.collect(arg, locals)
		}
	case ast.ListKind:
		for _, item := range e.AsList().Elements() {
			r.collect(item, locals)
		}
	case ast.ComprehensionKind:
		loop := e.AsComprehension()
		r.collect(loop.IterRange(), locals)
		inner := append(slices.Clip(locals), loop.IterVar(), loop.IterVar2(), loop.AccuVar())
		r.collect(loop.LoopStep(), inner)
	}
}

// rootOf returns the variable that an expression of selections and constant indexes begins
// with, or "".
func rootOf(e ast.Expr) string {
	for {
		switch e.Kind() {
		case ast.IdentKind:
			return e.AsIdent()
		case ast.SelectKind:
			e = e.AsSelect().Operand()
		case ast.CallKind:
			call := e.AsCall()
			if call.FunctionName() != operators.Index || call.Args()[1].Kind() != ast.LiteralKind {
				return ""
			}
			e = call.Args()[0]
		default:
			return ""
		}
	}
}
