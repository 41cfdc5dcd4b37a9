package why

import (
	"context"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
)

// sight is what an asker may see. It is made for one question. It asks the authorizer at
// most maxChecks times, since that may be a webhook; what it could not ask about is not
// seen.
type sight struct {
	authorizer authz.Authorizer
	user       *request.User

	checks  int
	answers map[authz.Object]bool // lists have no name
	reviews *bool                 // the asker may ask about others; nil if that is not known
}

// mayReview returns an error unless the asker may ask about other users.
func (s *sight) mayReview(ctx context.Context) error {
	err := authz.CheckBeside(ctx, s.authorizer, &authz.Attributes{
		User: s.user, Verb: request.Create, IsResource: true, Group: authorizationv1.GroupName, Version: "v1", Resource: "subjectaccessreviews",
	})
	s.reviews = new(err == nil)
	return err
}

// isReviewer reports whether the asker may ask about other users.
func (s *sight) isReviewer(ctx context.Context) bool {
	if s.reviews == nil {
		_ = s.mayReview(ctx)
	}
	return *s.reviews
}

// sees reports whether the asker may read an object: by a list of all namespaces, by one
// of its namespace, or by its name.
func (s *sight) sees(ctx context.Context, o *authz.Object) bool {
	all := authz.Object{Group: o.Group, Resource: o.Resource}
	if s.may(ctx, request.List, all) {
		return true
	}
	if all.Namespace = o.Namespace; o.Namespace != "" && s.may(ctx, request.List, all) {
		return true
	}
	all.Name = o.Name
	return o.Name != "" && s.may(ctx, request.Get, all)
}

// may asks the authorizer, once for each object.
func (s *sight) may(ctx context.Context, verb string, o authz.Object) bool {
	if known, ok := s.answers[o]; ok {
		return known
	}
	if s.checks++; s.checks > maxChecks {
		return false
	}
	err := authz.CheckBeside(ctx, s.authorizer, &authz.Attributes{
		User: s.user, Verb: verb, IsResource: true, Group: o.Group, Version: "*", Resource: o.Resource, Namespace: o.Namespace, Name: o.Name,
	})
	if s.answers == nil {
		s.answers = map[authz.Object]bool{}
	}
	s.answers[o] = err == nil
	return err == nil
}

// grant returns what the asker sees of a grant; nothing unless the asker may read the
// binding, and nothing of the rule without the role. Other grants are for those who may
// ask about others, and those of a node for who may read the node.
func (s *sight) grant(ctx context.Context, g authz.Grant) (seen authz.Grant, whole, ok bool) {
	if g.Binding == nil {
		ok := s.isReviewer(ctx)
		if g.Subject != nil {
			if node, isNode := strings.CutPrefix(g.Subject.Name, authz.NodePrefix); isNode {
				ok = ok && s.sees(ctx, &authz.Object{Resource: "nodes", Name: node})
			}
		}
		return g, ok, ok
	}
	if !s.sees(ctx, g.Binding) {
		return g, false, false
	}
	if !s.sees(ctx, g.Role) {
		g.Rule, g.Lacks = nil, nil
		return g, false, true
	}
	return g, true, true
}

// grants returns the first grants that the asker sees, and whether there are others.
func (s *sight) grants(ctx context.Context, all []authz.Grant) (seen []authz.Grant, hidden bool) {
	for _, g := range all {
		g, whole, ok := s.grant(ctx, g)
		hidden = hidden || !whole
		if ok && len(seen) < maxShown {
			seen = append(seen, g)
		}
	}
	return seen, hidden
}

// opinion returns what the asker sees of an opinion about a request. withheld reports
// that the reason is not shown.
func (s *sight) opinion(ctx context.Context, o *authz.Opinion, a *authz.Attributes) (seen Opinion, withheld bool) {
	seen = Opinion{Name: o.Name, Reason: o.Reason, Error: text(o.Err), Missing: o.Detail.Missing, Notes: o.Detail.Notes}
	switch {
	case !o.Asked:
		seen.Answer = NotAsked
	case o.Decision == authz.Allow:
		seen.Answer = Allows
	case o.Decision == authz.Deny:
		seen.Answer = Denies
	default:
		seen.Answer = NoOpinion
	}
	if o.DetailErr != nil {
		seen.Notes = append(slices.Clip(seen.Notes), "there is no explanation: "+o.DetailErr.Error())
	}
	var hiddenGrants, hiddenDangling bool
	seen.Grants, hiddenGrants = s.grants(ctx, o.Detail.Grants)
	seen.Dangling, hiddenDangling = s.grants(ctx, o.Detail.Dangling)
	seen.Hidden = hiddenGrants || hiddenDangling
	// A reason of RBAC names bindings and roles, which are those of the detail, unless they
	// have changed since.
	if strings.HasPrefix(o.Reason, "RBAC: ") && (seen.Hidden || len(seen.Grants)+len(seen.Dangling) == 0) {
		seen.Reason, withheld = "", true
	}
	for _, g := range o.Detail.Near {
		shown, whole, _ := s.grant(ctx, g)
		if whole && len(seen.Near) < maxShown {
			seen.Near = append(seen.Near, shown)
		}
		// That others have a binding is not for the asker to know.
		seen.Hidden = seen.Hidden || !whole && g.Applies
	}
	for _, p := range o.Detail.Paths {
		if s.seesPath(ctx, p, a) {
			if len(seen.Paths) < maxShown {
				seen.Paths = append(seen.Paths, p)
			}
		} else if authz.NodePrefix+p.Node == a.User.Name {
			seen.Hidden = true
		}
	}
	return seen, withheld
}

// seesPath reports whether the asker sees all objects of a path, apart from the one that
// the question names.
func (s *sight) seesPath(ctx context.Context, p authz.Path, a *authz.Attributes) bool {
	return !slices.ContainsFunc(p.Objects, func(o authz.Object) bool {
		asked := o.Group == a.Group && o.Resource == a.Resource && o.Namespace == a.Namespace && o.Name == a.Name
		return (!asked || len(p.Objects) == 1) && !s.sees(ctx, &o)
	})
}
