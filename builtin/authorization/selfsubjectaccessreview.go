package authorization

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// SelfSubjectAccessReviews defines selfsubjectaccessreviews.
func SelfSubjectAccessReviews(cfg Config) resource.Definition {
	return review("selfsubjectaccessreviews", "SelfSubjectAccessReview", false,
		func(ctx context.Context, r *authorizationv1.SelfSubjectAccessReview) (*authorizationv1.SelfSubjectAccessReview, error) {
			errs := validateQuestion(r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
			errs = append(errs, validateSelectors(r.Spec.ResourceAttributes)...)
			errs = append(errs, validateMeta(r.ObjectMeta, "must be empty", nil)...)
			if err := invalid(errs); err != nil {
				return nil, err
			}
			r.Status = cfg.decide(ctx, &request.From(ctx).User, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
			return r, nil
		})
}
