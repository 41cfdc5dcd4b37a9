package authn

import (
	"net/http"

	"github.com/apikeel/kelson/request"
)

// anonymous authenticates every request as system:anonymous. It is asked last. If paths
// is not nil, only for these paths.
type anonymous struct {
	paths    map[string]bool
	identity Identity
}

func newAnonymous(paths []string) *anonymous {
	a := &anonymous{identity: Identity{User: request.User{Name: anonymousUser, Groups: []string{groupUnauthenticated}}}}
	for _, path := range paths {
		if a.paths == nil {
			a.paths = map[string]bool{}
		}
		a.paths[path] = true
	}
	return a
}

// Authenticate implements Authenticator.
func (a *anonymous) Authenticate(r *http.Request) (*Identity, error) {
	if a.paths != nil && !a.paths[r.URL.Path] {
		return nil, nil
	}
	return &a.identity, nil
}
