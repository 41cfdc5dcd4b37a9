package schema

import (
	"context"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateRules returns which rules of x-kubernetes-validations an object
// breaks; old is nil on create.
func (s *Schema) ValidateRules(ctx context.Context, obj, old map[string]any) field.ErrorList {
	return nil
}
