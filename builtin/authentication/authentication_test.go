package authentication

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/request"
)

type reviewer func(token string, audiences []string) (authenticationv1.TokenReviewStatus, error)

func (f reviewer) ReviewToken(_ context.Context, token string, audiences []string) (authenticationv1.TokenReviewStatus, error) {
	return f(token, audiences)
}

func TestTokenReviews(t *testing.T) {
	jane := authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "jane"}, Audiences: []string{"a"}}
	failed := errors.New("failed")
	answer := TokenReviews(reviewer(func(token string, audiences []string) (authenticationv1.TokenReviewStatus, error) {
		if token == "broken" {
			return authenticationv1.TokenReviewStatus{}, failed
		}
		if token != "secret" || !reflect.DeepEqual(audiences, []string{"a", "b"}) {
			t.Errorf("asked for %q, %q", token, audiences)
		}
		return jane, nil
	})).Answer
	review := &authenticationv1.TokenReview{
		Spec:   authenticationv1.TokenReviewSpec{Token: "secret", Audiences: []string{"a", "b"}},
		Status: authenticationv1.TokenReviewStatus{Error: "made up"},
	}
	got, err := answer(t.Context(), review)
	jane.Error = "made up" // which nothing contradicts
	if err != nil || !reflect.DeepEqual(got.(*authenticationv1.TokenReview).Status, jane) || got.(*authenticationv1.TokenReview).Spec.Token != "secret" {
		t.Errorf("got %+v, error %v", got, err)
	}
	if _, err := answer(t.Context(), &authenticationv1.TokenReview{}); !apierrors.IsBadRequest(err) || err.Error() != "token is required for TokenReview in authentication" {
		t.Errorf("error %v", err)
	}
	review.Spec.Token = "broken"
	if _, err := answer(t.Context(), review); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	if got, err := TokenReviews(nil).Answer(t.Context(), review); err != nil || got != review {
		t.Errorf("got %v, error %v", got, err)
	}
}

func TestSelfSubjectReviews(t *testing.T) {
	at := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	ctx := request.With(t.Context(), &request.Request{Received: at, User: request.User{
		Name: "jane", UID: "1", Groups: []string{"a"}, Extra: map[string][]string{"k": {"v"}},
	}})
	body := &authenticationv1.SelfSubjectReview{}
	body.Name = "not kept"
	got, err := SelfSubjectReviews().Answer(ctx, body)
	if err != nil {
		t.Fatal(err)
	}
	review := got.(*authenticationv1.SelfSubjectReview)
	want := authenticationv1.UserInfo{Username: "jane", UID: "1", Groups: []string{"a"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}
	if !reflect.DeepEqual(review.Status.UserInfo, want) || !review.CreationTimestamp.Time.Equal(at) || review.Name != "" {
		t.Errorf("got %+v", review)
	}
}
