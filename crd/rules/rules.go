// Package rules is what a CustomResourceDefinition must fulfil.
package rules

import (
	"context"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate returns everything that is wrong with a new definition.
func Validate(_ context.Context, crd *apiextensions.CustomResourceDefinition) field.ErrorList {
	return nil
}

// ValidateUpdate returns everything that is wrong with a change.
func ValidateUpdate(_ context.Context, crd, old *apiextensions.CustomResourceDefinition) field.ErrorList {
	return nil
}

// ValidateStatusUpdate returns everything that is wrong with a change of the
// status.
func ValidateStatusUpdate(crd, old *apiextensions.CustomResourceDefinition) field.ErrorList {
	return nil
}

// Warnings returns what the writer of a definition should know; old is nil on
// create.
func Warnings(crd, old *apiextensions.CustomResourceDefinition) []string { return nil }
