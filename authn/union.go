package authn

import (
	"context"
	"net/http"
	"slices"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// Union asks authenticators in their order. The first that knows the caller
// wins, even if another before it has found something wrong: a request may have
// a certificate of no use beside a good token. If nobody knows the caller, the
// errors of all are the answer.
type Union []Authenticator

// Authenticate implements Authenticator.
func (u Union) Authenticate(r *http.Request) (*Identity, error) {
	var errs []error
	for _, a := range u {
		id, err := a.Authenticate(r)
		switch {
		case err != nil:
			errs = append(errs, err)
		case id != nil:
			return id, nil
		}
	}
	return nil, joined(errs)
}

// TokensUnion asks several about a token, as Union does about a request.
type TokensUnion []Tokens

// AuthenticateToken implements Tokens.
func (u TokensUnion) AuthenticateToken(ctx context.Context, token string, audiences []string) (*Identity, error) {
	var errs []error
	for _, t := range u {
		id, err := t.AuthenticateToken(ctx, token, audiences)
		switch {
		case err != nil:
			errs = append(errs, err)
		case id != nil:
			return id, nil
		}
	}
	return nil, joined(errs)
}

// joined makes one error of several, nil of none.
func joined(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return utilerrors.NewAggregate(errs)
}

// forServer is for tokens that name no audiences: they are good for those of
// the server, and only if one of them is asked for.
type forServer struct {
	Tokens
	audiences []string
}

// AuthenticateToken implements Tokens.
func (f forServer) AuthenticateToken(ctx context.Context, token string, audiences []string) (*Identity, error) {
	common := intersect(f.audiences, audiences)
	if audiences != nil && len(common) == 0 {
		return nil, nil
	}
	id, err := f.Tokens.AuthenticateToken(ctx, token, audiences)
	if id == nil || err != nil || len(common) == 0 {
		return id, err
	}
	known := *id
	known.Audiences = common
	return &known, nil
}

// intersect returns what is in both lists, in the order of the first.
func intersect(a, b []string) []string {
	var both []string
	for _, s := range a {
		if slices.Contains(b, s) {
			both = append(both, s)
		}
	}
	return both
}
