package plugin

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// ownerReferences is OwnerReferencesPermissionEnforcement. Changing owner references requires
// the verb delete on the object, because the garbage collector may then delete it; setting
// blockOwnerDeletion requires the verb update on the finalizers of the owner.
type ownerReferences struct {
	base
	authorize Authorize
	kinds     func(kind schema.GroupVersionKind) []*resource.Served
}

func newOwnerReferences(b *builder) admission.Plugin {
	return &ownerReferences{base{"OwnerReferencesPermissionEnforcement", func(t admission.Target) bool {
		podStatus := t.Group == "" && t.Resource == "pods" && t.Subresource == "status"
		return (t.Operation == admission.Create || t.Operation == admission.Update) && !podStatus
	}}, b.Authorize, b.Kinds}
}

// Validate implements admission.Validator.
func (p *ownerReferences) Validate(ctx context.Context, a *admission.Attributes) error {
	obj, ok := a.Object.(metav1.Object)
	if !ok {
		return nil
	}
	refs := obj.GetOwnerReferences()
	var before []metav1.OwnerReference
	if old, ok := a.Old.(metav1.Object); ok {
		before = old.GetOwnerReferences()
	}
	if len(refs) == len(before) && (len(refs) == 0 || equality.Semantic.DeepEqual(refs, before)) {
		return nil
	}
	if a.Operation != admission.Create {
		is := a.Served.GroupVersionResource()
		allowed, reason, err := p.authorize(ctx, &a.Request.User, request.Info{
			IsResource: true, Verb: request.Delete, Group: is.Group, Version: is.Version, Namespace: a.Namespace,
			Resource: is.Resource, Subresource: a.Subresource, Name: a.Name,
		})
		if !allowed {
			return a.Forbidden(fmt.Errorf("cannot set an ownerRef on a resource you can't delete: %v, %w", reason, shown(err)))
		}
	}
	blocking := newlyBlocking(refs, before)
	if len(blocking) == 0 {
		return nil
	}
	finalizeAll := request.Info{IsResource: true, Verb: request.Update, Group: "*", Version: "*", Resource: "*", Subresource: "finalizers", Name: "*"}
	if allowed, _, _ := p.authorize(ctx, &a.Request.User, finalizeAll); allowed {
		return nil
	}
	for _, ref := range blocking {
		if err := p.mayBlock(ctx, a, ref); err != nil {
			return a.Forbidden(err)
		}
	}
	return nil
}

// mayBlock checks whether the user may update the finalizers of an owner.
func (p *ownerReferences) mayBlock(ctx context.Context, a *admission.Attributes, ref metav1.OwnerReference) error {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	var served []*resource.Served
	if err == nil {
		if served = p.kinds(gv.WithKind(ref.Kind)); len(served) == 0 {
			err = fmt.Errorf("no matches for kind %q in version %q", ref.Kind, ref.APIVersion)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion %s Kind %s: %w", ref.APIVersion, ref.Kind, err)
	}
	for _, s := range served {
		is := s.GroupVersionResource()
		info := request.Info{
			IsResource: true, Verb: request.Update, Group: is.Group, Version: is.Version, Resource: is.Resource, Subresource: "finalizers", Name: ref.Name,
		}
		if s.Definition.Namespaced {
			info.Namespace = a.Namespace
		}
		if allowed, reason, err := p.authorize(ctx, &a.Request.User, info); !allowed {
			return fmt.Errorf("cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: %v, %w", reason, shown(err))
		}
	}
	return nil
}

// newlyBlocking returns the references that have blockOwnerDeletion now and had not before.
func newlyBlocking(refs, before []metav1.OwnerReference) (blocking []metav1.OwnerReference) {
	was := map[string]bool{}
	for _, ref := range before {
		was[string(ref.UID)] = ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
	}
	for _, ref := range refs {
		if ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion && !was[string(ref.UID)] {
			blocking = append(blocking, ref)
		}
	}
	return blocking
}

// errNone is printed where kube-apiserver prints a nil error.
var errNone = errors.New("<nil>")

func shown(err error) error {
	if err == nil {
		return errNone
	}
	return err
}
