package schema

import (
	"context"
	"slices"
	"sync"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/common"

	"github.com/apikeel/kelson/crd/cel"
)

// rules are the CEL rules of a schema, made on first use.
type rules struct {
	once sync.Once
	t    *cel.Type
	made *cel.Rules
}

func (r *rules) get(props *apiextensions.JSONSchemaProps, room int) (*cel.Type, *cel.Rules) {
	r.once.Do(func() {
		r.t = cel.NewType(props, true)
		r.made = cel.NewRules(r.t, room)
	})
	return r.t, r.made
}

// Ruled reports whether the schema has CEL rules.
func (s *Schema) Ruled() bool { return s.root.ruled }

// ValidateRules returns the x-kubernetes-validations that an object breaks; old is nil on
// create. found are the other errors of the object: rules are not evaluated if values may
// have the wrong type.
func (s *Schema) ValidateRules(ctx context.Context, obj, old map[string]any, found field.ErrorList, check *cel.Check) field.ErrorList {
	if !s.root.ruled {
		return nil
	}
	if slices.ContainsFunc(found, blocks) {
		return field.ErrorList{field.Invalid(nil, nil, "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation")}
	}
	t, rules := s.rules.get(s.props, s.room)
	if rules == nil {
		return nil
	}
	var before any
	var correlation *common.CorrelatedObject
	if old != nil {
		before, correlation = old, common.NewCorrelatedObject(obj, old, t)
	}
	return rules.Validate(ctx, nil, obj, before, correlation, check)
}

// blocks reports whether an error prevents the evaluation of rules.
func blocks(err *field.Error) bool {
	switch err.Type {
	case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
		return true
	}
	return false
}
