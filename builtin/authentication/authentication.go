// Package authentication is the API group authentication.k8s.io: token reviews and self
// reviews, of which nothing is stored. Start at Group and Reviewer.
package authentication

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Reviewer authenticates tokens.
type Reviewer interface {
	// ReviewToken reviews a token. An invalid token is a status, not an error. No
	// audiences stand for those of the server.
	ReviewToken(ctx context.Context, token string, audiences []string) (authenticationv1.TokenReviewStatus, error)
}

// Config are the dependencies of the group.
type Config struct {
	// Reviewer reviews tokens. If it is nil, reviews are returned unchanged.
	Reviewer Reviewer
}

// Group returns the group.
func Group(cfg Config) resource.Group {
	return resource.Group{Name: authenticationv1.GroupName, Resources: []resource.Definition{
		SelfSubjectReviews(),
		TokenReviews(cfg.Reviewer),
	}}
}

// TokenReviews defines tokenreviews.
func TokenReviews(reviewer Reviewer) resource.Definition {
	return resource.Definition{
		Group:    authenticationv1.GroupName,
		Resource: "tokenreviews",
		Kind:     "TokenReview",
		Verbs:    []string{request.Create},
		Versions: []resource.Version{{
			Name: "v1",
			New:  func() resource.Object { return &authenticationv1.TokenReview{} },
		}},
		Answer: func(ctx context.Context, obj resource.Object) (resource.Object, error) {
			review := obj.(*authenticationv1.TokenReview)
			if review.Spec.Token == "" {
				return nil, apierrors.NewBadRequest("token is required for TokenReview in authentication")
			}
			if reviewer == nil {
				return review, nil
			}
			status, err := reviewer.ReviewToken(ctx, review.Spec.Token, review.Spec.Audiences)
			if err != nil {
				return nil, err
			}
			// Fields that the reviewer does not set stay as the client sent them.
			sent := &review.Status
			sent.Authenticated = status.Authenticated
			if status.Error != "" {
				sent.Error = status.Error
			}
			if status.Authenticated {
				sent.User, sent.Audiences = status.User, status.Audiences
			}
			return review, nil
		},
	}
}

// SelfSubjectReviews defines selfsubjectreviews.
func SelfSubjectReviews() resource.Definition {
	return resource.Definition{
		Group:    authenticationv1.GroupName,
		Resource: "selfsubjectreviews",
		Kind:     "SelfSubjectReview",
		Verbs:    []string{request.Create},
		Versions: []resource.Version{{
			Name: "v1",
			New:  func() resource.Object { return &authenticationv1.SelfSubjectReview{} },
		}},
		Answer: func(ctx context.Context, _ resource.Object) (resource.Object, error) {
			req := request.From(ctx)
			user := req.User
			info := authenticationv1.UserInfo{Username: user.Name, UID: user.UID, Groups: user.Groups}
			for key, values := range user.Extra {
				if info.Extra == nil {
					info.Extra = map[string]authenticationv1.ExtraValue{}
				}
				info.Extra[key] = values
			}
			return &authenticationv1.SelfSubjectReview{
				ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(req.Received)},
				Status:     authenticationv1.SelfSubjectReviewStatus{UserInfo: info},
			}, nil
		},
	}
}
