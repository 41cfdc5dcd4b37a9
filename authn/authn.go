// Package authn authenticates requests: it finds out who sends them. Start at
// Authenticator and Config; Config.New returns the Stage of a server. It never decides
// what a user may do.
//
// Implementations are files and folders beside this one. Each looks for the kind of
// credential that it knows. A Union asks them in order: the first that identifies the
// user wins, and a credential that is recognized but not valid is an error, never an
// anonymous user.
//
// The folders certificate, serviceaccount and oidc hold what is worth a package of its
// own; they do not import this one.
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

// Users and groups that the server itself assigns.
const (
	anonymousUser        = "system:anonymous"
	groupAuthenticated   = "system:authenticated"
	groupUnauthenticated = "system:unauthenticated"

	// extraCredentialID is the key in User.Extra with the ID of the credential.
	extraCredentialID = certificate.CredentialID
)

// errInvalidToken is the error for a bearer token that no authenticator knows.
var errInvalidToken = errors.New("invalid bearer token")

// Identity is an authenticated user. It is shared by requests with the same credential
// and must not be changed.
type Identity struct {
	User request.User
	// Audiences are the audiences of the token that were asked for; nil if the
	// credential has none.
	Audiences []string
	// Expires is when the credential expires, zero if it does not. The identity must
	// not be cached for longer.
	Expires time.Time
	// Valid reports, quickly, whether the objects that the credential is bound to still
	// exist; nil means yes. A cache calls it before it uses the identity.
	Valid func(ctx context.Context) bool
	// Annotations are for the audit event, Warnings for the client.
	Annotations map[string]string
	Warnings    []string
}

// Authenticator authenticates requests. It must be safe for concurrent use.
type Authenticator interface {
	// Authenticate returns nil and no error if the request has no credential of its
	// kind, and an error if the credential is not valid.
	Authenticate(r *http.Request) (*Identity, error)
}

// Tokens authenticates bearer tokens, for requests and for TokenReviews.
type Tokens interface {
	// AuthenticateToken returns nil and no error if the token is of another kind. A
	// token with audiences must have one of those given; nil stands for those of the
	// server.
	AuthenticateToken(ctx context.Context, token string, audiences []string) (*Identity, error)
}

// TokensFunc adapts a function to Tokens.
type TokensFunc func(ctx context.Context, token string, audiences []string) (*Identity, error)

// AuthenticateToken implements Tokens.
func (f TokensFunc) AuthenticateToken(ctx context.Context, token string, audiences []string) (*Identity, error) {
	return f(ctx, token, audiences)
}

// authenticated adds the group system:authenticated, unless the user is anonymous.
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
