package dra

import (
	"context"
	"regexp"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Some rules are declared in the API. They are about objects in the version in which
// they are sent, and what they say comes after everything else.

// byDeclaration is the origin of what such a rule says.
const byDeclaration = "declared"

// declared marks what such a rule says.
func declared(errs field.ErrorList) field.ErrorList {
	for _, err := range errs {
		err.Origin = byDeclaration
	}
	return errs
}

// sameSpec wants a spec not to change.
func sameSpec(spec, old any) field.ErrorList {
	if equality.Semantic.DeepEqual(spec, old) {
		return nil
	}
	return declared(field.ErrorList{field.Invalid(field.NewPath("spec"), nil, apivalidation.FieldImmutableErrorMsg)})
}

// undeclared takes the mark off again.
func undeclared(errs field.ErrorList) field.ErrorList {
	for _, err := range errs {
		err.Origin = ""
	}
	return errs
}

// declaredLast puts what a strategy says into the order, and the words, of the
// version that a request is made in.
func declaredLast(s *resource.Strategy) {
	order := func(ctx context.Context, errs field.ErrorList) field.ErrorList {
		version := request.From(ctx).Version
		slices.SortStableFunc(errs, func(a, b *field.Error) int { return rank(a) - rank(b) })
		for i, err := range errs {
			if err.Origin != byDeclaration {
				continue
			}
			if version == "v1beta1" {
				flatten(err)
			}
			// The older versions ask for the length before the form.
			if version != "v1" && i > 0 && err.Type == field.ErrorTypeTooLong && errs[i-1].Field == err.Field && strings.HasSuffix(err.Field, ".opaque.driver") {
				errs[i-1], errs[i] = err, errs[i-1]
			}
		}
		return errs
	}
	if f := s.Validate; f != nil {
		s.Validate = func(ctx context.Context, obj resource.Object) field.ErrorList { return order(ctx, f(ctx, obj)) }
	}
	if f := s.ValidateUpdate; f != nil {
		s.ValidateUpdate = func(ctx context.Context, obj, old resource.Object) field.ErrorList {
			return order(ctx, f(ctx, obj, old))
		}
	}
}

func rank(err *field.Error) int {
	if err.Origin == byDeclaration {
		return 1
	}
	return 0
}

// flatten has an error be about an object of v1beta1.
func flatten(err *field.Error) {
	if r, ok := err.BadValue.(resourcev1.DeviceRequest); ok {
		spec := resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{r}}}
		var old resourcev1beta1.ResourceClaimSpec
		resource.CopyAlike(&old, &spec)
		flattenRequests(&spec, &old)
		err.BadValue = old.Devices.Requests[0]
	}
	err.Field = strings.Replace(err.Field, "].exactly.", "].", 1)
	err.Field = regexp.MustCompile(`^(spec\.devices\[\d+\]\.)`).ReplaceAllString(err.Field, "${1}basic.")
}
