package cel

import (
	"slices"
	"sync"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/decls"
	"github.com/google/cel-go/common/overloads"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/apikeel/kelson/internal/boundedregexp"
	"github.com/apikeel/kelson/internal/celbound"
)

// language is the CEL environment of Kubernetes, without the variables of rules.
//
// To extend an environment by the two variables, as cel-go intends, would copy and verify
// every function declaration for each type that has rules: milliseconds, and 100 KB for as
// long as a program lives. Only the type checker needs the variables, so a new checker is
// made for each type from declarations that are verified once.
type language struct {
	env     *celgo.Env
	proved  *checker.Env
	configs settings
	bounds  *celbound.Bounds
}

// languages are the environments of new expressions and of stored ones.
var languages = sync.OnceValue(func() [2]*language {
	base := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	return [2]*language{newLanguage(base.NewExpressionsEnv()), newLanguage(base.StoredExpressionsEnv())}
})

func newLanguage(env *celgo.Env) *language {
	l := &language{env: env, configs: settings{}, bounds: celbound.New(env.Functions())}
	var err error
	if l.proved, err = checker.NewEnv(env.Container, env.CELTypeProvider()); err == nil {
		err = l.proved.AddIdents(env.Variables()...)
	}
	for _, f := range env.Functions() {
		if err == nil && !f.IsDeclarationDisabled() {
			err = l.proved.AddFunctions(f)
		}
	}
	if err != nil {
		panic(err) // a bug in the libraries
	}
	for _, v := range env.Validators() {
		if c, ok := v.(celgo.ASTValidatorConfigurer); ok {
			if err := c.Configure(l.configs); err != nil {
				panic(err)
			}
		}
	}
	return l
}

// checker returns a type checker with variables of a type.
func (l *language) checker(t *apiservercel.DeclType, vars ...*decls.VariableDecl) (*checker.Env, error) {
	provider := apiservercel.NewDeclTypeProvider(t)
	provider.SetRecognizeKeywordAsFieldName(true)
	provider, err := provider.WithTypeProvider(l.env.CELTypeProvider())
	if err != nil {
		return nil, err
	}
	env, err := checker.NewEnv(l.env.Container, provider, checker.ValidatedDeclarations(l.proved), checker.CrossTypeNumericComparisons(true))
	if err != nil {
		return nil, err
	}
	return env, env.AddIdents(vars...)
}

// compile parses and checks an expression. err says that this is not within its bounds.
func (l *language) compile(work *boundedregexp.Work, text string, env *checker.Env) (_ *celgo.Ast, issues *celgo.Issues, err error) {
	if err := celbound.SpendText(work, text); err != nil {
		return nil, nil, err
	}
	out, issues := l.env.Parse(text)
	if issues.Err() != nil {
		return nil, issues, nil
	}
	parsed := out.NativeRep()
	if err := l.bounds.Check(work, parsed); err != nil {
		return nil, nil, err
	}
	checked, errs := checker.Check(parsed, out.Source(), env)
	issues = celgo.NewIssuesWithSourceInfo(errs, parsed.SourceInfo())
	if len(errs.GetErrors()) > 0 {
		return nil, issues, nil
	}
	for _, v := range l.env.Validators() {
		v.Validate(l.env, l.configs, checked, issues)
	}
	if issues.Err() != nil {
		return nil, issues, nil
	}
	// parsed and checked have the same tree, so parsed is completed with the types
	// and references of checked.
	for id, t := range checked.TypeMap() {
		parsed.SetType(id, t)
	}
	for id, ref := range checked.ReferenceMap() {
		parsed.SetReference(id, ref)
	}
	return out, nil, nil
}

// hasConstantCalls reports whether making a program evaluates constants, which may fail: type
// conversions and regular expressions of literals.
func hasConstantCalls(expression *ast.AST) (found bool) {
	ast.PreOrderVisit(expression.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if found || e.Kind() != ast.CallKind {
			return
		}
		call := e.AsCall()
		switch name := call.FunctionName(); {
		case overloads.IsTypeConversionFunction(name), name == "matches", name == "find", name == "findAll":
			found = slices.ContainsFunc(call.Args(), func(arg ast.Expr) bool { return arg.Kind() == ast.LiteralKind })
		}
	}))
	return found
}

// settings is the configuration of AST validators.
type settings map[string]any

// GetOrDefault implements cel.ValidatorConfig.
func (s settings) GetOrDefault(name string, value any) any {
	if v, ok := s[name]; ok {
		return v
	}
	return value
}

// Set implements cel.MutableValidatorConfig.
func (s settings) Set(name string, value any) error {
	s[name] = value
	return nil
}
