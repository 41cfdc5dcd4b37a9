package authorization

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/apikeel/kelson/resource"
)

// SubjectAccessReviews defines subjectaccessreviews.
func SubjectAccessReviews(cfg Config) resource.Definition {
	return review("subjectaccessreviews", "SubjectAccessReview", false,
		func(ctx context.Context, r *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
			errs := append(validateSubject(&r.Spec), validateMeta(r.ObjectMeta, "must be empty", nil)...)
			if err := invalid(errs); err != nil {
				return nil, err
			}
			r.Status = cfg.decide(ctx, subjectOf(&r.Spec), r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
			return r, nil
		})
}
