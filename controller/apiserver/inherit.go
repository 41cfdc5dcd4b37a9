package apiserver

import (
	"context"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/resource"
)

// InheritRoles is for stores of old servers, in which one role or binding was what two
// are today. Before the new ones are created with their defaults, they get what an
// administrator has made of the old one: whoever was kept from reading /version by a
// change of system:discovery must not get it back by an upgrade.
func (s *Server) InheritRoles(ctx context.Context) error {
	var errs []error
	for _, name := range []string{"admin", "edit", "view"} {
		errs = append(errs, s.inherit(ctx, "clusterroles", name, "system:aggregate-to-"+name, inheritRole))
	}
	return errors.Join(append(errs, s.inherit(ctx, "clusterrolebindings", "system:discovery", "system:public-info-viewer", inheritBinding))...)
}

// inherit creates an object from an older one, unless it exists or there is no older one.
func (s *Server) inherit(ctx context.Context, resourceName, from, to string, derive func(old resource.Object, name string) resource.Object) error {
	objects := s.Objects(serverManager, rbacv1.GroupName, resourceName)
	if _, err := objects.Get(ctx, "", to); !apierrors.IsNotFound(err) {
		return err
	}
	old, err := objects.Get(ctx, "", from)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	derived := derive(old, to)
	if derived == nil {
		return nil
	}
	if err := objects.Create(ctx, derived); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("%s %s: %w", resourceName, to, err)
	}
	return nil
}

// inheritRole returns the rules of a role that is not aggregated yet, nil if it is.
func inheritRole(old resource.Object, name string) resource.Object {
	role, ok := old.(*rbacv1.ClusterRole)
	if !ok || role.AggregationRule != nil {
		return nil
	}
	return &rbacv1.ClusterRole{ObjectMeta: inheritedMeta(old, name), Rules: role.DeepCopy().Rules}
}

// inheritBinding returns a binding of the same subjects to the role of the new name.
func inheritBinding(old resource.Object, name string) resource.Object {
	binding, ok := old.(*rbacv1.ClusterRoleBinding)
	if !ok {
		return nil
	}
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: inheritedMeta(old, name), Subjects: binding.DeepCopy().Subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
	}
}

func inheritedMeta(old resource.Object, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: old.GetLabels(), Annotations: old.GetAnnotations()}
}
