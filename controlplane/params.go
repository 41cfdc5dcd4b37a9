package controlplane

import (
	"context"
	"fmt"
	"slices"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// paramAccess judges who may write policies with parameters.
type paramAccess struct {
	catalog    func() *resource.Catalog
	objects    func(group, name string) resource.Objects
	authorizer authz.Authorizer
}

// mayReadParams judges whether who writes a policy with a kind of parameters, or
// a binding that refers to some, may read them: policies show what is in them.
func (p *paramAccess) mayReadParams(ctx context.Context, obj resource.Object) error {
	user := &request.From(ctx).User
	if slices.Contains(user.Groups, authz.Masters) {
		return nil
	}
	switch o := obj.(type) {
	case *registrationv1.ValidatingAdmissionPolicy:
		return p.mayReadKind(ctx, user, o.Spec.ParamKind)
	case *registrationv1.MutatingAdmissionPolicy:
		return p.mayReadKind(ctx, user, o.Spec.ParamKind)
	case *registrationv1.ValidatingAdmissionPolicyBinding:
		policy, err := p.objects(registrationv1.GroupName, "validatingadmissionpolicies").Get(ctx, "", o.Spec.PolicyName)
		if found, ok := policy.(*registrationv1.ValidatingAdmissionPolicy); ok && err == nil {
			return p.mayReadRef(ctx, user, o.Spec.PolicyName, nil, found.Spec.ParamKind, o.Spec.ParamRef)
		}
		return p.mayReadRef(ctx, user, o.Spec.PolicyName, err, nil, o.Spec.ParamRef)
	case *registrationv1.MutatingAdmissionPolicyBinding:
		policy, err := p.objects(registrationv1.GroupName, "mutatingadmissionpolicies").Get(ctx, "", o.Spec.PolicyName)
		if found, ok := policy.(*registrationv1.MutatingAdmissionPolicy); ok && err == nil {
			return p.mayReadRef(ctx, user, o.Spec.PolicyName, nil, found.Spec.ParamKind, o.Spec.ParamRef)
		}
		return p.mayReadRef(ctx, user, o.Spec.PolicyName, err, nil, o.Spec.ParamRef)
	}
	return nil
}

// paramResource returns the resource of a kind of parameters; "*" stands for what
// is not known.
func (p *paramAccess) paramResource(kind *registrationv1.ParamKind) (gvr schema.GroupVersionResource, parseErr error, found bool) {
	gvr = schema.GroupVersionResource{Group: "*", Version: "*", Resource: "*"}
	gv, err := schema.ParseGroupVersion(kind.APIVersion)
	if err != nil {
		return gvr, err, false
	}
	gvr.Group, gvr.Version = gv.Group, gv.Version
	if served, ok := p.catalog().LookupKind(gv.WithKind(kind.Kind)); ok {
		gvr.Resource = served.Definition.Resource
		return gvr, nil, true
	}
	return gvr, nil, false
}

func (p *paramAccess) mayRead(ctx context.Context, user *request.User, verb string, gvr schema.GroupVersionResource, namespace, name string) (bool, error) {
	decision, _, err := p.authorizer.Authorize(ctx, &authz.Attributes{
		User: user, Verb: verb, IsResource: true, Group: gvr.Group, Version: gvr.Version, Resource: gvr.Resource, Namespace: namespace, Name: name,
	})
	return decision == authz.Allow, err
}

func (p *paramAccess) mayReadKind(ctx context.Context, user *request.User, kind *registrationv1.ParamKind) error {
	gvr, _, _ := p.paramResource(kind)
	ok, err := p.mayRead(ctx, user, request.Get, gvr, "*", "*")
	if ok || err != nil {
		return err
	}
	return fmt.Errorf(`user %v must have "get" permission on all objects of the referenced paramKind (kind=%s, apiVersion=%s)`, formatUser(user), kind.Kind, kind.APIVersion)
}

func (p *paramAccess) mayReadRef(ctx context.Context, user *request.User, policy string, policyErr error, kind *registrationv1.ParamKind, ref *registrationv1.ParamRef) error {
	gvr, parseErr, found := schema.GroupVersionResource{Group: "*", Version: "*", Resource: "*"}, error(nil), true
	if kind != nil {
		gvr, parseErr, found = p.paramResource(kind)
	}
	verb := request.Get
	if ref.Name == "" {
		verb = request.List
	}
	ok, err := p.mayRead(ctx, user, verb, gvr, ref.Namespace, ref.Name)
	switch {
	case err != nil:
		return fmt.Errorf("failed to authorize request: %w", err)
	case ok:
		return nil
	case policyErr != nil:
		return fmt.Errorf(`unable to get policy %s to determine minimum required permissions and user %v does not have "%v" permission for all groups, versions and resources`, policy, formatUser(user), verb)
	case parseErr != nil:
		return fmt.Errorf(`unable to parse paramKind %v to determine minimum required permissions and user %v does not have "%v" permission for all groups, versions and resources`, kind, formatUser(user), verb)
	case !found:
		return fmt.Errorf(`unable to resolve paramKind %v to determine minimum required permissions and user %v does not have "%v" permission for all groups, versions and resources`, kind, formatUser(user), verb)
	}
	return fmt.Errorf(`user %v does not have "%v" permission on the object referenced by paramRef`, formatUser(user), verb)
}

// formatUser returns a user in the form that clients know from these messages.
func formatUser(u *request.User) string {
	return fmt.Sprintf("&{%s %s %v %v}", u.Name, u.UID, u.Groups, u.Extra)
}
