package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/apikeel/kelson/request"
)

// This file holds authorizers that need no policy: AlwaysAllow, AlwaysDeny,
// PrivilegedGroups and Paths.

// AlwaysAllow allows everything.
type AlwaysAllow struct{}

// Authorize implements Authorizer.
func (AlwaysAllow) Authorize(context.Context, *Attributes) (Decision, string, error) {
	return Allow, "", nil
}

// RulesFor implements Rules.
func (AlwaysAllow) RulesFor(context.Context, *request.User, string) ([]ResourceRule, []PathRule, bool, error) {
	all := []string{"*"}
	return []ResourceRule{{Verbs: all, Groups: all, Resources: all}}, []PathRule{{Verbs: all, Paths: all}}, false, nil
}

// AlwaysDeny allows nothing. It returns NoOpinion rather than Deny, so that another
// authorizer may still allow a request.
type AlwaysDeny struct{}

// Authorize implements Authorizer.
func (AlwaysDeny) Authorize(context.Context, *Attributes) (Decision, string, error) {
	return NoOpinion, "Everything is forbidden.", nil
}

// RulesFor implements Rules.
func (AlwaysDeny) RulesFor(context.Context, *request.User, string) ([]ResourceRule, []PathRule, bool, error) {
	return nil, nil, false, nil
}

//lint:ignore ST1005 kube-apiserver's message ends with a full stop
var errNoUser = errors.New("no user on request.")

// PrivilegedGroups allows everything to the members of these groups.
type PrivilegedGroups []string

// Authorize implements Authorizer.
func (p PrivilegedGroups) Authorize(_ context.Context, a *Attributes) (Decision, string, error) {
	if a.User == nil {
		return NoOpinion, "Error", errNoUser
	}
	for _, group := range a.User.Groups {
		if slices.Contains(p, group) {
			return Allow, "", nil
		}
	}
	return NoOpinion, "", nil
}

// Paths allows everybody to access some non-resource paths.
type Paths struct {
	exact    map[string]bool
	prefixes []string
}

// NewPaths returns a Paths. A path that ends with a star matches every path with that
// prefix.
func NewPaths(paths ...string) (*Paths, error) {
	p := &Paths{exact: map[string]bool{}}
	for _, path := range paths {
		path = strings.TrimPrefix(path, "/")
		prefix, starred := strings.CutSuffix(path, "*")
		switch {
		case strings.Contains(prefix, "*"):
			return nil, fmt.Errorf("only trailing * allowed in %q", path)
		case starred:
			p.prefixes = append(p.prefixes, prefix)
		default:
			p.exact[path] = true
		}
	}
	return p, nil
}

// Authorize implements Authorizer.
func (p *Paths) Authorize(_ context.Context, a *Attributes) (Decision, string, error) {
	if a.IsResource {
		return NoOpinion, "", nil
	}
	path := strings.TrimPrefix(a.Path, "/")
	if p.exact[path] {
		return Allow, "", nil
	}
	for _, prefix := range p.prefixes {
		if strings.HasPrefix(path, prefix) {
			return Allow, "", nil
		}
	}
	return NoOpinion, "", nil
}
