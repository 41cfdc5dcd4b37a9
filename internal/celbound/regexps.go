package celbound

import (
	"context"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"

	"github.com/apikeel/kelson/internal/boundedregexp"
)

// WorkName is the name by which an activation gives the boundedregexp.Work of the evaluation.
// No expression can have it. Without it a call has a work of its own.
const WorkName = "@work"

// interruptEvery is after how many iterations of a comprehension the context is looked at.
const interruptEvery = 100

// Program returns the options of every program: its evaluation ends with the request, as cel-go's
// does only if it is told so, and its regular expressions have the cost of their programs. CEL
// counts them by the length of their text, of which a dozen characters may be a program of
// thousands of instructions. Patterns are kept in a set; nil makes a new one.
func Program(patterns *boundedregexp.Set) []cel.ProgramOption {
	if patterns == nil {
		patterns = boundedregexp.NewSet()
	}
	bind := func(call interpreter.InterpretableCall) interpreter.InterpretableCall {
		return &regexpCall{InterpretableCall: call, patterns: patterns}
	}
	options := []cel.ProgramOption{cel.InterruptCheckFrequency(interruptEvery), cel.CustomDecoratorV2(func(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
		call, ok := i.(interpreter.InterpretableCall)
		if !ok || !isRegexp(call.OverloadID()) {
			return i, nil
		}
		return bind(call), nil
	})}
	// Literals would be compiled by optimizations of the environment, unless these come first.
	for _, overload := range []string{overloads.MatchesString, findOverload, findAllOverload, findSomeOverload} {
		options = append(options, cel.OptimizeRegex(&interpreter.RegexOptimization{
			Function: overload, OverloadID: overload, RegexIndex: 1,
			Factory: func(call interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
				return call, boundedregexp.Check(pattern)
			},
		}))
	}
	return options
}

// The overloads of Kubernetes.
const (
	findOverload     = "string_find_string"
	findAllOverload  = "string_find_all_string"
	findSomeOverload = "string_find_all_string_int"
)

func isRegexp(overload string) bool {
	switch overload {
	case overloads.MatchesString, findOverload, findAllOverload, findSomeOverload:
		return true
	}
	return false
}

// regexpCall is a call of matches, find or findAll.
type regexpCall struct {
	interpreter.InterpretableCall
	patterns *boundedregexp.Set
}

// Eval implements interpreter.Interpretable.
func (c *regexpCall) Eval(a interpreter.Activation) ref.Val { return c.Exec(interpreter.AsFrame(a)) }

// Exec implements interpreter.InterpretableV2.
func (c *regexpCall) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	var values []ref.Val
	for _, arg := range c.Args() {
		v := arg.Exec(frame)
		if types.IsUnknownOrError(v) {
			return v
		}
		values = append(values, v)
	}
	return types.LabelErrNode(c.ID(), c.call(frame, values))
}

func (c *regexpCall) call(frame *interpreter.ExecutionFrame, values []ref.Val) ref.Val {
	if len(values) < 2 {
		return types.NoSuchOverloadErr()
	}
	text, ok := values[0].Value().(string)
	if !ok {
		return types.MaybeNoSuchOverloadErr(values[0])
	}
	expression, ok := values[1].Value().(string)
	if !ok {
		return types.MaybeNoSuchOverloadErr(values[1])
	}
	var work *boundedregexp.Work
	if known, ok := frame.ResolveName(WorkName); ok {
		work, _ = known.(*boundedregexp.Work)
	}
	if work == nil {
		work = boundedregexp.NewWork(context.Background(), boundedregexp.MaxWork)
	}
	pattern := boundedregexp.New(expression)
	if _, isLiteral := c.Args()[1].(interpreter.InterpretableConst); isLiteral {
		pattern = c.patterns.Pattern(expression)
	}
	fail := func(err error) ref.Val {
		switch {
		case work.Err() == boundedregexp.ErrTooCostly:
			// In the words of CEL, by which a cost limit is known.
			return types.NewErr("operation cancelled: actual cost limit exceeded: %w", err)
		case work.Err() != nil:
			return types.NewErr("operation interrupted: %w", err)
		case c.OverloadID() != overloads.MatchesString:
			return types.NewErr("Illegal regex: %v", err)
		}
		return types.WrapErr(err)
	}
	if c.OverloadID() == overloads.MatchesString {
		matches, err := pattern.Match(work, text)
		if err != nil {
			return fail(err)
		}
		return types.Bool(matches)
	}
	n := -1
	switch {
	case c.OverloadID() == findOverload:
		n = 1
	case len(values) == 3:
		limit, ok := values[2].Value().(int64)
		if !ok {
			return types.MaybeNoSuchOverloadErr(values[2])
		}
		n = int(limit)
	}
	found, err := pattern.FindAll(work, text, n)
	switch {
	case err != nil:
		return fail(err)
	case c.OverloadID() != findOverload:
		return types.NewStringList(types.DefaultTypeAdapter, found)
	case len(found) == 0:
		return types.String("")
	}
	return types.String(found[0])
}
