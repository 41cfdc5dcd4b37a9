package dra

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/ext"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"

	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/internal/boundedregexp"
	"github.com/apikeel/kelson/internal/celbound"
)

// Selectors compiles the CEL expressions that select devices and derive attributes of them.
// The zero value is ready to use; CEL environments are made on first use.
type Selectors struct {
	mu   sync.Mutex
	made map[deviceFields]*deviceExpressions
}

// deviceFields are the feature gates that change what expressions see of a device.
type deviceFields struct {
	multiple bool // DRAConsumableCapacity: allowMultipleAllocations
	lists    bool // DRAListTypeAttributes: attributes may be lists
}

// deviceExpressions compiles expressions in one CEL environment.
type deviceExpressions struct {
	fields deviceFields
	make   sync.Once // sets the fields below
	env    *cel.Env
	bounds *celbound.Bounds
	err    error
	device *apiservercel.DeclType
	// attribute is the type of attributes, which is dynamic.
	attribute *apiservercel.DeclType
}

// expressions returns the compiler for the feature gates of a context, and for what may be spent
// on the expressions of one object.
func (s *Selectors) expressions(ctx context.Context) *boundedExpressions {
	return &boundedExpressions{s.unbounded(ctx), boundedregexp.NewWork(ctx, boundedregexp.MaxWork)}
}

// boundedExpressions compiles the expressions of one object.
type boundedExpressions struct {
	*deviceExpressions
	work *boundedregexp.Work
}

func (s *Selectors) unbounded(ctx context.Context) *deviceExpressions {
	gates := features.From(ctx)
	fields := deviceFields{multiple: gates.Enabled(consumableCapacity), lists: gates.Enabled(listAttributes)}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.made[fields]
	if e == nil {
		if s.made == nil {
			s.made = map[deviceFields]*deviceExpressions{}
		}
		e = &deviceExpressions{fields: fields}
		s.made[fields] = e
	}
	return e
}

// validate validates a list of selectors; stored says that they were accepted before.
func (e *boundedExpressions) validate(list []resourcev1.DeviceSelector, stored bool, path *field.Path) field.ErrorList {
	return each(list, resourcev1.DeviceSelectorsMaxSize, path, func(d *resourcev1.DeviceSelector, path *field.Path) field.ErrorList {
		switch {
		case d.CEL == nil:
			return field.ErrorList{field.Required(path.Child("cel"), "")}
		case stored:
			return nil
		}
		_, errs := e.validateExpression(d.CEL.Expression, false, path.Child("cel", "expression"))
		return errs
	})
}

// validateExpression validates the expression of a selector, or of a derived attribute, and
// returns its highest cost.
func (e *boundedExpressions) validateExpression(text string, derived bool, path *field.Path) (cost uint64, _ field.ErrorList) {
	if len(text) > resourcev1.CELSelectorExpressionMaxLength {
		return 0, field.ErrorList{field.TooLong(path, "", resourcev1.CELSelectorExpressionMaxLength)}
	}
	env, err := e.environment()
	if err != nil {
		return 0, field.ErrorList{field.InternalError(path, err)}
	}
	if err := celbound.SpendText(e.work, text); err != nil {
		return 0, field.ErrorList{field.Invalid(path, text, "compilation failed: "+err.Error())}
	}
	ast, issues := env.Parse(text)
	if issues.Err() == nil {
		if err := e.bounds.Check(e.work, ast.NativeRep()); err != nil {
			return 0, field.ErrorList{field.Invalid(path, text, "compilation failed: "+err.Error())}
		}
		ast, issues = env.Check(ast)
	}
	if issues.Err() != nil {
		return 0, field.ErrorList{field.Invalid(path, text, "compilation failed: "+issues.String())}
	}
	if problem := e.judgeType(ast.OutputType(), derived); problem != "" {
		return 0, field.ErrorList{field.Invalid(path, text, problem)}
	}
	estimate, err := env.EstimateCost(ast, &library.CostEstimator{SizeEstimator: e})
	switch {
	case err != nil:
		return 0, field.ErrorList{field.InternalError(path, errors.New("cost estimation failed: "+err.Error()))}
	case estimate.Max > resourcev1.CELSelectorExpressionMaxCost:
		return estimate.Max, field.ErrorList{field.Forbidden(path, "too complex, exceeds cost limit")}
	}
	return estimate.Max, nil
}

// judgeType returns what is wrong with the type of an expression.
func (e *deviceExpressions) judgeType(t *cel.Type, derived bool) string {
	if !derived {
		if t.IsExactType(cel.BoolType) || t.IsExactType(e.attribute.CelType()) {
			return ""
		}
		return fmt.Sprintf("must evaluate to %v or the unknown type, not %v", cel.BoolType, t)
	}
	scalar := func(t *cel.Type) bool {
		for _, known := range []*cel.Type{cel.BoolType, cel.IntType, cel.StringType, cel.AnyType, cel.DynType, apiservercel.SemverType} {
			if t.IsExactType(known) {
				return true
			}
		}
		return false
	}
	isList := t.TypeName() == "list" && len(t.Parameters()) == 1
	switch lists := e.fields.lists; {
	case scalar(t) || lists && isList && scalar(t.Parameters()[0]):
		return ""
	case lists:
		return fmt.Sprintf("must evaluate to a primitive scalar (string, integer, boolean, semver) or a list of these scalars, not %v", t)
	default:
		return fmt.Sprintf("must evaluate to a primitive scalar (string, integer, boolean, semver), not %v", t)
	}
}

func (e *deviceExpressions) environment() (*cel.Env, error) {
	e.make.Do(e.makeEnvironment)
	return e.env, e.err
}

func (e *deviceExpressions) makeEnvironment() {
	sized := func(t *apiservercel.DeclType, size int64) *apiservercel.DeclType {
		bounded := *t
		bounded.MaxElements = size
		return &bounded
	}
	// byName declares a map of domains to maps of names to values.
	byName := func(value *apiservercel.DeclType) *apiservercel.DeclType {
		const limit = resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice
		inner := apiservercel.NewMapType(sized(apiservercel.StringType, resourcev1.DeviceMaxIDLength), value, limit)
		return apiservercel.NewMapType(sized(apiservercel.StringType, resourcev1.DeviceMaxDomainLength), inner, limit)
	}
	e.attribute = sized(apiservercel.AnyType, resourcev1.DeviceAttributeMaxValueLength)
	var options []cel.EnvOption
	if e.fields.lists {
		// Whether an attribute is a list is not known when an expression is compiled. Macros
		// like exists accept a dynamic value, but not one of type any.
		e.attribute = sized(apiservercel.DynType, max(resourcev1.DeviceAttributeMaxValueLength, resourcev1.ResourceSliceMaxAttributeValuesPerDevice))
		options = append(options, library.IncludesOption())
	}
	fields := map[string]*apiservercel.DeclField{}
	for name, t := range map[string]*apiservercel.DeclType{
		"driver":     sized(apiservercel.StringType, resourcev1.DriverNameMaxLength),
		"attributes": byName(e.attribute),
		"capacity":   byName(apiservercel.QuantityDeclType),
	} {
		fields[name] = apiservercel.NewDeclField(name, t, true, nil, nil)
	}
	if e.fields.multiple {
		const name = "allowMultipleAllocations"
		fields[name] = apiservercel.NewDeclField(name, sized(apiservercel.BoolType, 1), true, nil, nil)
	}
	e.device = apiservercel.NewObjectType("kubernetes.DRADevice", fields)
	set, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 31),
		EnvOptions:        append(options, ext.Bindings(ext.BindingsVersion(0)), cel.Variable("device", e.device.CelType())),
		DeclTypes:         []*apiservercel.DeclType{e.device},
	})
	if err != nil {
		e.err = err
		return
	}
	if e.env, e.err = set.Env(environment.NewExpressions); e.err == nil {
		e.bounds = celbound.New(e.env.Functions())
	}
}

// EstimateSize implements checker.CostEstimator with the size limits of devices.
func (e *deviceExpressions) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	path := element.Path()
	if len(path) == 0 || path[0] != "device" {
		return nil
	}
	t := e.device
	for _, name := range path[1:] {
		var next *apiservercel.DeclType
		switch name {
		case "@items", "@values":
			next = t.ElemType
		case "@keys":
			next = t.KeyType
		default:
			if f := t.Fields[name]; f != nil {
				next = f.Type
			} else if t.ElemType == e.attribute {
				next = e.attribute
			}
		}
		if next == nil {
			return nil
		}
		t = next
	}
	return &checker.SizeEstimate{Max: uint64(t.MaxElements)}
}

// EstimateCallCost implements checker.CostEstimator: functions have their default costs.
func (e *deviceExpressions) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}
