// Package authn finds out who sends a request.
//
// The interface is here; its implementations are files and folders beside it.
// Each looks for the credential that it knows. A union asks them in order: the
// first that knows the caller wins, and a credential that somebody recognizes
// but finds invalid is an error, never an anonymous caller.
package authn

import (
	"context"
	"net/http"

	"github.com/apikeel/kelson/request"
)

// Identity is who a caller proved to be.
type Identity struct {
	User request.User
	// Audiences are those of the token among the ones that were asked for; nil
	// if the credential names none.
	Audiences []string
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
