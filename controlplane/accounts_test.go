package controlplane_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/admission/plugin"
	"github.com/apikeel/kelson/kelsontest"
)

// TestAccountsAreMadeWhereTheirControllerRuns: a server that runs the controller of service accounts
// makes the account "default" for a pod that is first. One without it leaves accounts to
// kube-controller-manager, and refuses the pod as kube-apiserver does.
func TestAccountsAreMadeWhereTheirControllerRuns(t *testing.T) {
	for _, c := range []struct{ controllers, refusal string }{
		{"*", ""},
		{"-*", `pods "p" is forbidden: error looking up service account ns/default: serviceaccount "default" not found`},
	} {
		t.Run(c.controllers, func(t *testing.T) {
			t.Parallel()
			s := kelsontest.Start(t, kelsontest.Controllers(c.controllers), kelsontest.Admission(plugin.Config{}))
			client := kubernetes.NewForConfigOrDie(s.Config()).CoreV1()
			if _, err := client.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
			_, err := client.Pods("ns").Create(t.Context(), pod, metav1.CreateOptions{})
			text := ""
			if err != nil {
				text = err.Error()
			}
			if text != c.refusal {
				t.Errorf("got %q, want %q", text, c.refusal)
			}
			if _, err := client.ServiceAccounts("ns").Get(t.Context(), "default", metav1.GetOptions{}); apierrors.IsNotFound(err) != (c.refusal != "") {
				t.Errorf("the account after the pod: %v", err)
			}
		})
	}
}
