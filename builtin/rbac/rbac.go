// Package rbac is the API group rbac.authorization.k8s.io: roles and bindings. Start at Group and
// Config. Package authz evaluates them; through Config.Escalation it also refuses writes by
// which a user would grant more than they have.
package rbac

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/apikeel/kelson/resource"
)

// Config are the dependencies of the group.
type Config struct {
	// Escalation checks a write before validation: it returns an API error if the object
	// grants permissions that its writer neither has nor may grant. obj is one of the four
	// kinds; old is nil on create. It is not called for changes that only the garbage
	// collector makes. Nil allows everything.
	Escalation func(ctx context.Context, obj, old resource.Object) error
}

// Group returns the group.
func Group(cfg Config) resource.Group {
	g := resource.Group{Name: rbacv1.GroupName, Resources: []resource.Definition{
		ClusterRoleBindings(),
		ClusterRoles(),
		RoleBindings(),
		Roles(),
	}}
	if cfg.Escalation != nil {
		for i := range g.Resources {
			g.Resources[i].Strategy.Begin = begin(cfg.Escalation)
		}
	}
	return g
}

// begin makes a Strategy.Begin that calls Escalation on create and update; nothing is reserved.
func begin(escalation func(ctx context.Context, obj, old resource.Object) error) func(context.Context, resource.Object, resource.Object) (func(resource.Outcome), error) {
	return func(ctx context.Context, obj, old resource.Object) (func(resource.Outcome), error) {
		if obj == nil || old != nil && onlyCollected(obj, old) {
			return nil, nil
		}
		return nil, escalation(ctx, obj, old)
	}
}

// onlyCollected reports whether only metadata changes that the garbage collector changes.
func onlyCollected(obj, old resource.Object) bool {
	same := obj.DeepCopyObject().(resource.Object)
	same.SetOwnerReferences(old.GetOwnerReferences())
	same.SetFinalizers(old.GetFinalizers())
	same.SetManagedFields(old.GetManagedFields())
	same.SetSelfLink(old.GetSelfLink())
	same.SetResourceVersion(old.GetResourceVersion())
	return equality.Semantic.DeepEqual(same, old)
}

// define makes a definition with the rules that the four kinds share.
func define[T, L any, P interface {
	*T
	resource.Object
}, PL interface {
	*L
	runtime.Object
}](name, kind string, defaults func(P), rules resource.Rules[P]) resource.Definition {
	rules.ValidateName = func(name string, _ bool) []string { return content.IsPathSegmentName(name) }
	rules.CreateOnUpdate, rules.NameOnUpdate = true, true
	d := resource.Definition{
		Group:      rbacv1.GroupName,
		Resource:   name,
		Kind:       kind,
		StorageKey: name,
		Versions: []resource.Version{{
			Name:    "v1",
			New:     func() resource.Object { return P(new(T)) },
			NewList: func() runtime.Object { return PL(new(L)) },
		}},
		Strategy: rules.Strategy(),
	}
	if defaults != nil {
		d.Versions[0].Default = resource.DefaultFunc(defaults)
	}
	return d
}
