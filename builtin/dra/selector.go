package dra

import (
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
)

// Selectors compiles the CEL expressions that select devices. The zero value is ready to use;
// the CEL environment is made on first use.
type Selectors struct {
	mu     sync.Mutex
	env    *cel.Env
	device *apiservercel.DeclType
	// attribute is the type of attributes, which is dynamic.
	attribute *apiservercel.DeclType
}

// validate validates a list of selectors; stored says that they were accepted before.
func (s *Selectors) validate(list []resourcev1.DeviceSelector, stored bool, path *field.Path) field.ErrorList {
	return each(list, resourcev1.DeviceSelectorsMaxSize, path, func(d *resourcev1.DeviceSelector, path *field.Path) field.ErrorList {
		if d.CEL == nil {
			return field.ErrorList{field.Required(path.Child("cel"), "")}
		}
		path = path.Child("cel", "expression")
		text := d.CEL.Expression
		switch {
		case stored:
			return nil
		case len(text) > resourcev1.CELSelectorExpressionMaxLength:
			return field.ErrorList{field.TooLong(path, "", resourcev1.CELSelectorExpressionMaxLength)}
		}
		env, err := s.environment()
		if err != nil {
			return field.ErrorList{field.InternalError(path, err)}
		}
		ast, issues := env.Compile(text)
		if issues != nil {
			return field.ErrorList{field.Invalid(path, text, "compilation failed: "+issues.String())}
		}
		if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(s.attribute.CelType()) {
			return field.ErrorList{field.Invalid(path, text, fmt.Sprintf("must evaluate to %v or the unknown type, not %v", cel.BoolType, t))}
		}
		cost, err := env.EstimateCost(ast, &library.CostEstimator{SizeEstimator: s})
		switch {
		case err != nil:
			return field.ErrorList{field.InternalError(path, errors.New("cost estimation failed: "+err.Error()))}
		case cost.Max > resourcev1.CELSelectorExpressionMaxCost:
			return field.ErrorList{field.Forbidden(path, "too complex, exceeds cost limit")}
		}
		return nil
	})
}

func (s *Selectors) environment() (*cel.Env, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.env != nil {
		return s.env, nil
	}
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
	s.attribute = sized(apiservercel.AnyType, resourcev1.DeviceAttributeMaxValueLength)
	fields := map[string]*apiservercel.DeclField{}
	for name, t := range map[string]*apiservercel.DeclType{
		"driver":                   sized(apiservercel.StringType, resourcev1.DriverNameMaxLength),
		"attributes":               byName(s.attribute),
		"capacity":                 byName(apiservercel.QuantityDeclType),
		"allowMultipleAllocations": sized(apiservercel.BoolType, 1),
	} {
		fields[name] = apiservercel.NewDeclField(name, t, true, nil, nil)
	}
	s.device = apiservercel.NewObjectType("kubernetes.DRADevice", fields)
	set, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 31),
		EnvOptions:        []cel.EnvOption{ext.Bindings(ext.BindingsVersion(0)), cel.Variable("device", s.device.CelType())},
		DeclTypes:         []*apiservercel.DeclType{s.device},
	})
	if err != nil {
		return nil, err
	}
	s.env, err = set.Env(environment.NewExpressions)
	return s.env, err
}

// EstimateSize implements checker.CostEstimator with the size limits of devices.
func (s *Selectors) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	path := element.Path()
	if len(path) == 0 || path[0] != "device" {
		return nil
	}
	t := s.device
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
			} else if t.ElemType == s.attribute {
				next = s.attribute
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
func (s *Selectors) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}
