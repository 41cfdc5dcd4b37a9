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

// Authorizer answers authorization checks of CEL expressions.
type Authorizer func(ctx context.Context, check *Check) (allowed bool, reason string, err error)

// Check is one authorization check.
type Check struct {
	User request.User
	Verb string

	// IsResource distinguishes resource checks from path checks, for which only Path
	// is set.
	IsResource  bool
	Group       string
	Version     string
	Namespace   string
	Resource    string
	Subresource string
	Name        string
	Path        string

	// Fields and Labels are the selectors of the check; a parse error is in the errors.
	Fields    fields.Requirements
	FieldsErr error
	Labels    labels.Requirements
	LabelsErr error
}

// values returns the CEL variables authorizer and authorizer.requestResource.
func (a Authorizer) values(w *match.Write) (all, own ref.Val) {
	u := &user.DefaultInfo{Name: w.Request.User.Name, UID: w.Request.User.UID, Groups: w.Request.User.Groups, Extra: w.Request.User.Extra}
	return library.NewAuthorizerVal(u, celAuthorizer(a)), library.NewResourceAuthorizerVal(u, celAuthorizer(a), target{w})
}

// celAuthorizer adapts an Authorizer to the CEL library.
type celAuthorizer Authorizer

// Authorize implements authorizer.UnconditionalAuthorizer.
func (a celAuthorizer) Authorize(ctx context.Context, attr authorizer.Attributes) (authorizer.Decision, string, error) {
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

// target is the resource of a write, for authorizer.requestResource.
type target struct{ w *match.Write }

// GetName implements library.Resource, as everything below.
func (t target) GetName() string { return t.w.Name }

// GetNamespace returns the namespace of the write.
func (t target) GetNamespace() string { return t.w.Namespace }

// GetResource returns the resource of the request.
func (t target) GetResource() schema.GroupVersionResource { return t.w.Served.GroupVersionResource() }

// GetSubresource returns the subresource of the request.
func (t target) GetSubresource() string { return t.w.Subresource }
