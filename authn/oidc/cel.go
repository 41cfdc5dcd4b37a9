package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	celast "github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"
	apicel "k8s.io/apiserver/pkg/cel"
	celenv "k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/lazy"

	"github.com/apikeel/kelson/internal/celbound"
	"github.com/apikeel/kelson/request"
)

// This file compiles and evaluates the CEL expressions of a configuration.

// CEL variables: the claims of a token, or the user that was mapped from them.
const (
	claimsVariable = "claims"
	userVariable   = "user"
)

var errNotStrings = errors.New("expression must return a string or a list of strings")

// celEnvironment compiles expressions. Creating the CEL environments takes tens of
// milliseconds, so it is done with the first expression.
type celEnvironment struct {
	once sync.Once
	envs map[string]*cel.Env
	err  error
}

func (e *celEnvironment) env(variable string) (*cel.Env, error) {
	e.once.Do(func() {
		base := celenv.MustBaseEnvSet(celenv.DefaultCompatibilityVersion())
		strings := apicel.NewListType(apicel.StringType, -1)
		userType := apicel.NewObjectType("kubernetes.UserInfo", map[string]*apicel.DeclField{})
		for name, typ := range map[string]*apicel.DeclType{
			"username": apicel.StringType, "uid": apicel.StringType, "groups": strings,
			"extra": apicel.NewMapType(apicel.StringType, strings, -1),
		} {
			userType.Fields[name] = apicel.NewDeclField(name, typ, false, nil, nil)
		}
		e.envs = map[string]*cel.Env{}
		for name, typ := range map[string]*apicel.DeclType{
			claimsVariable: apicel.NewMapType(apicel.StringType, apicel.AnyType, -1),
			userVariable:   userType,
		} {
			set, err := base.Extend(celenv.VersionedOptions{
				IntroducedVersion: version.MajorMinor(1, 0),
				EnvOptions:        []cel.EnvOption{cel.Variable(name, typ.CelType())},
				DeclTypes:         []*apicel.DeclType{typ},
			})
			if err != nil {
				e.err = err
				return
			}
			e.envs[name] = set.StoredExpressionsEnv()
		}
	})
	return e.envs[variable], e.err
}

// program is a compiled expression with one variable.
type program struct {
	cel.Program
	variable, text string
	ast            *cel.Ast
}

// compile compiles an expression; a condition must return a bool.
func (e *celEnvironment) compile(variable, text string, condition bool, path *field.Path) (*program, *field.Error) {
	env, err := e.env(variable)
	if err != nil {
		return nil, field.InternalError(path, fmt.Errorf("unexpected error loading CEL environment: %w", err))
	}
	ast, issues := env.Compile(text)
	if issues != nil {
		return nil, field.Invalid(path, text, "compilation failed: "+issues.String())
	}
	if condition && ast.OutputType() != cel.BoolType {
		return nil, field.Invalid(path, text, "must evaluate to bool")
	}
	p, err := env.Program(ast, celbound.Program(nil)...)
	if err != nil {
		return nil, field.InternalError(path, fmt.Errorf("program instantiation failed: %w", err))
	}
	return &program{Program: p, variable: variable, text: text, ast: ast}, nil
}

// selects reports whether the expression reads a claim by name.
func (p *program) selects(claim string) bool {
	isClaims := func(e celast.Expr) bool { return e.Kind() == celast.IdentKind && e.AsIdent() == claimsVariable }
	found := celast.MatchDescendants(celast.NavigateAST(p.ast.NativeRep()), func(e celast.NavigableExpr) bool {
		switch e.Kind() {
		case celast.SelectKind:
			s := e.AsSelect()
			return s.FieldName() == claim && isClaims(s.Operand())
		case celast.CallKind:
			c := e.AsCall()
			if c.FunctionName() != operators.OptSelect || len(c.Args()) != 2 || c.Args()[1].Kind() != celast.LiteralKind {
				return false
			}
			return isClaims(c.Args()[0]) && c.Args()[1].AsLiteral() == types.String(claim)
		}
		return false
	})
	return len(found) > 0
}

func (p *program) eval(ctx context.Context, value traits.Mapper) (ref.Val, error) {
	result, _, err := p.ContextEval(ctx, map[string]any{p.variable: value})
	if err != nil {
		return nil, fmt.Errorf("expression '%s' resulted in error: %w", p.text, err)
	}
	return result, nil
}

// evalString evaluates an expression that must return a string; what is for the error.
func (p *program) evalString(ctx context.Context, value traits.Mapper, what string) (string, error) {
	result, err := p.eval(ctx, value)
	if err != nil {
		return "", fmt.Errorf("oidc: error evaluating %s claim expression: %w", what, err)
	}
	text, ok := result.(types.String)
	if !ok {
		return "", fmt.Errorf("oidc: error evaluating %s claim expression: %s claim expression must return a string", what, what)
	}
	return string(text), nil
}

// condition is an expression that must be true.
type condition struct {
	*program
	message string
}

func (c condition) check(ctx context.Context, value traits.Mapper) error {
	result, err := c.eval(ctx, value)
	switch {
	case err != nil:
		return err
	case result.Type() != types.BoolType:
		return errors.New("validation expression must return a boolean")
	case result != types.True:
		return fmt.Errorf("validation expression '%s' failed: %s", c.text, c.message)
	}
	return nil
}

// stringList converts the result of an expression, a string or a list of strings; empty
// strings are dropped.
func stringList(v ref.Val) ([]string, error) {
	var out []string
	add := func(v any) error {
		text, ok := v.(string)
		if !ok {
			return errNotStrings
		}
		if text != "" {
			out = append(out, text)
		}
		return nil
	}
	switch v := v.(type) {
	case types.Null:
		return nil, nil
	case types.String:
		return out, errors.Join(add(string(v)))
	case traits.Lister:
		for it := v.Iterator(); it.HasNext() == types.True; {
			if err := add(it.Next().Value()); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return nil, errNotStrings
}

// claimsValue converts claims to a CEL value; each claim is parsed on first use.
func claimsValue(c claims) *lazy.MapValue {
	m := lazy.NewMapValue(types.NewObjectType("kubernetes.claims"))
	for name, raw := range c {
		m.Append(name, func(*lazy.MapValue) ref.Val {
			var value any
			if err := json.Unmarshal(raw, &value); err != nil {
				return types.NewErr("claim %q failed to unmarshal: %v", name, err)
			}
			return unescape(types.DefaultTypeAdapter.NativeToValue(value))
		})
	}
	return m
}

// userValue converts a user to a CEL value.
func userValue(u *request.User) *lazy.MapValue {
	m := lazy.NewMapValue(types.NewObjectType("kubernetes.UserInfo"))
	for name, value := range map[string]any{"username": u.Name, "uid": u.UID, "groups": u.Groups, "extra": u.Extra} {
		m.Append(name, func(*lazy.MapValue) ref.Val { return unescape(types.DefaultTypeAdapter.NativeToValue(value)) })
	}
	return m
}

// unescape makes fields accessible whose names are not CEL identifiers, with the
// escaping of Kubernetes: a.b is a__dot__b.
func unescape(v ref.Val) ref.Val {
	switch v := v.(type) {
	case traits.Mapper:
		return unescapedMap{v}
	case traits.Lister:
		return unescapedList{v}
	}
	return v
}

type unescapedMap struct{ traits.Mapper }

func (m unescapedMap) Find(key ref.Val) (ref.Val, bool) {
	if name, ok := key.(types.String); ok {
		if plain, ok := apicel.Unescape(string(name)); ok {
			key = types.String(plain)
		}
	}
	value, ok := m.Mapper.Find(key)
	return unescape(value), ok
}

type unescapedList struct{ traits.Lister }

func (l unescapedList) Get(index ref.Val) ref.Val { return unescape(l.Lister.Get(index)) }
