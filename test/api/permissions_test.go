package api

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/kelsontest"
)

// adminClaim returns a claim that asks for admin access.
func adminClaim(name string) *resourcev1.ResourceClaim {
	yes := true
	return &resourcev1.ResourceClaim{ObjectMeta: named(name), Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
		Name: "one", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1, AdminAccess: &yes},
	}}}}}
}

// TestAdminAccess: a claim with admin access is for namespaces that have the label.
func TestAdminAccess(t *testing.T) {
	t.Parallel()
	c := kubernetes.NewForConfigOrDie(kelsontest.Start(t, kelsontest.NoControllers()).Config())
	must(c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "admins", Labels: map[string]string{"resource.kubernetes.io/admin-access": "true"},
	}}, metav1.CreateOptions{}))(t)
	if _, err := c.ResourceV1().ResourceClaims("default").Create(t.Context(), adminClaim("a"), metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "admin access to devices requires") {
		t.Errorf("in a namespace without the label: got %v, want it refused", err)
	}
	if _, err := c.ResourceV1().ResourceClaims("admins").Create(t.Context(), adminClaim("a"), metav1.CreateOptions{}); err != nil {
		t.Errorf("in a namespace with the label: %v", err)
	}
}

// TestGranularClaimStatus: who may update the status of claims may not allocate devices,
// unless there is a permission for it, or the gate is off.
func TestGranularClaimStatus(t *testing.T) {
	t.Parallel()
	const gate = "DRAResourceClaimGranularStatusAuthorization"
	for _, on := range []bool{true, false} {
		s := kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.FeatureGates(map[string]bool{gate: on}))
		admin := kubernetes.NewForConfigOrDie(s.Config())
		grant := func(resources ...string) {
			t.Helper()
			name := strings.ReplaceAll(strings.Join(resources, "-"), "/", "-")
			must(admin.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: named(name), Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{"resource.k8s.io"}, Resources: resources, Verbs: []string{"get", "update"},
			}}}, metav1.CreateOptions{}))(t)
			must(admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
				ObjectMeta: named(name), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
				Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "jane"}},
			}, metav1.CreateOptions{}))(t)
		}
		grant("resourceclaims", "resourceclaims/status")
		claim := adminClaim("c")
		claim.Spec.Devices.Requests[0].Exactly.AdminAccess = nil
		claim = must(admin.ResourceV1().ResourceClaims("default").Create(t.Context(), claim, metav1.CreateOptions{}))(t)
		jane := kubernetes.NewForConfigOrDie(s.User("jane")).ResourceV1().ResourceClaims("default")
		claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "one", Driver: "d.example.com", Pool: "p", Device: "1"}}}}
		_, err := jane.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
		if on != (err != nil && strings.Contains(err.Error(), `requires resource="resourceclaims/binding", verb="update" permission`)) {
			t.Errorf("%s=%v: got %v", gate, on, err)
		}
		if on {
			grant("resourceclaims/binding")
			if _, err = jane.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
				t.Errorf("with the permission: %v", err)
			}
		}
	}
}

// TestDisabledPlugin: the taint of new nodes is a plugin's, and gone without it.
func TestDisabledPlugin(t *testing.T) {
	t.Parallel()
	for _, disabled := range []bool{false, true} {
		c := kubernetes.NewForConfigOrDie(kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.Configure(func(c *controlplane.Config) {
			if disabled {
				c.Admission.Disable = append(c.Admission.Disable, "TaintNodesByCondition")
			}
		})).Config())
		node := must(c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: named("n")}, metav1.CreateOptions{}))(t)
		if got := len(node.Spec.Taints) == 0; got != disabled {
			t.Errorf("disabled: %v, taints %v", disabled, node.Spec.Taints)
		}
	}
}

// TestInheritedBinding: in a store of an old server the binding for /version and the
// like is made from that for discovery, with the subjects that an administrator left.
func TestInheritedBinding(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.Folder(dir))
	bindings := kubernetes.NewForConfigOrDie(server.Config()).RbacV1().ClusterRoleBindings()
	if err := bindings.Delete(t.Context(), "system:public-info-viewer", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	discovery := must(bindings.Get(t.Context(), "system:discovery", metav1.GetOptions{}))(t)
	discovery.Subjects = []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "readers"}}
	discovery.Annotations[rbacv1.AutoUpdateAnnotationKey] = "false"
	must(bindings.Update(t.Context(), discovery, metav1.UpdateOptions{}))(t)
	server.Stop()

	server = kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.Folder(dir))
	bindings = kubernetes.NewForConfigOrDie(server.Config()).RbacV1().ClusterRoleBindings()
	got := must(bindings.Get(t.Context(), "system:public-info-viewer", metav1.GetOptions{}))(t)
	if len(got.Subjects) != 1 || got.Subjects[0].Name != "readers" || got.RoleRef.Name != "system:public-info-viewer" {
		t.Errorf("got %v of %v, want readers", got.Subjects, got.RoleRef)
	}
}
