package expression

import (
	"context"

	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/library"

	"github.com/apikeel/kelson/admission/match"
	"github.com/apikeel/kelson/request"
)

// Authorizer decides what expressions ask: whether somebody may do something.
type Authorizer func(ctx context.Context, check *Check) (allowed bool, reason string, err error)

// Check is a question to an Authorizer.
type Check struct {
	User request.User
	Verb string

	// IsResource tells questions about resources from those about other paths, of
	// which only Path is set.
	IsResource  bool
	Group       string
	Version     string
	Namespace   string
	Resource    string
	Subresource string
	Name        string
	Path        string

	// What selects a part of a collection; what cannot be parsed is an error.
	Fields    fields.Requirements
	FieldsErr error
	Labels    labels.Requirements
	LabelsErr error
}

// authorizers returns the values that expressions ask: anything, and about the
// resource of the write.
func (a Authorizer) values(w *match.Write) (all, own ref.Val) {
	u := &user.DefaultInfo{Name: w.Request.User.Name, UID: w.Request.User.UID, Groups: w.Request.User.Groups, Extra: w.Request.User.Extra}
	return library.NewAuthorizerVal(u, asked(a)), library.NewResourceAuthorizerVal(u, asked(a), target{w})
}

// asked is an Authorizer as the library of the language wants it.
type asked Authorizer

// Authorize implements authorizer.UnconditionalAuthorizer.
func (a asked) Authorize(ctx context.Context, attr authorizer.Attributes) (authorizer.Decision, string, error) {
	c := &Check{
		Verb: attr.GetVerb(), IsResource: attr.IsResourceRequest(), Group: attr.GetAPIGroup(), Version: attr.GetAPIVersion(),
		Namespace: attr.GetNamespace(), Resource: attr.GetResource(), Subresource: attr.GetSubresource(), Name: attr.GetName(), Path: attr.GetPath(),
	}
	if u := attr.GetUser(); u != nil {
		c.User = request.User{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: u.GetExtra()}
	}
	c.Fields, c.FieldsErr = attr.GetFieldSelector()
	c.Labels, c.LabelsErr = attr.GetLabelSelector()
	allowed, reason, err := a(ctx, c)
	if allowed {
		return authorizer.DecisionAllow, reason, err
	}
	return authorizer.DecisionNoOpinion, reason, err
}

// target is the resource of a write.
type target struct{ w *match.Write }

// GetName implements library.Resource, as everything below.
func (t target) GetName() string { return t.w.Name }

// GetNamespace returns that of the write.
func (t target) GetNamespace() string { return t.w.Namespace }

// GetResource returns that of the request.
func (t target) GetResource() schema.GroupVersionResource { return t.w.Served.GroupVersionResource() }

// GetSubresource returns that of the request.
func (t target) GetSubresource() string { return t.w.Subresource }
