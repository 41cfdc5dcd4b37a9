package authz

import (
	"context"
	"slices"
)

// This file has the types by which authorizers explain decisions, for people who ask
// why. No request waits for an explanation, so it may cost more than a decision.

// Explainer is implemented by authorizers that know more about a decision than its
// reason. Explain must not change anything, and its answer is bounded in size.
type Explainer interface {
	Explain(ctx context.Context, a *Attributes) (Detail, error)
}

// Finder is implemented by authorizers that can tell whom they allow a request. The
// user of the attributes is ignored. WhoCan calls found for each subject until that
// returns false. The text says which subjects the authorizer cannot enumerate; it is
// empty if there are none.
type Finder interface {
	WhoCan(ctx context.Context, a *Attributes, found func(Grant) bool) (unknown string, err error)
}

// Detail is what an authorizer knows about a decision. Everything in it may name
// objects: whoever passes it on checks who may read them.
type Detail struct {
	// Grants allow the request; the first is the one that the reason names.
	Grants []Grant
	// Near do not allow the request, the closest first. Lacks says what is missing.
	Near []Grant
	// Dangling are bindings of the user to roles that do not exist.
	Dangling []Grant
	// Paths connect a node with the object that it asks for, or, if the request is not
	// allowed, the object with what references it.
	Paths []Path
	// Missing says which connection a node would need; empty if none would help.
	Missing string
	// Notes are remarks without names of objects.
	Notes []string
	// Suggested are API objects that would allow exactly this request, SuggestedPolicy is
	// a policy of a file that would. They follow from the request alone.
	Suggested       []any
	SuggestedPolicy string
}

// Grant is something that allows a subject something: a rule of a role by way of a
// binding, or a policy of a file.
type Grant struct {
	// Binding and Role are nil in grants that are not of RBAC.
	Binding *Object `json:"binding,omitempty"`
	Role    *Object `json:"role,omitempty"`
	// Subject is whom the binding is for: in the explanation of a decision the one that
	// is the user.
	Subject *Subject `json:"subject,omitempty"`
	// Rule is the rule that allows the request, or that comes closest.
	Rule *Rule `json:"rule,omitempty"`
	// Policy is a policy of a file, or a fixed rule of the server, in words.
	Policy string `json:"policy,omitempty"`
	// Lacks is what keeps a grant from allowing the request.
	Lacks []string `json:"lacks,omitempty"`
	// Applies reports whether the subject of a grant in Near is the user.
	Applies bool `json:"-"`
}

// Object names an API object.
type Object struct {
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"`
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Subject is a user, a group or a service account.
type Subject struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Rule is a rule of a role, with the names of its fields.
type Rule struct {
	Verbs           []string `json:"verbs,omitempty"`
	APIGroups       []string `json:"apiGroups,omitempty"`
	Resources       []string `json:"resources,omitempty"`
	ResourceNames   []string `json:"resourceNames,omitempty"`
	NonResourceURLs []string `json:"nonResourceURLs,omitempty"`
}

// Path is a chain of objects, each of which references the next. The first is on Node.
type Path struct {
	Node    string   `json:"node"`
	Objects []Object `json:"objects"`
}

// Opinion is what one authorizer of a union said about a request.
type Opinion struct {
	Name     string
	Asked    bool // false: another one had decided before
	Decision Decision
	Reason   string
	Err      error
	Detail   Detail
	// DetailErr is why there is no Detail.
	DetailErr error
}

// Explanation is a decision with the opinions that led to it.
type Explanation struct {
	Decision Decision
	Reason   string
	Err      error
	// Opinions are in the order in which the authorizers are asked.
	Opinions []Opinion
}

// Explain decides as Authorize does, by the same code, and records what each authorizer
// said. It is not counted as a decision.
func (u Union) Explain(ctx context.Context, a *Attributes) Explanation {
	var e Explanation
	e.Decision, e.Reason, e.Err = u.ask(ctx, a, func(n *Named, decision Decision, reason string, err error) {
		o := Opinion{Name: n.Name, Asked: true, Decision: decision, Reason: reason, Err: err}
		if explainer, ok := n.Authorizer.(Explainer); ok {
			o.Detail, o.DetailErr = explainer.Explain(ctx, a)
		}
		e.Opinions = append(e.Opinions, o)
	})
	for i := len(e.Opinions); i < len(u); i++ {
		e.Opinions = append(e.Opinions, Opinion{Name: u[i].Name})
	}
	return e
}

// WhoCan finds those whom the authorizers allow a request, in their order. unknown says
// which authorizers have subjects that cannot be enumerated.
func (u Union) WhoCan(ctx context.Context, a *Attributes, found func(authorizer string, g Grant) bool) (unknown []string, err error) {
	for i := range u {
		finder, ok := u[i].Authorizer.(Finder)
		if !ok {
			unknown = append(unknown, u[i].Name+": only asking it about a user tells")
			continue
		}
		more := true
		text, err := finder.WhoCan(ctx, a, func(g Grant) bool {
			more = more && found(u[i].Name, g)
			return more
		})
		if text != "" {
			unknown = append(unknown, u[i].Name+": "+text)
		}
		if err != nil || !more {
			return unknown, err
		}
	}
	return unknown, nil
}

// Explain implements Explainer.
func (p PrivilegedGroups) Explain(ctx context.Context, a *Attributes) (d Detail, _ error) {
	if a.User == nil {
		return d, nil
	}
	_, err := p.WhoCan(ctx, a, func(g Grant) bool {
		if slices.Contains(a.User.Groups, g.Subject.Name) {
			d.Grants = append(d.Grants, g)
		}
		return true
	})
	return d, err
}

// WhoCan implements Finder.
func (p PrivilegedGroups) WhoCan(_ context.Context, _ *Attributes, found func(Grant) bool) (string, error) {
	for _, group := range p {
		if !found(Grant{Subject: &Subject{Kind: "Group", Name: group}, Policy: "members may do everything"}) {
			break
		}
	}
	return "", nil
}

// WhoCan implements Finder.
func (AlwaysAllow) WhoCan(_ context.Context, _ *Attributes, found func(Grant) bool) (string, error) {
	for _, group := range []string{Authenticated, Unauthenticated} {
		if !found(Grant{Subject: &Subject{Kind: "Group", Name: group}, Policy: "everything is allowed"}) {
			break
		}
	}
	return "", nil
}

// WhoCan implements Finder: there is nobody.
func (AlwaysDeny) WhoCan(context.Context, *Attributes, func(Grant) bool) (string, error) {
	return "", nil
}
