package authorization

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// SelfSubjectRulesReviews defines selfsubjectrulesreviews. The response does not repeat the
// spec.
func SelfSubjectRulesReviews(cfg Config) resource.Definition {
	return review("selfsubjectrulesreviews", "SelfSubjectRulesReview", false,
		func(ctx context.Context, r *authorizationv1.SelfSubjectRulesReview) (*authorizationv1.SelfSubjectRulesReview, error) {
			if r.Spec.Namespace == "" {
				return nil, apierrors.NewBadRequest("no namespace on request")
			}
			answer := &authorizationv1.SelfSubjectRulesReview{Status: authorizationv1.SubjectRulesReviewStatus{
				ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{},
			}}
			if cfg.Rules == nil {
				answer.Status.Incomplete = true
				answer.Status.EvaluationError = "the authorizer does not support user rule resolution"
				return answer, nil
			}
			resources, paths, incomplete, err := cfg.Rules.RulesFor(ctx, &request.From(ctx).User, r.Spec.Namespace)
			for _, rule := range resources {
				answer.Status.ResourceRules = append(answer.Status.ResourceRules, authorizationv1.ResourceRule{
					Verbs: rule.Verbs, APIGroups: rule.Groups, Resources: rule.Resources, ResourceNames: rule.Names,
				})
			}
			for _, rule := range paths {
				answer.Status.NonResourceRules = append(answer.Status.NonResourceRules, authorizationv1.NonResourceRule{
					Verbs: rule.Verbs, NonResourceURLs: rule.Paths,
				})
			}
			answer.Status.Incomplete = incomplete
			if err != nil {
				answer.Status.EvaluationError = err.Error()
			}
			return answer, nil
		})
}
