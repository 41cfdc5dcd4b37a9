// Package policycel compiles the CEL expressions of admission policies and match conditions of
// webhooks. Start at Environment and Compiler. An Environment costs nothing until the first
// expression is compiled. The package never evaluates expressions.
package policycel

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types/traits"
	"k8s.io/apimachinery/pkg/util/version"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
	"k8s.io/apiserver/pkg/cel/mutation"

	"github.com/apikeel/kelson/internal/boundedregexp"
	"github.com/apikeel/kelson/internal/celbound"
)

// Variables are the variables of an expression besides object, oldObject, namespaceObject and
// request.
type Variables struct {
	// Params: params.
	Params bool
	// Authorizer: authorizer, and authorizer.requestResource.
	Authorizer bool
	// Patch: the types Object and JSONPatch, for mutations.
	Patch bool
}

// Compiled is a compiled expression.
type Compiled struct {
	Program cel.Program
	Type    *cel.Type
	// AST is the type-checked expression.
	AST *ast.AST
}

// Error is a compile error, with the message of kube-apiserver. Internal says that it is a
// failure of the server, not of the expression.
type Error struct {
	Detail   string
	Internal bool
}

func (e *Error) Error() string { return e.Detail }

// Environment makes compilers. The zero value is ready.
type Environment struct {
	mu    sync.Mutex
	plain *Compiler
}

// Compiler returns the compiler of expressions without spec.variables.
func (e *Environment) Compiler() *Compiler {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.plain == nil {
		e.plain = &Compiler{}
	}
	return e.plain
}

// Composed returns a compiler for one policy, to which Define adds variables.
func (e *Environment) Composed() *Compiler {
	return &Compiler{
		variables: apiservercel.NewObjectType("kubernetes.variables", map[string]*apiservercel.DeclField{}), patterns: boundedregexp.NewSet(),
	}
}

// Typed returns a composed compiler that knows the types of objects and parameters, nil for an
// unknown type. Its programs are only type-checked, not evaluated.
func (e *Environment) Typed(object, params *apiservercel.DeclType) *Compiler {
	c := e.Composed()
	c.object, c.params = object, params
	return c
}

// Compiler compiles expressions. It makes and caches a CEL environment for each set of
// variables.
type Compiler struct {
	variables *apiservercel.DeclType
	// patterns are those of all expressions of a policy; nil makes new ones for each.
	patterns *boundedregexp.Set
	// object and params are of any type if they are nil.
	object, params *apiservercel.DeclType

	mu     sync.Mutex
	sets   map[Variables]*environment.EnvSet
	bounds *celbound.Bounds
}

// boundsOf returns the bounds of expressions, which are the same for all sets of variables.
func (c *Compiler) boundsOf(env *cel.Env) *celbound.Bounds {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bounds == nil {
		c.bounds = celbound.New(env.Functions())
	}
	return c.bounds
}

// VariablesType returns the type of the variables that Define has declared; nil if the
// compiler has none.
func (c *Compiler) VariablesType() *apiservercel.DeclType { return c.variables }

// Compile compiles an expression whose result must be of one of the types. stored accepts what
// a newer server may have accepted. What it costs is subtracted from work, which is nil for an
// expression that was accepted.
func (c *Compiler) Compile(work *boundedregexp.Work, expression string, vars Variables, stored bool, results ...*cel.Type) (Compiled, *Error) {
	mode := environment.NewExpressions
	if stored {
		mode = environment.StoredExpressions
	}
	env, err := c.env(vars, mode)
	if err != nil {
		return Compiled{}, &Error{Detail: fmt.Sprintf("unexpected error loading CEL environment: %v", err), Internal: true}
	}
	if work == nil {
		work = boundedregexp.NewWork(context.Background(), boundedregexp.MaxWork)
	}
	if err := celbound.SpendText(work, expression); err != nil {
		return Compiled{}, &Error{Detail: "compilation failed: " + err.Error()}
	}
	parsed, issues := env.Parse(expression)
	if issues.Err() != nil {
		return Compiled{}, &Error{Detail: "compilation failed: " + issues.String()}
	}
	if err := c.boundsOf(env).Check(work, parsed.NativeRep()); err != nil {
		return Compiled{}, &Error{Detail: "compilation failed: " + err.Error()}
	}
	checked, issues := env.Check(parsed)
	if issues.Err() != nil {
		return Compiled{}, &Error{Detail: "compilation failed: " + issues.String()}
	}
	if got := checked.OutputType(); !oneOf(got, results) {
		if len(results) == 1 {
			return Compiled{}, &Error{Detail: fmt.Sprintf("must evaluate to %v but got %v", results[0], got)}
		}
		return Compiled{}, &Error{Detail: fmt.Sprintf("must evaluate to one of %v but got %v", results, got)}
	}
	program, err := env.Program(checked, celbound.Program(c.patterns)...)
	if err != nil {
		return Compiled{}, &Error{Detail: "program instantiation failed: " + err.Error(), Internal: true}
	}
	return Compiled{Program: program, Type: checked.OutputType(), AST: checked.NativeRep()}, nil
}

func oneOf(t *cel.Type, wanted []*cel.Type) bool {
	for _, w := range wanted {
		if t.IsExactType(w) || cel.AnyType.IsExactType(w) {
			return true
		}
	}
	return false
}

// Define compiles a variable and declares it for later expressions. One that does not compile
// has a dynamic type.
func (c *Compiler) Define(work *boundedregexp.Work, name, expression string, vars Variables, stored bool) (Compiled, *Error) {
	compiled, err := c.Compile(work, expression, vars, stored, cel.AnyType)
	c.variables.Fields[name] = apiservercel.NewDeclField(name, declared(compiled.Type), true, nil, nil)
	return compiled, err
}

func (c *Compiler) env(vars Variables, mode environment.Type) (*cel.Env, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	set := c.sets[vars]
	if set == nil {
		var err error
		if set, err = c.extend(vars); err != nil {
			return nil, err
		}
		if c.sets == nil {
			c.sets = map[Variables]*environment.EnvSet{}
		}
		c.sets[vars] = set
	}
	return set.Env(mode)
}

func (c *Compiler) extend(vars Variables) (*environment.EnvSet, error) {
	request, namespace := requestType(), namespaceType()
	options := []cel.EnvOption{
		cel.Variable("object", typeOf(c.object)),
		cel.Variable("oldObject", typeOf(c.object)),
		cel.Variable("namespaceObject", namespace.CelType()),
		cel.Variable("request", request.CelType()),
	}
	if vars.Params {
		options = append(options, cel.Variable("params", typeOf(c.params)))
	}
	if vars.Authorizer {
		options = append(options,
			cel.Variable("authorizer", library.AuthorizerType),
			cel.Variable("authorizer.requestResource", library.ResourceCheckType))
	}
	types := []*apiservercel.DeclType{namespace, request}
	for _, t := range []*apiservercel.DeclType{c.object, c.params} {
		if t != nil {
			types = append(types, t)
		}
	}
	if c.variables != nil {
		options = append(options, cel.Variable("variables", c.variables.CelType()))
		types = append(types, c.variables)
	}
	set, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions:        options,
		DeclTypes:         types,
	}, environment.StrictCostOpt)
	if err != nil || !vars.Patch {
		return set, err
	}
	return set.Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions: []cel.EnvOption{
			common.ResolverEnvOption(&mutation.DynamicTypeResolver{}),
			environment.UnversionedLib(library.JSONPatch),
		},
	})
}

func typeOf(t *apiservercel.DeclType) *cel.Type {
	if t == nil {
		return cel.DynType
	}
	return t.CelType()
}

// declared converts the type of a variable to a declaration.
func declared(t *cel.Type) *apiservercel.DeclType {
	if t == nil {
		return apiservercel.DynType
	}
	switch t {
	case cel.AnyType:
		return apiservercel.AnyType
	case cel.BoolType:
		return apiservercel.BoolType
	case cel.BytesType:
		return apiservercel.BytesType
	case cel.DoubleType:
		return apiservercel.DoubleType
	case cel.DurationType:
		return apiservercel.DurationType
	case cel.IntType:
		return apiservercel.IntType
	case cel.NullType:
		return apiservercel.NullType
	case cel.StringType:
		return apiservercel.StringType
	case cel.TimestampType:
		return apiservercel.TimestampType
	case cel.UintType:
		return apiservercel.UintType
	}
	if t.HasTrait(traits.ContainerType) && t.HasTrait(traits.IndexerType) {
		switch p := t.Parameters(); len(p) {
		case 1:
			return apiservercel.NewListType(declared(p[0]), -1)
		case 2:
			return apiservercel.NewMapType(declared(p[0]), declared(p[1]), -1)
		}
	}
	return apiservercel.DynType
}
