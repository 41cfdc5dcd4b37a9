package authn

import (
	"context"
	"net/http"
	"slices"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// Union asks authenticators in order. The first that identifies the user wins, even if
// one before it returned an error: a request may have an unusable certificate beside a
// valid token. If none does, the errors of all are returned.
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
	return nil, aggregate(errs)
}

// TokensUnion is a Union for tokens.
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
	return nil, aggregate(errs)
}

// aggregate combines errors, nil for none.
func aggregate(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return utilerrors.NewAggregate(errs)
}

// serverAudience is for tokens without audiences: they are valid for the audiences of the
// server, and only if one of these is asked for.
type serverAudience struct {
	Tokens
	audiences []string
}

// AuthenticateToken implements Tokens.
func (f serverAudience) AuthenticateToken(ctx context.Context, token string, audiences []string) (*Identity, error) {
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

// intersect returns the elements of a that are in b.
func intersect(a, b []string) []string {
	var both []string
	for _, s := range a {
		if slices.Contains(b, s) {
			both = append(both, s)
		}
	}
	return both
}
