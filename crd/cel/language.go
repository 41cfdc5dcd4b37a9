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
)

// language is the dialect of Kubernetes: what all expressions have in common.
//
// To extend its environment by two variables, as the libraries would have it,
// costs a copy of every function and a second proof that they fit each other, for
// every type that has rules: milliseconds, and a hundred kilobytes for as long as
// a program lives. Only the checker of types needs to know the variables, so that
// only that is made anew, from declarations that have been proved.
type language struct {
	env     *celgo.Env
	proved  *checker.Env
	configs settings
}

// languages are that of new expressions, and that of those which are stored.
var languages = sync.OnceValue(func() [2]*language {
	base := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	return [2]*language{newLanguage(base.NewExpressionsEnv()), newLanguage(base.StoredExpressionsEnv())}
})

func newLanguage(env *celgo.Env) *language {
	l := &language{env: env, configs: settings{}}
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
		panic(err) // the libraries do not fit each other
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

// checker returns what checks expressions with variables of a type.
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

// compile parses and checks an expression.
func (l *language) compile(text string, env *checker.Env) (*celgo.Ast, *celgo.Issues) {
	out, issues := l.env.Parse(text)
	if issues.Err() != nil {
		return nil, issues
	}
	parsed := out.NativeRep()
	checked, errs := checker.Check(parsed, out.Source(), env)
	issues = celgo.NewIssuesWithSourceInfo(errs, parsed.SourceInfo())
	if len(errs.GetErrors()) > 0 {
		return nil, issues
	}
	for _, v := range l.env.Validators() {
		v.Validate(l.env, l.configs, checked, issues)
	}
	if issues.Err() != nil {
		return nil, issues
	}
	// Both have the same tree; with what was found out about it, what was parsed
	// is as good as checked.
	for id, t := range checked.TypeMap() {
		parsed.SetType(id, t)
	}
	for id, ref := range checked.ReferenceMap() {
		parsed.SetReference(id, ref)
	}
	return out, nil
}

// foldable reports whether there is something to compute when a program is made,
// which may fail: literals that are converted, or are patterns. What is computed
// later is not looked at now.
func foldable(expression *ast.AST) (found bool) {
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

// settings are those of the checks that come after the one of types.
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
