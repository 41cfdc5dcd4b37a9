// Package policycel compiles the expressions of admission policies and of the
// match conditions of webhooks: the Kubernetes dialect of CEL with the variables
// that a request for admission has.
//
// An Environment costs nothing until the first expression is compiled.
package policycel

import (
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
)

// checkFrequency is after how many steps of a comprehension a program looks
// whether it should stop.
const checkFrequency = 100

// Variables are those that an expression has besides object, oldObject,
// namespaceObject and request.
type Variables struct {
	// Params: params.
	Params bool
	// Authorizer: authorizer, and authorizer.requestResource.
	Authorizer bool
	// Patch: the types Object and JSONPatch, to make patches of.
	Patch bool
}

// Compiled is an expression that can be evaluated.
type Compiled struct {
	Program cel.Program
	Type    *cel.Type
	// AST is the expression with the types of its parts.
	AST *ast.AST
}

// Error says what is wrong with an expression, in the words that clients know.
// Internal tells failures of the server from those of the expression.
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

// Compiler returns the compiler of expressions that have no variables of their
// policy.
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
	return &Compiler{variables: apiservercel.NewObjectType("kubernetes.variables", map[string]*apiservercel.DeclField{})}
}

// Typed returns a composed compiler that knows the types of objects and of
// parameters, nil for one that is not known. What it compiles is not for
// evaluation: it finds mistakes that the others cannot.
func (e *Environment) Typed(object, params *apiservercel.DeclType) *Compiler {
	c := e.Composed()
	c.object, c.params = object, params
	return c
}

// Compiler compiles expressions. It makes an environment for a set of variables
// when the first expression needs it, and keeps it.
type Compiler struct {
	variables *apiservercel.DeclType
	// object and params are of any type if they are nil.
	object, params *apiservercel.DeclType

	mu   sync.Mutex
	sets map[Variables]*environment.EnvSet
}

// VariablesType is the type of the variables that Define has added, nil for a
// compiler that knows none.
func (c *Compiler) VariablesType() *apiservercel.DeclType { return c.variables }

// Compile checks an expression, whose result has to be of one of the types.
// stored allows what a newer server may have accepted.
func (c *Compiler) Compile(expression string, vars Variables, stored bool, results ...*cel.Type) (Compiled, *Error) {
	mode := environment.NewExpressions
	if stored {
		mode = environment.StoredExpressions
	}
	env, err := c.env(vars, mode)
	if err != nil {
		return Compiled{}, &Error{Detail: fmt.Sprintf("unexpected error loading CEL environment: %v", err), Internal: true}
	}
	checked, issues := env.Compile(expression)
	if issues != nil {
		return Compiled{}, &Error{Detail: "compilation failed: " + issues.String()}
	}
	if got := checked.OutputType(); !oneOf(got, results) {
		if len(results) == 1 {
			return Compiled{}, &Error{Detail: fmt.Sprintf("must evaluate to %v but got %v", results[0], got)}
		}
		return Compiled{}, &Error{Detail: fmt.Sprintf("must evaluate to one of %v but got %v", results, got)}
	}
	program, err := env.Program(checked, cel.InterruptCheckFrequency(checkFrequency))
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

// Define compiles a variable, which later expressions know. One that does not
// compile can be of any type.
func (c *Compiler) Define(name, expression string, vars Variables, stored bool) (Compiled, *Error) {
	compiled, err := c.Compile(expression, vars, stored, cel.AnyType)
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

// declared turns the type of a variable into one that can be declared.
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
