package rbac

import (
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/internal/recorded"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// bootstrap are the roles and bindings that a cluster has from the start.
func bootstrap(tb testing.TB) (changes []resource.Change) {
	tb.Helper()
	type objects struct {
		ClusterRoles        []*rbacv1.ClusterRole
		ClusterRoleBindings []*rbacv1.ClusterRoleBinding
		Roles               []*rbacv1.Role
		RoleBindings        []*rbacv1.RoleBinding
	}
	all := recorded.ReadOne[objects](tb, "testdata/bootstrap.json.gz")
	for _, o := range all.ClusterRoles {
		changes = append(changes, set(o)...)
	}
	for _, o := range all.ClusterRoleBindings {
		changes = append(changes, set(o)...)
	}
	for _, o := range all.Roles {
		changes = append(changes, set(o)...)
	}
	for _, o := range all.RoleBindings {
		changes = append(changes, set(o)...)
	}
	return changes
}

// TestBootstrap asks what clusters rely on.
func TestBootstrap(t *testing.T) {
	src := &source{}
	a := New(src)
	src.tell(bootstrap(t)...)
	anonymous := &request.User{Name: authz.Anonymous, Groups: []string{authz.Unauthenticated}}
	jane := &request.User{Name: "jane", Groups: []string{authz.Authenticated}}
	scheduler := &request.User{Name: "system:kube-scheduler", Groups: []string{authz.Authenticated}}
	for _, c := range []struct {
		who  *request.User
		what string
		want bool
	}{
		{anonymous, "get /healthz", true}, {anonymous, "get /livez", true}, {anonymous, "get /readyz", true}, {anonymous, "get /version", true},
		{anonymous, "get /healthz/etcd", false}, {anonymous, "get /metrics", false}, {anonymous, "get /api", false}, {anonymous, "get /openapi/v2", false},
		{anonymous, "create authorization.k8s.io/selfsubjectaccessreviews", false}, {anonymous, "get core/pods default/p", false},
		{jane, "get /api/v1", true}, {jane, "get /openapi/v3", true}, {jane, "get /metrics", false},
		{jane, "create authorization.k8s.io/selfsubjectaccessreviews", true}, {jane, "create authorization.k8s.io/subjectaccessreviews", false},
		{jane, "list core/pods default", false},
		{scheduler, "list core/pods", true}, {scheduler, "create core/pods/binding default/p", true}, {scheduler, "create core/pods default", false},
		{scheduler, "update coordination.k8s.io/leases kube-system/kube-scheduler", true}, {scheduler, "update coordination.k8s.io/leases default/kube-scheduler2", false},
		{scheduler, "get core/secrets kube-system/x", false},
	} {
		if got, reason, err := a.Authorize(t.Context(), ask(c.who, c.what)); (got == authz.Allow) != c.want || err != nil {
			t.Errorf("%s: %s: %v %q %v", c.who.Name, c.what, got, reason, err)
		}
	}
}

// many are roles and bindings beside the ones that a question is about. The
// subjects of the question have none of them, one in each of many namespaces, or
// all of them in one place.
func many(n int, shape string) (changes []resource.Change) {
	for i := range n {
		name := fmt.Sprintf("extra-%d", i)
		switch shape {
		case "others":
			changes = append(changes, set(aRole(name, rule("get,list", "", "configmaps,secrets")), bind(name, "ClusterRole "+name, fmt.Sprintf("User user-%d", i)))...)
		case "namespaces":
			name = fmt.Sprintf("ns-%d/r", i)
			changes = append(changes, set(aRole(name, rule("get,list", "", "configmaps,secrets")), bind(name, "Role r", "User system:kube-scheduler"))...)
		case "same":
			changes = append(changes, set(aRole(name, rule("get", "", "configmaps", name)), bind(name, "ClusterRole "+name, "User system:kube-scheduler"))...)
		}
	}
	return changes
}

// BenchmarkAuthorize shows that what a decision costs does not depend on how
// many roles and bindings there are.
func BenchmarkAuthorize(b *testing.B) {
	scheduler := &request.User{Name: "system:kube-scheduler", Groups: []string{authz.Authenticated}}
	for _, shape := range []string{"others", "namespaces", "same"} {
		for _, n := range []int{10, 10_000} {
			src := &source{}
			a := New(src)
			src.tell(append(bootstrap(b), many(n, shape)...)...)
			for _, question := range []string{"create core/pods/binding ns-7/p", "get core/secrets default/p", "get /healthz"} {
				at := ask(scheduler, question)
				b.Run(fmt.Sprintf("%s/%d/%s", shape, n, strings.ReplaceAll(question, " ", "_")), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						if _, _, err := a.Authorize(b.Context(), at); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
