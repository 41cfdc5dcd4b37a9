package why

import (
	"context"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
)

// maxSubjects is the largest number of subjects in an answer.
const maxSubjects = 500

// Subjects answers who may make a request.
type Subjects struct {
	Question Question `json:"question"`
	Subjects []Holder `json:"subjects"`
	// Unknown says which authorizers may allow it to others, whom they cannot list.
	Unknown []string `json:"unknown,omitempty"`
	// Truncated: there are more, or there was no time to look at all bindings.
	Truncated bool `json:"truncated,omitempty"`
	// Hidden: there are others, by bindings or roles that the asker may not read.
	Hidden bool `json:"hidden,omitempty"`
}

// Holder is somebody who may make a request, and what gives that permission.
type Holder struct {
	Authorizer string `json:"authorizer"`
	authz.Grant
}

// whoCan is the page WhoCanPath.
func (p *Pages) whoCan(ctx context.Context, r *http.Request) (any, error) {
	q, err := questionOf(r)
	if err != nil {
		return nil, err
	}
	if q.Verb == "" || (q.Resource == "") == (q.Path == "") || q.User != "" || len(q.Groups) > 0 {
		return nil, apierrors.NewBadRequest("a question needs a verb, and a resource or a path, and no user")
	}
	s := &sight{authorizer: p.Authorizer, user: &request.From(r.Context()).User}
	if err := s.mayReview(ctx); err != nil {
		return nil, err
	}
	a, err := q.attributes(&request.User{})
	if err != nil {
		return nil, err
	}
	answer := &Subjects{Question: q, Subjects: []Holder{}}
	answer.Unknown, err = p.Authorizer.WhoCan(ctx, a, func(authorizer string, g authz.Grant) bool {
		seen, whole, ok := s.grant(ctx, g)
		answer.Hidden = answer.Hidden || !whole
		if ok && len(answer.Subjects) == maxSubjects {
			answer.Truncated = true
			return false
		}
		if ok {
			answer.Subjects = append(answer.Subjects, Holder{authorizer, seen})
		}
		return ctx.Err() == nil
	})
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.DeadlineExceeded)) {
		answer.Truncated, err = true, nil
	}
	return answer, err
}
