package kelsontest_test

import (
	"testing"

	"github.com/apikeel/kelson/kelsontest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Most tests need nothing but a server and a client.
func Example() {
	_ = func(t *testing.T) {
		server := kelsontest.Start(t)
		client, err := kubernetes.NewForConfig(server.Config())
		if err != nil {
			t.Fatal(err)
		}
		settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}
		if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), settings, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
