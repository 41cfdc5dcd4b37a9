// Package authn finds out who sends a request.
//
// The interface is here; its implementations are files and folders beside it.
// Each looks for the credential that it knows. A union asks them in order: the
// first that knows the caller wins, and a credential that somebody recognizes
// but finds invalid is an error, never an anonymous caller.
//
// Config describes the strategies of a server, and its New makes a Stage of
// them. The folders certificate, serviceaccount and oidc hold what is worth a
// package of its own; they know nothing of this one.
package authn

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/apikeel/kelson/authn/certificate"
	"github.com/apikeel/kelson/request"
)

// Names that the server itself gives.
const (
	anonymousUser        = "system:anonymous"
	groupAuthenticated   = "system:authenticated"
	groupUnauthenticated = "system:unauthenticated"

	// extraCredentialID is where users carry which credential they showed.
	extraCredentialID = certificate.CredentialID
)

// errInvalidToken is for a bearer token that nobody knows.
var errInvalidToken = errors.New("invalid bearer token")

// Identity is who a caller proved to be. It is shared by requests with the same
// credential and must not be changed.
type Identity struct {
	User request.User
	// Audiences are those of the token among the ones that were asked for; nil
	// if the credential names none.
	Audiences []string
	// Expires is when the credential ends, zero if it does not say. Nobody may
	// remember the identity for longer.
	Expires time.Time
	// Valid tells quickly whether what the credential is about still exists; nil
	// stands for yes. Who remembers the identity asks it first.
	Valid func(ctx context.Context) bool
	// Annotations are for the audit, Warnings for the client.
	Annotations map[string]string
	Warnings    []string
}

// Authenticator finds out who sends a request. It must be safe for concurrent
// use.
type Authenticator interface {
	// Authenticate returns nil without an error if the request has no
	// credential of its kind, and an error if it has one that is not valid.
	Authenticate(r *http.Request) (*Identity, error)
}

// Tokens finds out whose a bearer token is. Requests and token reviews both
// ask it.
type Tokens interface {
	// AuthenticateToken returns nil without an error if the token is of another
	// kind. A token that is meant for audiences must be for one of those given;
	// nil stands for those of the server itself.
	AuthenticateToken(ctx context.Context, token string, audiences []string) (*Identity, error)
}

// TokensFunc is a Tokens that is a function.
type TokensFunc func(ctx context.Context, token string, audiences []string) (*Identity, error)

// AuthenticateToken implements Tokens.
func (f TokensFunc) AuthenticateToken(ctx context.Context, token string, audiences []string) (*Identity, error) {
	return f(ctx, token, audiences)
}

// authenticated adds the group of all callers that are known to be somebody.
func authenticated(id *Identity) *Identity {
	if id.User.Name == anonymousUser || slices.ContainsFunc(id.User.Groups, func(g string) bool {
		return g == groupAuthenticated || g == groupUnauthenticated
	}) {
		return id
	}
	known := *id
	known.User.Groups = append(slices.Clip(id.User.Groups), groupAuthenticated)
	return &known
}
