package rbac

import (
	"context"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// RoleBindings defines rolebindings.
func RoleBindings() resource.Definition {
	kinds := []string{"Role", "ClusterRole"}
	d := define[rbacv1.RoleBinding, rbacv1.RoleBindingList]("rolebindings", "RoleBinding",
		func(b *rbacv1.RoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) },
		resource.Rules[*rbacv1.RoleBinding]{
			Validate: func(_ context.Context, b *rbacv1.RoleBinding) field.ErrorList {
				return validateBinding(&b.RoleRef, nil, b.Subjects, kinds, true)
			},
			ValidateUpdate: func(_ context.Context, b, old *rbacv1.RoleBinding) field.ErrorList {
				return validateBinding(&b.RoleRef, &old.RoleRef, b.Subjects, kinds, true)
			},
		})
	d.Namespaced, d.Old = true, oldRoleBindings()
	d.Columns = bindingColumns(rbacv1.RoleBinding{}.SwaggerDoc()["roleRef"], "roleBinding")
	d.Cells = resource.CellsFunc(func(b *rbacv1.RoleBinding) []any { return bindingCells(b, b.RoleRef, b.Subjects) })
	return d
}

// ClusterRoleBindings defines clusterrolebindings.
func ClusterRoleBindings() resource.Definition {
	kinds := []string{"ClusterRole"}
	d := define[rbacv1.ClusterRoleBinding, rbacv1.ClusterRoleBindingList]("clusterrolebindings", "ClusterRoleBinding",
		func(b *rbacv1.ClusterRoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) },
		resource.Rules[*rbacv1.ClusterRoleBinding]{
			Validate: func(_ context.Context, b *rbacv1.ClusterRoleBinding) field.ErrorList {
				return validateBinding(&b.RoleRef, nil, b.Subjects, kinds, false)
			},
			ValidateUpdate: func(_ context.Context, b, old *rbacv1.ClusterRoleBinding) field.ErrorList {
				return validateBinding(&b.RoleRef, &old.RoleRef, b.Subjects, kinds, false)
			},
		})
	d.Old = oldClusterRoleBindings()
	d.Columns = bindingColumns(rbacv1.ClusterRoleBinding{}.SwaggerDoc()["roleRef"], "clusterRoleBinding")
	d.Cells = resource.CellsFunc(func(b *rbacv1.ClusterRoleBinding) []any { return bindingCells(b, b.RoleRef, b.Subjects) })
	return d
}

func defaultBinding(role *rbacv1.RoleRef, subjects []rbacv1.Subject) {
	if role.APIGroup == "" {
		role.APIGroup = rbacv1.GroupName
	}
	for i := range subjects {
		s := &subjects[i]
		if s.APIGroup == "" && (s.Kind == rbacv1.UserKind || s.Kind == rbacv1.GroupKind) {
			s.APIGroup = rbacv1.GroupName
		}
	}
}

// validateBinding validates a binding that can refer to roles of some kinds; old is nil on
// create. In a RoleBinding, a service account without a namespace is of the same namespace.
func validateBinding(role, old *rbacv1.RoleRef, subjects []rbacv1.Subject, kinds []string, namespaced bool) field.ErrorList {
	path := field.NewPath("roleRef")
	errs := ofGroup(role.APIGroup, rbacv1.GroupName, path)
	if !slices.Contains(kinds, role.Kind) {
		errs = append(errs, field.NotSupported(path.Child("kind"), role.Kind, kinds))
	}
	errs = append(errs, rules.Invalid(path.Child("name"), role.Name, content.IsPathSegmentName(role.Name))...)
	unnamed := func() *field.Error { return field.Required(path.Child("name"), "") }
	switch {
	case role.Name != "":
	case old != nil:
		errs = append(errs, unnamed()) // the role may not change, which hides the declared errors about it
	default:
		errs = append(errs, resource.HandWritten(unnamed())...)
	}
	for i := range subjects {
		s, path := &subjects[i], field.NewPath("subjects").Index(i)
		switch s.Kind {
		case rbacv1.ServiceAccountKind:
			errs = append(errs, named(s.Name, func(name string) []string { return apivalidation.ValidateServiceAccountName(name, false) }, path)...)
			errs = append(errs, ofGroup(s.APIGroup, "", path)...)
			if !namespaced && s.Namespace == "" {
				errs = append(errs, field.Required(path.Child("namespace"), ""))
			}
		case rbacv1.UserKind, rbacv1.GroupKind:
			errs = append(errs, named(s.Name, nil, path)...)
			errs = append(errs, ofGroup(s.APIGroup, rbacv1.GroupName, path)...)
		default:
			errs = append(errs, named(s.Name, nil, path)...)
			errs = append(errs, field.NotSupported(path.Child("kind"), s.Kind, []string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}))
		}
	}
	if role.Name == "" && old == nil {
		errs = append(errs, resource.BetaOnly(unnamed())...)
	}
	if old != nil && *role != *old {
		errs = append(errs, field.Invalid(path, rules.GoForm(*role), apivalidation.FieldImmutableErrorMsg))
	}
	return errs
}

func ofGroup(group, want string, path *field.Path) field.ErrorList {
	if group == want {
		return nil
	}
	return field.ErrorList{field.NotSupported(path.Child("apiGroup"), group, []string{want})}
}

// named checks that a name is set and valid by problems.
func named(name string, problems func(string) []string, path *field.Path) field.ErrorList {
	path = path.Child("name")
	if name == "" {
		return resource.DeclaredBeta(field.Required(path, ""))
	}
	var errs field.ErrorList
	if problems != nil {
		for _, m := range problems(name) {
			errs = append(errs, field.Invalid(path, name, m))
		}
	}
	return errs
}

func bindingColumns(role, name string) []resource.Column {
	return []resource.Column{
		rules.NameColumn(),
		{Name: "Role", Type: "string", Description: strings.TrimSuffix(role, " This field is immutable.")},
		rules.AgeColumn(),
		{Name: "Users", Type: "string", Description: "Users in the " + name, Priority: 1},
		{Name: "Groups", Type: "string", Description: "Groups in the " + name, Priority: 1},
		{Name: "ServiceAccounts", Type: "string", Description: "ServiceAccounts in the " + name, Priority: 1},
	}
}

func bindingCells(obj resource.Object, role rbacv1.RoleRef, subjects []rbacv1.Subject) []any {
	var users, groups, accounts []string
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		}
	}
	join := func(names []string) string { return strings.Join(names, ", ") }
	return []any{obj.GetName(), role.Kind + "/" + role.Name, resource.Since(obj.GetCreationTimestamp().Time), join(users), join(groups), join(accounts)}
}
