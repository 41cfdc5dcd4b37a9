package expression

import (
	"context"
	"strconv"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// Most expressions of policies are short: they compare a field or two with a literal. The
// CEL interpreter takes microseconds for them, because it tracks the cost and errors of
// every step. A quick form of an expression does neither. It either returns the value that
// the interpreter would return, or nil, and then the interpreter has to run.

// quick evaluates a part of an expression. It returns nil if the interpreter has to run: on
// an error, or for a type that quick forms do not support.
type quick func(r *run) ref.Val

// run is the state of one evaluation of quick forms.
type run struct {
	e *Evaluation
	// locals are the variables of comprehensions.
	locals [maxLocals]ref.Val
	// cost is an upper bound of the interpreter's cost.
	cost int64
	// known caches the paths that were read last, since many policies read the same
	// ones. next is the one to be replaced.
	known [maxKnown]found
	next  int
}

// found is the value at a path, nil if it could not be read.
type found struct {
	path  string
	value ref.Val
	cost  int64
}

const (
	maxLocals = 6
	maxKnown  = 4
	// stepCost is the largest cost that the interpreter charges for a step, without
	// what depends on the size of values.
	stepCost = 30
	// checkEvery is after how many iterations the context is checked.
	checkEvery = 1000
)

// simplify returns the quick form of an expression; nil if it has none.
func simplify(checked *ast.AST) quick {
	if checked == nil || !checked.IsChecked() {
		return nil
	}
	s := simplifier{ast: checked, locals: map[string]int{}}
	return s.of(checked.Expr())
}

type simplifier struct {
	ast    *ast.AST
	locals map[string]int // index of each variable in scope
	depth  int
}

func (s *simplifier) of(e ast.Expr) quick {
	switch e.Kind() {
	case ast.LiteralKind:
		v := e.AsLiteral()
		return func(*run) ref.Val { return v }
	case ast.IdentKind:
		return s.ident(e)
	case ast.SelectKind:
		if e.AsSelect().IsTestOnly() {
			return s.has(e)
		}
		return s.selected(e)
	case ast.CallKind:
		if isIndex(e) {
			return s.selected(e)
		}
		return s.call(e.AsCall())
	case ast.ListKind:
		return literals(e.AsList())
	case ast.ComprehensionKind:
		return s.loop(e.AsComprehension())
	}
	return nil
}

func (s *simplifier) ident(e ast.Expr) quick {
	name := e.AsIdent()
	if i, ok := s.locals[name]; ok {
		return func(r *run) ref.Val { return r.locals[i] }
	}
	switch name {
	case "object":
		return func(r *run) ref.Val {
			r.cost++
			return r.e.object
		}
	case "oldObject", "request", "params", "namespaceObject":
		return func(r *run) ref.Val {
			r.cost++
			v, _ := r.e.ResolveName(name)
			known, _ := v.(ref.Val)
			return known
		}
	}
	return nil
}

// has is the macro has().
func (s *simplifier) has(e ast.Expr) quick {
	sel := e.AsSelect()
	operand, name := s.of(sel.Operand()), ref.Val(types.String(sel.FieldName()))
	if operand == nil || s.ast.ReferenceMap()[e.ID()] != nil {
		return nil
	}
	return func(r *run) ref.Val {
		r.cost += stepCost
		m, ok := operand(r).(traits.Mapper)
		if !ok {
			return nil
		}
		v, found := m.Find(name)
		if v != nil && types.IsUnknownOrError(v) {
			return nil
		}
		return types.Bool(found)
	}
}

// isIndex reports whether an expression indexes a map with a literal string.
func isIndex(e ast.Expr) bool {
	c := e.AsCall()
	if c.FunctionName() != operators.Index || len(c.Args()) != 2 || c.Args()[1].Kind() != ast.LiteralKind {
		return false
	}
	_, ok := c.Args()[1].AsLiteral().(types.String)
	return ok
}

// selected is a field selection. Values at paths that do not begin with the variable of a
// comprehension are cached in run.
func (s *simplifier) selected(e ast.Expr) quick {
	find, path := s.follow(e)
	if find == nil || path == "" {
		return find
	}
	return func(r *run) ref.Val {
		for i := range r.known {
			if r.known[i].path == path {
				r.cost += r.known[i].cost
				return r.known[i].value
			}
		}
		before := r.cost
		v := find(r)
		r.known[r.next] = found{path, v, r.cost - before}
		r.next = (r.next + 1) % maxKnown
		return v
	}
}

// follow returns a function that reads a field, and its path, which is "" for fields of a
// comprehension variable.
func (s *simplifier) follow(e ast.Expr) (quick, string) {
	var operand ast.Expr
	var key types.String
	switch e.Kind() {
	case ast.IdentKind:
		if _, local := s.locals[e.AsIdent()]; local {
			return s.ident(e), ""
		}
		return s.ident(e), e.AsIdent()
	case ast.SelectKind:
		if e.AsSelect().IsTestOnly() {
			return s.of(e), ""
		}
		if s.ast.ReferenceMap()[e.ID()] != nil {
			return nil, "" // a qualified name
		}
		operand, key = e.AsSelect().Operand(), types.String(e.AsSelect().FieldName())
	case ast.CallKind:
		if !isIndex(e) {
			return s.of(e), ""
		}
		operand, key = e.AsCall().Args()[0], e.AsCall().Args()[1].AsLiteral().(types.String)
	default:
		return s.of(e), ""
	}
	of, path := s.follow(operand)
	if of == nil {
		return nil, ""
	}
	if path != "" {
		path += "." + strconv.Quote(string(key))
	}
	return at(of, key), path
}

// at reads the value of a key of a map.
func at(operand quick, key ref.Val) quick {
	return func(r *run) ref.Val {
		r.cost += stepCost
		m, ok := operand(r).(traits.Mapper)
		if !ok {
			return nil
		}
		if v, found := m.Find(key); found && !types.IsUnknownOrError(v) {
			return v
		}
		return nil
	}
}

// literals is a list of literal strings.
func literals(l ast.ListExpr) quick {
	values := make([]string, 0, l.Size())
	for _, e := range l.Elements() {
		if e.Kind() != ast.LiteralKind {
			return nil
		}
		text, ok := e.AsLiteral().(types.String)
		if !ok {
			return nil
		}
		values = append(values, string(text))
	}
	v := types.DefaultTypeAdapter.NativeToValue(values)
	return func(r *run) ref.Val {
		r.cost += stepCost
		return v
	}
}

func (s *simplifier) call(c ast.CallExpr) quick {
	args := c.Args()
	if c.IsMemberFunction() {
		args = append([]ast.Expr{c.Target()}, args...)
	}
	parts := make([]quick, len(args))
	for i, arg := range args {
		if parts[i] = s.of(arg); parts[i] == nil {
			return nil
		}
	}
	switch len(parts) {
	case 1:
		return one(c.FunctionName(), parts[0])
	case 2:
		if c.FunctionName() == overloads.Matches {
			return matches(parts[0], args[1])
		}
		return two(c.FunctionName(), parts[0], parts[1])
	case 3:
		if c.FunctionName() == operators.Conditional {
			return choice(parts[0], parts[1], parts[2])
		}
	}
	return nil
}

// loop is a comprehension of all or exists.
func (s *simplifier) loop(c ast.ComprehensionExpr) quick {
	if c.HasIterVar2() || s.depth+2 > maxLocals {
		return nil
	}
	over, from := s.of(c.IterRange()), s.of(c.AccuInit())
	if over == nil || from == nil {
		return nil
	}
	accu, item := s.depth, s.depth+1
	s.depth += 2
	names := [2]string{c.AccuVar(), c.IterVar()}
	var hidden [2]int
	for i, name := range names {
		hidden[i] = -1
		if outer, ok := s.locals[name]; ok {
			hidden[i] = outer
		}
	}
	s.locals[names[0]] = accu
	result := s.of(c.Result())
	s.locals[names[1]] = item
	more, step := s.of(c.LoopCondition()), s.of(c.LoopStep())
	for i, name := range names {
		if delete(s.locals, name); hidden[i] >= 0 {
			s.locals[name] = hidden[i]
		}
	}
	s.depth -= 2
	if more == nil || step == nil || result == nil {
		return nil
	}
	return func(r *run) ref.Val {
		r.cost += stepCost
		all, ok := over(r).(traits.Iterable)
		if !ok {
			return nil
		}
		if r.locals[accu] = from(r); r.locals[accu] == nil {
			return nil
		}
		turns := 0
		for it := all.Iterator(); it.HasNext() == types.True; turns++ {
			r.cost += stepCost
			r.locals[item] = it.Next()
			if r.cost > r.e.left || turns%checkEvery == checkEvery-1 && r.e.ctx.Err() != nil {
				return nil
			}
			on := more(r)
			if on == nil {
				return nil
			}
			if on != types.True {
				break
			}
			if r.locals[accu] = step(r); r.locals[accu] == nil {
				return nil
			}
		}
		return result(r)
	}
}

// quickly evaluates the quick form of an expression; nil if the interpreter has to run.
func (e *Evaluation) quickly(p *Program) ref.Val {
	if p.quick == nil {
		return nil
	}
	e.run.cost = 0
	v := p.quick(&e.run)
	if v == nil || e.owed+e.run.cost > e.left {
		return nil
	}
	e.owed += e.run.cost
	e.unpaid = append(e.unpaid, p)
	return v
}

// payExact computes the actual cost of the expressions in unpaid with the interpreter. That is
// rarely needed.
func (e *Evaluation) payExact(ctx context.Context) {
	for _, p := range e.unpaid {
		if _, details, _ := p.program.ContextEval(ctx, e); details != nil && details.ActualCost() != nil {
			e.left -= clamp(*details.ActualCost())
		}
	}
	e.owed, e.unpaid = 0, nil
}
