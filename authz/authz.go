// Package authz authorizes requests: it decides who may do what. Start at Authorizer
// and Union; Attributes is what is decided on. The implementations are files and
// folders beside it. An authorizer never looks at the body of a request, and never
// changes anything.
//
// An authorizer allows, denies, or has no opinion. Union asks several in order, and a
// request that none allows is denied.
package authz

import (
	"context"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/apikeel/kelson/request"
)

// Decision is the result of an authorizer.
type Decision uint8

// NoOpinion leaves the decision to the next authorizer; if it is the last one's, the
// request is denied. It is the zero value: deny is the default.
const (
	NoOpinion Decision = iota
	Deny
	Allow
)

// Groups and users with a meaning to the server itself.
const (
	Masters         = "system:masters"
	Nodes           = "system:nodes"
	Authenticated   = "system:authenticated"
	Unauthenticated = "system:unauthenticated"
	Anonymous       = "system:anonymous"

	// NodePrefix is the prefix of the user names of nodes, ServiceAccountPrefix that of
	// service accounts, which is followed by namespace and name.
	NodePrefix           = "system:node:"
	ServiceAccountPrefix = "system:serviceaccount:"
)

// Attributes describes the request that is to be authorized.
type Attributes struct {
	User *request.User
	Verb string

	// IsResource distinguishes requests for resources from those for other paths, of
	// which only Path is set.
	IsResource  bool
	Group       string
	Version     string
	Namespace   string
	Resource    string
	Subresource string
	Name        string
	Path        string

	// Selectors of list, watch and deletecollection. An authorizer that allows only a
	// part of a collection looks at them. A selector that cannot be parsed sets the
	// error and selects nothing.
	Fields    fields.Requirements
	FieldsErr error
	Labels    labels.Requirements
	LabelsErr error
}

// Authorizer authorizes requests. It is called for every request, so it must be fast
// and safe for concurrent use.
type Authorizer interface {
	// Authorize decides. The reason is shown to the client if the request is denied,
	// and is recorded in the audit log. An error with NoOpinion does not stop the next
	// authorizer from deciding.
	Authorize(ctx context.Context, a *Attributes) (decision Decision, reason string, err error)
}

// ReadOnly reports whether the verb is get, list or watch.
func (a *Attributes) ReadOnly() bool {
	return a.Verb == request.Get || a.Verb == request.List || a.Verb == request.Watch
}

// Func adapts a function to an Authorizer.
type Func func(ctx context.Context, a *Attributes) (Decision, string, error)

// Authorize implements Authorizer.
func (f Func) Authorize(ctx context.Context, a *Attributes) (Decision, string, error) {
	return f(ctx, a)
}

// Rules is implemented by authorizers that can enumerate what a user may do in a
// namespace, for SelfSubjectRulesReview. The rules that are returned with an error are
// valid.
type Rules interface {
	RulesFor(ctx context.Context, user *request.User, namespace string) (resources []ResourceRule, paths []PathRule, incomplete bool, err error)
}

// ResourceRule allows verbs on resources.
type ResourceRule struct{ Verbs, Groups, Resources, Names []string }

// PathRule allows verbs on paths that are not resources.
type PathRule struct{ Verbs, Paths []string }
