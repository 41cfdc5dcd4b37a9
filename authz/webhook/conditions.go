package webhook

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/cel-go/cel"
	authorizationv1 "k8s.io/api/authorization/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/apikeel/kelson/internal/celbound"
)

// This file compiles and evaluates the match conditions of a webhook, in CEL.

// maxConditions is the largest number of match conditions of a webhook.
const maxConditions = 64

// Conditions are CEL expressions about a v1 SubjectAccessReview, all of which must be
// true for the webhook to be called. Nil conditions are always true.
type Conditions struct {
	expressions []string
	programs    []cel.Program
}

// Compiler compiles conditions. Creating one takes some milliseconds.
type Compiler struct{ env *cel.Env }

// NewCompiler returns a compiler.
func NewCompiler() (*Compiler, error) {
	request := requestType()
	set, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions:        []cel.EnvOption{cel.Variable("request", request.CelType())},
		DeclTypes:         []*apiservercel.DeclType{request},
	})
	if err != nil {
		return nil, err
	}
	env, err := set.Env(environment.StoredExpressions)
	return &Compiler{env}, err
}

// requestType declares the type of the CEL variable request.
func requestType() *apiservercel.DeclType {
	text := apiservercel.StringType
	texts := apiservercel.NewListType(text, -1)
	object := func(name string, fields map[string]*apiservercel.DeclType) *apiservercel.DeclType {
		declared := map[string]*apiservercel.DeclField{}
		for name, t := range fields {
			declared[name] = apiservercel.NewDeclField(name, t, false, nil, nil)
		}
		return apiservercel.NewObjectType("kubernetes."+name, declared)
	}
	selector := func(name string) *apiservercel.DeclType {
		requirement := object("SelectorRequirement", map[string]*apiservercel.DeclType{"key": text, "operator": text, "values": texts})
		return object(name, map[string]*apiservercel.DeclType{"rawSelector": text, "requirements": apiservercel.NewListType(requirement, -1)})
	}
	return object("SubjectAccessReviewSpec", map[string]*apiservercel.DeclType{
		"resourceAttributes": object("ResourceAttributes", map[string]*apiservercel.DeclType{
			"namespace": text, "verb": text, "group": text, "version": text, "resource": text, "subresource": text, "name": text,
			"fieldSelector": selector("FieldSelectorAttributes"), "labelSelector": selector("LabelSelectorAttributes"),
		}),
		"nonResourceAttributes": object("NonResourceAttributes", map[string]*apiservercel.DeclType{"path": text, "verb": text}),
		"user":                  text,
		"groups":                texts,
		"extra":                 apiservercel.NewMapType(text, texts, -1),
		"uid":                   text,
	})
}

// Compile compiles expressions. The errors are field errors of matchConditions at path.
func (c *Compiler) Compile(path *field.Path, expressions []string) (*Conditions, field.ErrorList) {
	path = path.Child("matchConditions")
	if len(expressions) > maxConditions {
		return nil, field.ErrorList{field.TooMany(path, len(expressions), maxConditions)}
	}
	var errs field.ErrorList
	out := &Conditions{}
	seen := map[string]bool{}
	for i, text := range expressions {
		at := path.Index(i).Child("expression")
		switch {
		case strings.TrimSpace(text) == "":
			errs = append(errs, field.Required(at, ""))
			continue
		case seen[text]:
			errs = append(errs, field.Duplicate(at, text))
			continue
		}
		seen[text] = true
		program, err := c.compile(at, text)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out.expressions, out.programs = append(out.expressions, text), append(out.programs, program)
	}
	if len(out.programs) == 0 {
		return nil, errs
	}
	return out, errs
}

func (c *Compiler) compile(path *field.Path, text string) (cel.Program, *field.Error) {
	ast, issues := c.env.Compile(text)
	if issues != nil {
		return nil, field.Invalid(path, text, "compilation failed: "+issues.String())
	}
	if ast.OutputType() != cel.BoolType {
		return nil, field.Invalid(path, text, fmt.Sprintf("must evaluate to %v but got %v", cel.BoolType, ast.OutputType()))
	}
	program, err := c.env.Program(ast, celbound.Program(nil)...)
	if err != nil {
		return nil, field.InternalError(path, fmt.Errorf("program instantiation failed: %w", err))
	}
	return program, nil
}

// match reports whether all conditions are true. One that is false decides, even if
// another one fails to evaluate.
func (c *Conditions) match(ctx context.Context, spec *authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	if c == nil {
		return true, nil
	}
	vars := map[string]any{"request": variables(spec)}
	var errs []error
	for i, program := range c.programs {
		value, _, err := program.ContextEval(ctx, vars)
		if err != nil {
			errs = append(errs, fmt.Errorf("cel evaluation error: expression '%v' resulted in error: %w", c.expressions[i], err))
			continue
		}
		if holds, ok := value.Value().(bool); !ok {
			errs = append(errs, fmt.Errorf("cel evaluation error: expression '%v' eval result type should be bool but got %v", c.expressions[i], value.Type()))
		} else if !holds {
			return false, nil
		}
	}
	if len(errs) > 0 {
		return false, utilerrors.NewAggregate(errs)
	}
	return true, nil
}

// variables converts a review to CEL values. Empty fields are set, except
// resourceAttributes, nonResourceAttributes and the selectors, for which expressions
// use has().
func variables(spec *authorizationv1.SubjectAccessReviewSpec) map[string]any {
	extra := spec.Extra
	if extra == nil {
		extra = map[string]authorizationv1.ExtraValue{}
	}
	out := map[string]any{"user": spec.User, "groups": spec.Groups, "uid": spec.UID, "extra": extra}
	if a := spec.NonResourceAttributes; a != nil {
		out["nonResourceAttributes"] = map[string]string{"verb": a.Verb, "path": a.Path}
	}
	a := spec.ResourceAttributes
	if a == nil {
		return out
	}
	attributes := map[string]any{
		"namespace": a.Namespace, "verb": a.Verb, "group": a.Group, "version": a.Version,
		"resource": a.Resource, "subresource": a.Subresource, "name": a.Name,
	}
	out["resourceAttributes"] = attributes
	requirement := func(key, operator string, values []string) map[string]any {
		return map[string]any{"key": key, "operator": operator, "values": values}
	}
	if a.FieldSelector != nil {
		var list []map[string]any
		for _, r := range a.FieldSelector.Requirements {
			list = append(list, requirement(r.Key, string(r.Operator), r.Values))
		}
		attributes["fieldSelector"] = map[string]any{"requirements": list}
	}
	if a.LabelSelector != nil {
		var list []map[string]any
		for _, r := range a.LabelSelector.Requirements {
			list = append(list, requirement(r.Key, string(r.Operator), r.Values))
		}
		attributes["labelSelector"] = map[string]any{"requirements": list}
	}
	return out
}
