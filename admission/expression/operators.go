package expression

import (
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"

	"github.com/apikeel/kelson/internal/boundedregexp"
)

// Quick forms of CEL functions and operators.

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

// logic is && or ||: it ends with the first operand that decides.
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

// scalar reports whether a value is a scalar, and adds its size to the cost.
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

// compare is == or != if one operand is a scalar; comparing others can be expensive.
func compare(x, y quick, result func(equal bool) bool) quick {
	return func(r *run) ref.Val {
		r.cost += stepCost
		a := x(r)
		if a == nil {
			return nil
		}
		b := y(r)
		if s, ok := a.(types.String); ok {
			if t, ok := b.(types.String); ok {
				r.cost += int64(len(s))
				return types.Bool(result(s == t))
			}
		}
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

// matches is the function matches with a literal pattern.
func matches(x quick, pattern ast.Expr) quick {
	if pattern.Kind() != ast.LiteralKind {
		return nil
	}
	p, ok := pattern.AsLiteral().(types.String)
	if !ok {
		return nil
	}
	if boundedregexp.Check(string(p)) != nil {
		return nil
	}
	re := boundedregexp.New(string(p))
	return func(r *run) ref.Val {
		a, ok := x(r).(types.String)
		if !ok {
			return nil
		}
		matches, isSmall := re.MatchSmall(string(a))
		if !isSmall {
			return nil
		}
		r.cost += stepCost + int64(len(a)+1)*int64(len(p)+1)
		return types.Bool(matches)
	}
}
