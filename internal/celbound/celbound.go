// Package celbound bounds what it costs to compile a CEL expression. Start at Bounds.
//
// The type checker of cel-go copies all type variables that it has bound for each overload
// that it tries, and writes out the types of all values: time that grows with the square of
// the expression, so that 60 KB take seconds, and with types that grow exponentially where a
// macro nests its variable in a map. It cannot be interrupted. Bounds estimates that from the
// parsed expression, which takes a time that grows with its size.
package celbound

import (
	"errors"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/decls"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"

	"github.com/apikeel/kelson/internal/boundedregexp"
)

const (
	// maxWork is what checking one expression may cost: type variables that are copied, and parts
	// of types that are written, a third of a microsecond each. A thousand comparisons fit.
	maxWork = 2_000_000
	// checkWork and parseWork are what a unit of maxWork and a byte of the text are of a
	// boundedregexp.Work.
	checkWork, parseWork = 32, 64
)

// ErrTooComplex says that an expression would take too long to be compiled.
var ErrTooComplex = errors.New("the expression is too complex to be type-checked: it compares, indexes or nests too many values, split it into several")

// Bounds estimates the costs of expressions of one environment.
type Bounds struct {
	functions map[string]function
}

// function is what checking a call costs.
type function struct {
	overloads, variables int
	// typed says that the type of the result does not depend on those of the arguments, wraps
	// that it is larger.
	typed, wraps bool
}

// New returns the bounds of an environment with functions.
func New(functions map[string]*decls.FunctionDecl) *Bounds {
	b := &Bounds{make(map[string]function, len(functions))}
	for name, f := range functions {
		known := function{typed: true}
		for _, overload := range f.OverloadDecls() {
			known.overloads++
			known.variables += len(overload.TypeParams())
			result := overload.ResultType()
			if !hasVariables(result) {
				continue
			}
			known.typed = false
			inside := result.Kind() != types.TypeParamKind
			for _, arg := range overload.ArgTypes() {
				if arg.Kind() == result.Kind() && arg.Kind() != types.TypeParamKind {
					inside = false
				}
			}
			known.wraps = known.wraps || inside
		}
		b.functions[name] = known
	}
	return b
}

func hasVariables(t *types.Type) bool {
	if t.Kind() == types.TypeParamKind {
		return true
	}
	for _, p := range t.Parameters() {
		if hasVariables(p) {
			return true
		}
	}
	return false
}

// SpendText subtracts what it costs to parse a text.
func SpendText(work *boundedregexp.Work, text string) error {
	return work.Spend(int64(len(text)) * parseWork)
}

// Check subtracts what it costs to check a parsed expression, and returns ErrTooComplex, or the
// error of work, if it must not be checked.
func (b *Bounds) Check(work *boundedregexp.Work, parsed *ast.AST) error {
	e := &estimate{bounds: b, sizes: map[string]int{}}
	e.expr(parsed.Expr())
	if e.work > maxWork {
		return ErrTooComplex
	}
	return work.Spend(e.work * checkWork)
}

// estimate is the state of an estimation.
type estimate struct {
	bounds *Bounds
	// variables is how many type variables are bound.
	variables int
	work      int64
	// sizes are those of the types of variables of macros, by name.
	sizes map[string]int
}

// unify counts a comparison of types, for which the variables are copied.
func (e *estimate) unify(times int) { e.work += int64(times) * int64(e.variables+1) }

// expr returns a bound of the size of an expression's type.
func (e *estimate) expr(x ast.Expr) (size int) {
	if e.work > maxWork {
		return 1
	}
	switch x.Kind() {
	case ast.IdentKind:
		size = e.sizes[x.AsIdent()]
	case ast.SelectKind:
		size = e.expr(x.AsSelect().Operand())
	case ast.CallKind:
		size = e.call(x.AsCall())
	case ast.ListKind:
		for _, element := range x.AsList().Elements() {
			size = max(size, e.expr(element))
			e.unify(1)
		}
		e.variables++
		size++
	case ast.MapKind:
		var keys, values int
		for _, entry := range x.AsMap().Entries() {
			keys, values = max(keys, e.expr(entry.AsMapEntry().Key())), max(values, e.expr(entry.AsMapEntry().Value()))
			e.unify(2)
		}
		e.variables += 2
		size = 1 + keys + values
	case ast.StructKind:
		for _, f := range x.AsStruct().Fields() {
			e.expr(f.AsStructField().Value())
			e.unify(1)
		}
	case ast.ComprehensionKind:
		size = e.comprehension(x.AsComprehension())
	}
	size = max(1, size)
	e.work += int64(min(size, maxWork)) * int64(min(size, maxWork))
	return size
}

func (e *estimate) call(c ast.CallExpr) (size int) {
	if c.IsMemberFunction() {
		size = e.expr(c.Target())
	}
	for _, arg := range c.Args() {
		size = max(size, e.expr(arg))
	}
	name := c.FunctionName()
	if name == operators.LogicalAnd || name == operators.LogicalOr {
		e.unify(len(c.Args()))
		return 1
	}
	f, known := e.bounds.functions[name]
	if !known {
		f = function{overloads: 1}
	}
	e.variables += f.variables
	e.unify(f.overloads)
	switch {
	case f.typed:
		return 1
	case f.wraps:
		return size + 1
	}
	return size
}

func (e *estimate) comprehension(c ast.ComprehensionExpr) (size int) {
	elements, result := e.expr(c.IterRange()), e.expr(c.AccuInit())
	scope := func(name string, size int) func() {
		before, known := e.sizes[name]
		e.sizes[name] = size
		return func() {
			if delete(e.sizes, name); known {
				e.sizes[name] = before
			}
		}
	}
	leave := []func(){scope(c.AccuVar(), result), scope(c.IterVar(), elements)}
	if c.HasIterVar2() {
		leave = append(leave, scope(c.IterVar2(), elements))
	}
	e.expr(c.LoopCondition())
	e.sizes[c.AccuVar()] = max(result, e.expr(c.LoopStep()))
	e.unify(3)
	size = e.expr(c.Result())
	for i := len(leave) - 1; i >= 0; i-- {
		leave[i]()
	}
	return size
}
