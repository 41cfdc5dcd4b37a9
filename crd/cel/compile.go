package cel

import (
	"errors"
	"fmt"
	"strings"
	"time"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/decls"
	"github.com/google/cel-go/common/types"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/library"

	"github.com/apikeel/kelson/internal/boundedregexp"
	"github.com/apikeel/kelson/internal/celbound"
)

// The cost limits of kube-apiserver.
const (
	// maxCallCost is the cost limit of one evaluation of an expression.
	maxCallCost = 1_000_000
	// Budget is the cost limit of all rules on one object.
	Budget = 10_000_000
	// maxRequest is the largest request body in bytes; it bounds how often a rule can
	// be evaluated on one object.
	maxRequest = 3 << 20
	// maxMessage bounds the length of the result of a messageExpression.
	maxMessage = 5 << 10
)

// The variables of rules.
const (
	selfName = "self"
	oldName  = "oldSelf"
)

// Errors of Compile: the parent of the values has no CEL type, or the values themselves
// have none.
var (
	ErrNoType     = errors.New("failed to convert to declType for CEL validation rules")
	ErrUndeclared = errors.New("unable to convert structural schema to CEL declarations")
)

// Program is a compiled rule.
type Program struct {
	rule    apiextensions.ValidationRule
	program celgo.Program
	message celgo.Program
	path    string // fieldPath of the rule, below the value

	// Error and MessageError are the compile errors of the rule and its
	// messageExpression.
	Error, MessageError error
	// HasMessage says that the rule has a messageExpression.
	HasMessage bool
	// UsesOld says that the rule uses oldSelf (transition rule).
	UsesOld bool
	// Cost and MessageCost are the estimated worst-case costs of an evaluation.
	Cost, MessageCost uint64
	// Count is the estimated number of values of the type in one object, if no
	// maxItems or maxProperties bounds it.
	Count uint64
}

// Compile compiles the rules of a type, without those of its properties, to validate
// them. stored reports whether an expression was accepted before; such expressions may
// use features of CEL that new ones may not. It subtracts from work what that costs.
func Compile(work *boundedregexp.Work, t *Type, stored func(expression string) bool) ([]Program, error) {
	return compile(t, &compiler{work: work, stored: stored})
}

// compile compiles the rules of a type.
func compile(t *Type, c *compiler) ([]Program, error) {
	rules := t.props.XValidations
	if len(rules) == 0 {
		return nil, nil
	}
	if err := c.begin(t); err != nil {
		return nil, err
	}
	programs := make([]Program, len(rules))
	for i := range rules {
		c.compile(&programs[i], &rules[i])
	}
	return programs, nil
}

// begin prepares for the rules of a type.
func (c *compiler) begin(t *Type) error {
	decl := t.declared.decl
	switch {
	case decl == nil && t.declared.err != nil && !c.plan:
		return t.declared.err
	case decl == nil:
		return ErrNoType
	}
	// The name is another every time, so that no rule can come to rely on it.
	c.props, c.decl = t.props, decl.MaybeAssignTypeName(fmt.Sprintf("selfType%d", time.Now().Nanosecond()))
	c.costs = &library.CostEstimator{SizeEstimator: sizes{decl}}
	return nil
}

// compile compiles one rule.
func (c *compiler) compile(p *Program, rule *apiextensions.ValidationRule) {
	p.rule = *rule
	p.Count = uint64(maxRequest / (c.decl.MinSerializedSize + 1))
	if strings.TrimSpace(rule.Rule) == "" {
		return
	}
	c.expressions(p)
	if p.Error == nil && p.MessageError == nil && rule.FieldPath != "" {
		if path, _, err := FieldPath(rule.FieldPath, c.props, true); err == nil {
			p.path = path.String()
		}
	}
}

// compiler compiles the rules of one type.
type compiler struct {
	work *boundedregexp.Work
	// patterns are those of all expressions of the schema; nil makes new ones.
	patterns *boundedregexp.Set
	props    *apiextensions.JSONSchemaProps
	decl     *apiservercel.DeclType
	stored   func(string) bool
	costs    *library.CostEstimator
	// checkers are type checkers with the variables declared: for new and stored
	// expressions, each with oldSelf as a plain and an optional value.
	checkers [4]*checker.Env
	// plan makes programs that can be evaluated, not only checked.
	plan bool
}

// checker returns the type checker for expressions of a language.
func (c *compiler) checker(l *language, at int, optional bool) (*checker.Env, error) {
	old := c.decl.CelType()
	if optional {
		old, at = types.NewOptionalType(old), at+2
	}
	if c.checkers[at] != nil {
		return c.checkers[at], nil
	}
	env, err := l.checker(c.decl, decls.NewVariable(selfName, c.decl.CelType()), decls.NewVariable(oldName, old))
	c.checkers[at] = env
	return env, err
}

// expressions compiles the expressions of a rule.
func (c *compiler) expressions(p *Program) {
	optional := p.rule.OptionalOldSelf != nil && *p.rule.OptionalOldSelf
	var ast *celgo.Ast
	p.program, ast, p.Cost, p.Error = c.expression(p.rule.Rule, optional, celgo.BoolType, words{
		fails: "compilation failed: ", wrongType: "cel expression must evaluate to a bool",
		program: "program instantiation failed: ", cost: "cost estimation failed: ",
	})
	if p.Error != nil {
		return
	}
	for _, ref := range ast.NativeRep().ReferenceMap() {
		p.UsesOld = p.UsesOld || ref.Name == oldName
	}
	if p.rule.MessageExpression == "" {
		return
	}
	p.message, _, p.MessageCost, p.MessageError = c.expression(p.rule.MessageExpression, optional, celgo.StringType, words{
		fails: "messageExpression compilation failed: ", wrongType: "messageExpression must evaluate to a string",
		program: "messageExpression instantiation failed: ", cost: "cost estimation failed for messageExpression: ",
	})
	p.HasMessage = p.MessageError == nil
}

// words are prefixes of error messages about an expression.
type words struct{ fails, wrongType, program, cost string }

func (c *compiler) expression(text string, optional bool, kind *celgo.Type, say words) (celgo.Program, *celgo.Ast, uint64, error) {
	at := 0
	if c.stored(text) {
		at = 1
	}
	l := languages()[at]
	env, err := c.checker(l, at, optional)
	if err != nil {
		return nil, nil, 0, errors.New(say.fails + err.Error())
	}
	ast, issues, err := l.compile(c.work, text, env)
	if err != nil {
		return nil, nil, 0, errors.New(say.fails + err.Error())
	}
	if issues != nil {
		return nil, nil, 0, errors.New(say.fails + issues.String())
	}
	if ast.OutputType() != kind {
		return nil, nil, 0, errors.New(say.wrongType)
	}
	var program celgo.Program
	if c.plan || hasConstantCalls(ast.NativeRep()) {
		options := append(celbound.Program(c.patterns), celgo.CostLimit(maxCallCost), celgo.CostTracking(c.costs))
		program, err = l.env.Program(ast, options...)
		if err != nil {
			return nil, nil, 0, errors.New(say.program + err.Error())
		}
	}
	cost, err := l.env.EstimateCost(ast, c.costs)
	if err != nil {
		return nil, nil, 0, errors.New(say.cost + err.Error())
	}
	return program, ast, cost.Max, nil
}

// sizes estimates the sizes of values from maxLength, maxItems and the like.
type sizes struct{ root *apiservercel.DeclType }

// EstimateSize implements checker.CostEstimator.
func (s sizes) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	path := element.Path()
	if len(path) == 0 {
		return nil
	}
	t := s.root
	for _, name := range path[1:] { // path[0] is the variable
		switch name {
		case "@items", "@values":
			t = t.ElemType
		case "@keys":
			t = t.KeyType
		default:
			f, ok := t.Fields[name]
			if !ok {
				return nil
			}
			t = f.Type
		}
		if t == nil {
			return nil
		}
	}
	return &checker.SizeEstimate{Max: uint64(t.MaxElements)}
}

// EstimateCallCost implements checker.CostEstimator.
func (sizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}
