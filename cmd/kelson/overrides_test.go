//go:build unix

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/internal/peertest"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
)

// TestOverridesShared: this server and kube-apiserver find what the other one has
// written, in either of two etcds, and say the same of them.
func TestOverridesShared(t *testing.T) {
	peertest.Binary(t, "kube-apiserver")
	main, second := etcdtest.Start(t), etcdtest.Start(t)
	there := "#" + strings.Join(second.Endpoints(), ";")
	overrides := "--etcd-servers-overrides=/events" + there + ",coordination.k8s.io/leases" + there + ",rbac.authorization.k8s.io/*" + there
	peer := kubernetes.NewForConfigOrDie(peertest.KubeAPIServer(t, main.Endpoints(), overrides))
	ours := kubernetes.NewForConfigOrDie(kubeServer(t, main.Endpoints(), overrides))
	// Each of these makes an object, or reads it, and returns its uid and revision.
	kinds := map[string]func(ctx context.Context, c kubernetes.Interface, name string, create bool) (metav1.Object, error){
		"config maps": func(ctx context.Context, c kubernetes.Interface, name string, create bool) (metav1.Object, error) {
			if create {
				return c.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			}
			return c.CoreV1().ConfigMaps("default").Get(ctx, name, metav1.GetOptions{})
		},
		"events": func(ctx context.Context, c kubernetes.Interface, name string, create bool) (metav1.Object, error) {
			if create {
				return c.CoreV1().Events("default").Create(ctx, &corev1.Event{
					ObjectMeta: metav1.ObjectMeta{Name: name}, InvolvedObject: corev1.ObjectReference{Namespace: "default"}, Type: "Normal", Reason: "Test",
				}, metav1.CreateOptions{})
			}
			return c.EventsV1().Events("default").Get(ctx, name, metav1.GetOptions{})
		},
		"leases": func(ctx context.Context, c kubernetes.Interface, name string, create bool) (metav1.Object, error) {
			if create {
				return c.CoordinationV1().Leases("default").Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			}
			return c.CoordinationV1().Leases("default").Get(ctx, name, metav1.GetOptions{})
		},
	}
	for kind, do := range kinds {
		for i, from := range []kubernetes.Interface{peer, ours} {
			to, name := []kubernetes.Interface{ours, peer}[i], fmt.Sprintf("x-%d", i)
			made, err := do(t.Context(), from, name, true)
			if err != nil {
				t.Fatal(kind, err)
			}
			got, err := do(t.Context(), to, name, false)
			if err != nil {
				t.Fatal(kind, err)
			}
			if got.GetUID() != made.GetUID() || got.GetResourceVersion() != made.GetResourceVersion() {
				t.Errorf("%s: one has made %v, the other has %v", kind, made, got)
			}
		}
	}
	about := func(c kubernetes.Interface, path string) (lines []string) {
		text, err := c.CoreV1().RESTClient().Get().AbsPath(path).Param("verbose", "").DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "etcd") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		if got, want := about(ours, path), about(peer, path); !slices.Equal(got, want) {
			t.Errorf("%s: %q, there %q", path, got, want)
		}
	}
}
