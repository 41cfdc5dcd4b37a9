// Package expression evaluates the CEL expressions of admission policies and the match
// conditions of webhooks. Start at Program, a compiled expression, and Evaluation, which
// evaluates programs on one write up to a cost budget. Objects are not converted for it:
// expressions read structs and maps in place, so they must not change them.
package expression

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/lazy"

	"github.com/apikeel/kelson/admission/match"
	"github.com/apikeel/kelson/builtin/admissionregistration/policycel"
	"github.com/apikeel/kelson/internal/boundedregexp"
	"github.com/apikeel/kelson/internal/celbound"
)

const (
	// Budget is the cost limit of all expressions of a policy on one write.
	Budget = 10_000_000
	// conditionBudget is the cost limit of match conditions.
	conditionBudget = 2_500_000
)

// ErrOutOfBudget says that the cost budget is exhausted.
var ErrOutOfBudget = errors.New("validation failed due to running out of cost budget, no further validation rules will be run")

// Program is a compiled expression.
type Program struct {
	Text    string
	program cel.Program
	quick   quick // nil if the expression has no quick form
	err     *policycel.Error
}

// Compile compiles an expression of a stored object. It need not be valid as a new one.
func Compile(c *policycel.Compiler, text string, vars policycel.Variables, results ...*cel.Type) *Program {
	compiled, err := c.Compile(nil, text, vars, true, results...)
	return newProgram(text, compiled, err)
}

func newProgram(text string, c policycel.Compiled, err *policycel.Error) *Program {
	p := &Program{Text: text, program: c.Program, err: err}
	if err == nil {
		p.quick = simplify(c.AST)
	}
	return p
}

// Err returns the compile error.
func (p *Program) Err() error {
	if p.err == nil {
		return nil
	}
	return p.err
}

// Variables are the spec.variables of a policy. A variable is evaluated on first use.
type Variables struct {
	kind     ref.Type
	names    []string
	programs []*Program
}

// Define compiles the variables of a policy and declares each in the compiler, which must be
// a composed one.
func Define(c *policycel.Compiler, variables []registrationv1.Variable, vars policycel.Variables) *Variables {
	out := &Variables{kind: c.VariablesType()}
	for _, v := range variables {
		compiled, err := c.Define(nil, v.Name, v.Expression, vars, true)
		out.names, out.programs = append(out.names, v.Name), append(out.programs, newProgram(v.Expression, compiled, err))
	}
	return out
}

// Input is what expressions are evaluated on.
type Input struct {
	Write *match.Write
	Form  *match.Form
	// Resource that matched a rule; empty for the resource of the request.
	Resource schema.GroupVersionResource
	// Params may be nil.
	Params runtime.Object
	// Namespace of the write; nil if it is in none.
	Namespace *corev1.Namespace
	// Authorizer is nil for expressions that have no variable authorizer.
	Authorizer Authorizer
	Variables  *Variables
	// Maps makes object and oldObject maps, whatever they are in Go. Parts of them can then
	// be joined with what the expression makes, and be written as JSON.
	Maps bool
}

// Evaluation evaluates expressions on one Input, up to a cost budget.
type Evaluation struct {
	Input
	// left is the remaining budget.
	left int64
	// owed is an upper bound of the cost of the programs in unpaid, which is not yet
	// subtracted from left.
	owed   int64
	unpaid []*Program
	first  [2]*Program // backing array of unpaid
	// ended is when the previous conditions ended; the next ones begin then.
	ended time.Time
	run   run
	// changes is Write.Changes of the objects that are cached here.
	changes int

	object, old, params, request, namespace ref.Val
	authorizer, own, variables              ref.Val
	ctx                                     context.Context
	spent                                   int64 // cost of variables
	work                                    *boundedregexp.Work
}

// Begin returns an Evaluation.
func (in Input) Begin(budget int64) (*Evaluation, error) {
	e := new(Evaluation)
	return e, e.begin(in, budget)
}

func (e *Evaluation) begin(in Input, budget int64) (err error) {
	*e = Evaluation{Input: in, left: budget}
	e.unpaid, e.run.e = e.first[:0], e
	return e.prepare()
}

// next resets the evaluation for another policy on the same objects, without params. in may
// differ only in Authorizer and Variables.
func (e *Evaluation) next(in *Input, budget int64) error {
	e.Authorizer, e.Variables, e.variables = in.Authorizer, in.Variables, nil
	e.left, e.owed, e.spent, e.work, e.unpaid = budget, 0, 0, nil, e.first[:0]
	return e.prepare()
}

func (e *Evaluation) prepare() (err error) {
	if e.object != nil && e.changes == e.Write.Changes() {
		return nil
	}
	e.changes, e.run.known, e.run.next = e.Write.Changes(), [maxKnown]found{}, 0
	values := e.Form.Values
	if e.Maps {
		values = e.Form.MapValues
	}
	if e.object, e.old, err = values(); err != nil {
		return fmt.Errorf("failed to prepare object variable for evaluation: %w", err)
	}
	return nil
}

// ResolveName implements cel.Activation. Values are made on first use.
func (e *Evaluation) ResolveName(name string) (any, bool) {
	switch name {
	case "object":
		return e.object, true
	case "oldObject":
		return e.old, true
	case celbound.WorkName:
		if e.work == nil {
			e.work = boundedregexp.NewWork(e.ctx, boundedregexp.MaxWork)
		}
		return e.work, true
	case "params":
		if e.params == nil {
			e.params = match.Value(e.Params)
		}
		return e.params, true
	case "request":
		if e.request == nil {
			e.request = e.requested()
		}
		return e.request, true
	case "namespaceObject":
		if e.namespace == nil {
			e.namespace = namespaceValue(e.Namespace)
		}
		return e.namespace, true
	case "authorizer", "authorizer.requestResource":
		if e.Authorizer == nil {
			return nil, false
		}
		if e.authorizer == nil {
			e.authorizer, e.own = e.Authorizer.values(e.Write)
		}
		if name == "authorizer" {
			return e.authorizer, true
		}
		return e.own, true
	case "variables":
		if e.variables == nil {
			e.variables = e.lazily()
		}
		return e.variables, true
	}
	return nil, false
}

// Parent implements cel.Activation.
func (e *Evaluation) Parent() cel.Activation { return nil }

func (e *Evaluation) lazily() ref.Val {
	if e.Variables == nil {
		return types.NullValue
	}
	values := lazy.NewMapValue(e.Variables.kind)
	for i, name := range e.Variables.names {
		p := e.Variables.programs[i]
		values.Append(name, func(*lazy.MapValue) ref.Val { return e.variable(name, p) })
	}
	return values
}

func (e *Evaluation) variable(name string, p *Program) ref.Val {
	if p.err != nil {
		return types.NewErr("composited variable %q fails to compile: %v", name, p.err)
	}
	v, details, err := p.program.ContextEval(e.ctx, e)
	if details == nil {
		return types.NewErr("unable to get evaluation details of variable %q", name)
	}
	cost := details.ActualCost()
	if cost == nil {
		return types.NewErr("unable to calculate cost of variable %q", name)
	}
	e.spent += clamp(*cost)
	if err != nil {
		return types.NewErr("composited variable %q fails to evaluate: %v", name, err)
	}
	return v
}

func clamp(cost uint64) int64 {
	if cost > math.MaxInt64/2 {
		return math.MaxInt64 / 2
	}
	return int64(cost)
}

// Eval evaluates an expression. failed is an error of the expression; err ends the
// evaluation.
func (e *Evaluation) Eval(ctx context.Context, p *Program) (v ref.Val, failed, err error) {
	if p.err != nil {
		return nil, fmt.Errorf("compilation error: %w", p.err), nil
	}
	e.ctx = ctx
	if v = e.quickly(p); v != nil {
		return v, nil, nil
	}
	v, details, evalErr := p.program.ContextEval(ctx, e)
	e.left -= e.spent
	e.spent = 0
	if details != nil && details.ActualCost() != nil && e.left-e.owed < clamp(*details.ActualCost()) {
		e.payExact(ctx)
	}
	if e.left < 0 {
		return nil, nil, ErrOutOfBudget
	}
	if details == nil || details.ActualCost() == nil {
		return nil, nil, fmt.Errorf("runtime cost could not be calculated for expression: %v, no further expression will be run", p.Text)
	}
	if e.left -= clamp(*details.ActualCost()); e.left < 0 {
		return nil, nil, ErrOutOfBudget
	}
	if evalErr != nil {
		return nil, fmt.Errorf("expression '%v' resulted in error: %w", p.Text, evalErr), nil
	}
	return v, nil, nil
}

// Rest returns the exact remaining budget.
func (e *Evaluation) Rest(ctx context.Context) int64 {
	e.payExact(ctx)
	return e.left
}

// requested returns the CEL variable request. It is the same for most policies, so it is
// cached in the form.
func (in *Input) requested() ref.Val {
	gvr := in.Resource
	if gvr.Empty() {
		gvr = in.Write.Served.GroupVersionResource()
	}
	return in.Form.Kept(gvr, func() ref.Val { return common.SchemalessTypedToVal(Request(in.Write, gvr, in.Form.Kind)) })
}

// Request returns the AdmissionRequest of a write, without objects, for a resource and kind
// equivalent to those of the request.
func Request(w *match.Write, gvr schema.GroupVersionResource, gvk schema.GroupVersionKind) *admissionv1.AdmissionRequest {
	asked := w.Served.GroupVersionResource()
	dryRun := w.DryRun
	u := &w.Request.User
	extra := make(map[string]authenticationv1.ExtraValue, len(u.Extra))
	for k, v := range u.Extra {
		extra[k] = v
	}
	r := &admissionv1.AdmissionRequest{
		Kind: metav1.GroupVersionKind(gvk), Resource: metav1.GroupVersionResource(gvr), SubResource: w.Subresource,
		RequestKind: (*metav1.GroupVersionKind)(&w.Kind), RequestResource: (*metav1.GroupVersionResource)(&asked), RequestSubResource: w.Subresource,
		Name: w.Name, Namespace: w.Namespace, Operation: admissionv1.Operation(w.Operation),
		UserInfo: authenticationv1.UserInfo{Username: u.Name, UID: u.UID, Groups: u.Groups, Extra: extra},
		DryRun:   &dryRun,
	}
	if w.Options != nil && !reflect.ValueOf(w.Options).IsNil() {
		kind := metav1.SchemeGroupVersion.WithKind(reflect.TypeOf(w.Options).Elem().Name())
		r.Options.Object = match.WithKind(w.Options, schema.GroupVersionKind{Group: "meta.k8s.io", Version: kind.Version, Kind: kind.Kind})
	}
	return r
}

// namespaceValue returns the CEL variable namespaceObject.
func namespaceValue(ns *corev1.Namespace) ref.Val {
	if ns == nil {
		return types.NullValue
	}
	m := &ns.ObjectMeta
	return common.SchemalessTypedToVal(&corev1.Namespace{Status: ns.Status, Spec: ns.Spec, ObjectMeta: metav1.ObjectMeta{
		Name: m.Name, GenerateName: m.GenerateName, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp, DeletionGracePeriodSeconds: m.DeletionGracePeriodSeconds,
		Labels: m.Labels, Annotations: m.Annotations, Finalizers: m.Finalizers,
	}})
}
