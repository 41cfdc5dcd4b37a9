package rbac

import (
	"context"
	"errors"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/apikeel/kelson/resource"
)

// TestEscalation wants writes that give rights to be judged, and no others.
func TestEscalation(t *testing.T) {
	refused := errors.New("refused")
	g := Group(Config{Escalation: func(context.Context, resource.Object, resource.Object) error { return refused }})
	role := func(change func(*rbacv1.Role)) resource.Object {
		r := &rbacv1.Role{Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}}}}
		change(r)
		return r
	}
	same := role(func(*rbacv1.Role) {})
	tests := map[string]struct {
		obj, old resource.Object
		want     error
	}{
		"create":         {obj: same, want: refused},
		"delete":         {old: same},
		"no change":      {obj: same, old: same},
		"finalizers":     {obj: role(func(r *rbacv1.Role) { r.Finalizers = []string{"a/b"} }), old: same},
		"labels":         {obj: role(func(r *rbacv1.Role) { r.Labels = map[string]string{"a": "b"} }), old: same, want: refused},
		"rules":          {obj: role(func(r *rbacv1.Role) { r.Rules = nil }), old: same, want: refused},
		"null and empty": {obj: role(func(r *rbacv1.Role) { r.Rules[0].Resources = []string{} }), old: same},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for _, d := range g.Resources {
				if _, err := d.Strategy.Begin(context.Background(), test.obj, test.old); err != test.want {
					t.Errorf("%s: %v, want %v", d.Resource, err, test.want)
				}
			}
		})
	}
	for _, d := range Group(Config{}).Resources {
		if d.Strategy.Begin != nil {
			t.Errorf("%s: judged although nobody asks for it", d.Resource)
		}
	}
}
