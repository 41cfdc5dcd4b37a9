package authorization

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// LocalSubjectAccessReviews defines localsubjectaccessreviews, limited to the namespace of the
// review so that users with rights in one namespace can be allowed to create them.
func LocalSubjectAccessReviews(cfg Config) resource.Definition {
	return review("localsubjectaccessreviews", "LocalSubjectAccessReview", true,
		func(ctx context.Context, r *authorizationv1.LocalSubjectAccessReview) (*authorizationv1.LocalSubjectAccessReview, error) {
			if err := invalid(validateLocal(r)); err != nil {
				return nil, err
			}
			switch namespace := request.From(ctx).Namespace; {
			case namespace == "":
				return nil, apierrors.NewBadRequest("namespace is required on this type: ")
			case namespace != r.Namespace:
				return nil, apierrors.NewBadRequest(fmt.Sprintf("spec.resourceAttributes.namespace must match namespace: %v", namespace))
			}
			r.Status = cfg.decide(ctx, subjectOf(&r.Spec), r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
			return r, nil
		})
}

func validateLocal(r *authorizationv1.LocalSubjectAccessReview) field.ErrorList {
	errs := validateSubject(&r.Spec)
	errs = append(errs, validateMeta(r.ObjectMeta, "must be empty except for namespace", func(m *metav1.ObjectMeta) { m.Namespace = "" })...)
	if a := r.Spec.ResourceAttributes; a != nil && a.Namespace != r.Namespace {
		errs = append(errs, field.Invalid(field.NewPath("spec.resourceAttributes.namespace"), a.Namespace, "must match metadata.namespace"))
	}
	if p := r.Spec.NonResourceAttributes; p != nil {
		errs = append(errs, field.Invalid(field.NewPath("spec.nonResourceAttributes"), pathOf(p), "disallowed on this kind of request"))
	}
	return errs
}
