// Package authz decides who may do what.
//
// The interface is here; its implementations are files and folders beside it. An
// authorizer allows, denies, or has no opinion; Union asks several in their
// order, and what nobody allows is denied.
package authz

import (
	"context"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/apikeel/kelson/request"
)

// Decision is what an authorizer says.
type Decision uint8

// NoOpinion leaves the decision to the next authorizer; the last one's means
// no. It is the zero value: deny is the default.
const (
	NoOpinion Decision = iota
	Deny
	Allow
)

// Groups and users that the server itself knows.
const (
	Masters         = "system:masters"
	Nodes           = "system:nodes"
	Authenticated   = "system:authenticated"
	Unauthenticated = "system:unauthenticated"
	Anonymous       = "system:anonymous"

	// NodePrefix is how the names of nodes begin, ServiceAccountPrefix those of
	// service accounts, of which the namespace and the name follow.
	NodePrefix           = "system:node:"
	ServiceAccountPrefix = "system:serviceaccount:"
)

// Attributes is what is to be decided on.
type Attributes struct {
	User *request.User
	Verb string

	// IsResource tells requests for resources from those for other paths, of
	// which only Path is set.
	IsResource  bool
	Group       string
	Version     string
	Namespace   string
	Resource    string
	Subresource string
	Name        string
	Path        string

	// Selectors of lists, watches and deletions of collections. An authorizer
	// that allows only a part of a collection looks at them. What could not be
	// parsed is an error here and selects nothing.
	Fields    fields.Requirements
	FieldsErr error
	Labels    labels.Requirements
	LabelsErr error
}

// Authorizer decides on requests. It is asked for every one, so it must be
// quick, and safe for concurrent use.
type Authorizer interface {
	// Authorize decides. The reason is for the client if the answer is no, and
	// for the audit. An error with NoOpinion does not keep others from
	// deciding.
	Authorize(ctx context.Context, a *Attributes) (decision Decision, reason string, err error)
}

// ReadOnly reports whether what is asked for changes nothing.
func (a *Attributes) ReadOnly() bool {
	return a.Verb == request.Get || a.Verb == request.List || a.Verb == request.Watch
}

// Func is an Authorizer that is a function.
type Func func(ctx context.Context, a *Attributes) (Decision, string, error)

// Authorize implements Authorizer.
func (f Func) Authorize(ctx context.Context, a *Attributes) (Decision, string, error) {
	return f(ctx, a)
}

// Rules tells what a user may do in a namespace, as far as an authorizer can
// enumerate it. With an error, what is returned still holds.
type Rules interface {
	RulesFor(ctx context.Context, user *request.User, namespace string) (resources []ResourceRule, paths []PathRule, incomplete bool, err error)
}

// ResourceRule allows verbs on resources.
type ResourceRule struct{ Verbs, Groups, Resources, Names []string }

// PathRule allows verbs on paths that are not resources.
type PathRule struct{ Verbs, Paths []string }
