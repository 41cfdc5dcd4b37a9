package expression

import (
	"context"
	"regexp"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// Most expressions of policies are short: they compare a field or two with
// something known. The interpreter takes microseconds for those, since it counts
// what every step costs and can tell of every step that fails. A quick form of an
// expression does neither. It either comes to the value that the interpreter
// would come to, or to none, and then the interpreter has to be asked.

// quick evaluates a part of an expression. nil is that the interpreter has to be
// asked: something failed, or is of a type that is not looked at here.
type quick func(r *run) ref.Val

// run is one evaluation.
type run struct {
	e *Evaluation
	// locals are the variables of the loops that the evaluation is in.
	locals [maxLocals]ref.Val
	// cost is at least what the interpreter would charge.
	cost int64
}

const (
	maxLocals = 6
	// stepCost is the most that the interpreter charges for a step, apart from
	// what goes by the size of values.
	stepCost = 30
	// checkEvery is after how many turns of a loop the context is looked at.
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
	locals map[string]int // those in scope
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
		return s.field(e)
	case ast.CallKind:
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

// field is a selection, or the test whether there is something to be selected.
func (s *simplifier) field(e ast.Expr) quick {
	if s.ast.ReferenceMap()[e.ID()] != nil {
		return nil // a name with dots
	}
	sel := e.AsSelect()
	operand, name := s.of(sel.Operand()), ref.Val(types.String(sel.FieldName()))
	if operand == nil {
		return nil
	}
	if !sel.IsTestOnly() {
		return at(operand, name)
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

// at is what a map has for a key.
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

// literals is a list of strings that are known.
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
	if c.FunctionName() == operators.Index && len(args) == 2 && args[1].Kind() == ast.LiteralKind {
		key, ok := args[1].AsLiteral().(types.String)
		operand := s.of(args[0])
		if !ok || operand == nil {
			return nil
		}
		return at(operand, key)
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

func one(function string, x quick) quick {
	switch function {
	case operators.LogicalNot:
		return func(r *run) ref.Val {
			r.cost += stepCost
			if b, ok := x(r).(types.Bool); ok {
				return !b
			}
			return nil
		}
	case operators.NotStrictlyFalse:
		return func(r *run) ref.Val {
			b, ok := x(r).(types.Bool)
			if !ok {
				return nil
			}
			return b
		}
	case overloads.Size:
		return func(r *run) ref.Val {
			switch v := x(r).(type) {
			case types.String:
				r.cost += stepCost + int64(len(v))
				return v.Size()
			case traits.Sizer:
				r.cost += stepCost
				if n, ok := v.Size().(types.Int); ok {
					return n
				}
			}
			return nil
		}
	}
	return nil
}

func two(function string, x, y quick) quick {
	switch function {
	case operators.LogicalAnd:
		return logic(x, y, types.False)
	case operators.LogicalOr:
		return logic(x, y, types.True)
	case operators.Equals:
		return compare(x, y, func(equal bool) bool { return equal })
	case operators.NotEquals:
		return compare(x, y, func(equal bool) bool { return !equal })
	case operators.Less:
		return order(x, y, func(c types.Int) bool { return c < 0 })
	case operators.LessEquals:
		return order(x, y, func(c types.Int) bool { return c <= 0 })
	case operators.Greater:
		return order(x, y, func(c types.Int) bool { return c > 0 })
	case operators.GreaterEquals:
		return order(x, y, func(c types.Int) bool { return c >= 0 })
	case operators.In:
		return among(x, y)
	case overloads.StartsWith:
		return text(x, y, types.StringStartsWith)
	case overloads.EndsWith:
		return text(x, y, types.StringEndsWith)
	case overloads.Contains:
		return text(x, y, types.StringContains)
	}
	return nil
}

// logic ends with the first value that decides.
func logic(x, y quick, decides types.Bool) quick {
	return func(r *run) ref.Val {
		r.cost += stepCost
		a, ok := x(r).(types.Bool)
		if !ok {
			return nil
		}
		if a == decides {
			return a
		}
		if b, ok := y(r).(types.Bool); ok {
			return b
		}
		return nil
	}
}

func choice(which, yes, no quick) quick {
	return func(r *run) ref.Val {
		r.cost += stepCost
		b, ok := which(r).(types.Bool)
		switch {
		case !ok:
			return nil
		case bool(b):
			return yes(r)
		}
		return no(r)
	}
}

// scalar reports whether a value is a simple one, and charges for its size.
func (r *run) scalar(v ref.Val) bool {
	switch v := v.(type) {
	case types.String:
		r.cost += int64(len(v))
		return true
	case types.Int, types.Bool, types.Double, types.Uint, types.Null:
		return true
	}
	return false
}

// compare is about values of which one is simple: others can take long.
func compare(x, y quick, result func(equal bool) bool) quick {
	return func(r *run) ref.Val {
		r.cost += stepCost
		a := x(r)
		if a == nil {
			return nil
		}
		b := y(r)
		if b == nil || !r.scalar(a) && !r.scalar(b) {
			return nil
		}
		equal, ok := types.Equal(a, b).(types.Bool)
		if !ok {
			return nil
		}
		return types.Bool(result(bool(equal)))
	}
}

func order(x, y quick, result func(types.Int) bool) quick {
	return func(r *run) ref.Val {
		r.cost += stepCost
		a, ok := x(r).(traits.Comparer)
		if !ok {
			return nil
		}
		b := y(r)
		if b == nil || !r.scalar(a.(ref.Val)) || !r.scalar(b) {
			return nil
		}
		c, ok := a.Compare(b).(types.Int)
		if !ok {
			return nil
		}
		return types.Bool(result(c))
	}
}

func among(x, y quick) quick {
	return func(r *run) ref.Val {
		r.cost += stepCost
		a, ok := x(r).(types.String)
		if !ok {
			return nil
		}
		switch all := y(r).(type) {
		case traits.Mapper:
			r.cost += int64(len(a))
			v, found := all.Find(a)
			if v != nil && types.IsUnknownOrError(v) {
				return nil
			}
			return types.Bool(found)
		case traits.Lister:
			n, ok := all.Size().(types.Int)
			if !ok {
				return nil
			}
			r.cost += int64(n) * int64(1+len(a))
			if found, ok := all.Contains(a).(types.Bool); ok {
				return found
			}
		}
		return nil
	}
}

func text(x, y quick, f func(a, b ref.Val) ref.Val) quick {
	return func(r *run) ref.Val {
		a, ok := x(r).(types.String)
		if !ok {
			return nil
		}
		b, ok := y(r).(types.String)
		if !ok {
			return nil
		}
		r.cost += stepCost + int64(len(a)+1)*int64(len(b)+1)
		if v, ok := f(a, b).(types.Bool); ok {
			return v
		}
		return nil
	}
}

// matches is a pattern that is known.
func matches(x quick, pattern ast.Expr) quick {
	if pattern.Kind() != ast.LiteralKind {
		return nil
	}
	p, ok := pattern.AsLiteral().(types.String)
	if !ok {
		return nil
	}
	re, err := regexp.Compile(string(p))
	if err != nil {
		return nil
	}
	return func(r *run) ref.Val {
		a, ok := x(r).(types.String)
		if !ok {
			return nil
		}
		r.cost += stepCost + int64(len(a)+1)*int64(len(p)+1)
		return types.Bool(re.MatchString(string(a)))
	}
}

// loop is a fold, which is what all and exists are.
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

// quickly evaluates an expression without the interpreter; nil if that cannot be
// done.
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

// settle finds out what the expressions really cost that were evaluated quickly.
// It is for the rare case that it matters.
func (e *Evaluation) settle(ctx context.Context) {
	for _, p := range e.unpaid {
		if _, details, _ := p.program.ContextEval(ctx, e); details != nil && details.ActualCost() != nil {
			e.left -= clamp(*details.ActualCost())
		}
	}
	e.owed, e.unpaid = 0, nil
}
