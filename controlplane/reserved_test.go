package controlplane_test

import (
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage/memory"
)

// TestServerStartsWhileTheAddressOfItsServiceIsReserved: a server that crashes after it has reserved the address of
// the service kubernetes, and before it has created the service, can be started again; the service follows
// when the address is free.
func TestServerStartsWhileTheAddressOfItsServiceIsReserved(t *testing.T) {
	t.Parallel()
	const address = "10.0.0.1"
	backend := memory.New(memory.Options{})
	t.Cleanup(func() { backend.Close() })
	reserved := fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"IPAddress","metadata":{"name":%q,"uid":"u","creationTimestamp":%q,
		"labels":{"ipaddress.kubernetes.io/managed-by":"ipallocator.k8s.io","ipaddress.kubernetes.io/ip-family":"IPv4"}},
		"spec":{"parentRef":{"resource":"services","namespace":"default","name":"kubernetes"}}}`, address, time.Now().UTC().Format(time.RFC3339))
	if _, err := backend.Create(t.Context(), "/registry/ipaddresses/"+address, []byte(reserved), 0); err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(kelsontest.Start(t, kelsontest.Backend(backend), kelsontest.NoControllers()).Config())
	if _, err := client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("got %v, want that the service is not found", err)
	}
	if err := client.NetworkingV1().IPAddresses().Delete(t.Context(), address, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, "the service is created", func() bool {
		_, err := client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		return err == nil
	})
}
