package rbac

import (
	rbacv1 "k8s.io/api/rbac/v1"
	rbacv1alpha1 "k8s.io/api/rbac/v1alpha1"
	rbacv1beta1 "k8s.io/api/rbac/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/resource"
)

// Versions that are not served any more. v1beta1 is like v1; subjects of v1alpha1 have an
// apiVersion instead of a group.

func oldRoles() []resource.Version {
	return []resource.Version{
		resource.OldVersion[rbacv1beta1.Role, rbacv1.Role](rbacv1beta1.SchemeGroupVersion, nil, nil),
		resource.OldVersion[rbacv1alpha1.Role, rbacv1.Role](rbacv1alpha1.SchemeGroupVersion, nil, nil),
	}
}

func oldClusterRoles() []resource.Version {
	return []resource.Version{
		resource.OldVersion[rbacv1beta1.ClusterRole, rbacv1.ClusterRole](rbacv1beta1.SchemeGroupVersion, nil, nil),
		resource.OldVersion[rbacv1alpha1.ClusterRole, rbacv1.ClusterRole](rbacv1alpha1.SchemeGroupVersion, nil, nil),
	}
}

func oldRoleBindings() []resource.Version {
	defaults := func(b *rbacv1.RoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) }
	return []resource.Version{
		resource.OldVersion[rbacv1beta1.RoleBinding](rbacv1beta1.SchemeGroupVersion, defaults, nil),
		resource.OldVersion(rbacv1alpha1.SchemeGroupVersion, defaults, func(old *rbacv1alpha1.RoleBinding, b *rbacv1.RoleBinding) { setGroups(old.Subjects, b.Subjects) }),
	}
}

func oldClusterRoleBindings() []resource.Version {
	defaults := func(b *rbacv1.ClusterRoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) }
	return []resource.Version{
		resource.OldVersion[rbacv1beta1.ClusterRoleBinding](rbacv1beta1.SchemeGroupVersion, defaults, nil),
		resource.OldVersion(rbacv1alpha1.SchemeGroupVersion, defaults, func(old *rbacv1alpha1.ClusterRoleBinding, b *rbacv1.ClusterRoleBinding) {
			setGroups(old.Subjects, b.Subjects)
		}),
	}
}

// setGroups sets the groups of subjects that come from v1alpha1, where the user * stands for
// everybody who is authenticated.
func setGroups(old []rbacv1alpha1.Subject, subjects []rbacv1.Subject) {
	for i := range subjects {
		s := &subjects[i]
		switch s.Kind {
		case rbacv1.ServiceAccountKind:
			s.APIGroup = ""
		case rbacv1.UserKind, rbacv1.GroupKind:
			s.APIGroup = rbacv1.GroupName
		default:
			if gv, err := schema.ParseGroupVersion(old[i].APIVersion); err == nil {
				s.APIGroup = gv.Group
			}
		}
		if s.Kind == rbacv1.UserKind && s.Name == "*" {
			s.Kind, s.Name = rbacv1.GroupKind, "system:authenticated"
		}
	}
}
