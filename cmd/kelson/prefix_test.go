//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/internal/peertest"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
)

// TestPrefixShared: below each prefix this server finds what kube-apiserver has
// written, and the other way round.
func TestPrefixShared(t *testing.T) {
	peertest.Binary(t, "kube-apiserver")
	cluster := etcdtest.Start(t)
	for i, prefix := range []string{"/somewhere/else", "plain", "/"} {
		peer := kubernetes.NewForConfigOrDie(peertest.KubeAPIServer(t, cluster.Endpoints(), "--etcd-prefix="+prefix))
		ours := kubernetes.NewForConfigOrDie(kubeServer(t, cluster.Endpoints(), "--etcd-prefix="+prefix))
		for j, from := range []kubernetes.Interface{peer, ours} {
			to := []kubernetes.Interface{ours, peer}[j]
			name := fmt.Sprintf("c-%d-%d", i, j)
			made, err := from.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := to.CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || got.UID != made.UID || got.ResourceVersion != made.ResourceVersion {
				t.Errorf("%s: %v, %v", prefix, got, err)
			}
		}
	}
}

// kubeServer starts this server as kube-apiserver is started.
func kubeServer(t *testing.T, etcd []string, args ...string) *rest.Config {
	t.Helper()
	dir, port := t.TempDir(), peertest.FreePort(t)
	certificate, key := selfSigned(t, "service accounts")
	file := files(t, map[string]string{"sa.crt": certificate, "sa.key": key, "tokens": "secret,admin,1,system:masters\n"})
	cmd := command(t, append([]string{
		kubeName, "--etcd-servers=" + strings.Join(etcd, ","), "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--cert-dir=" + filepath.Join(dir, "certs"), "--token-auth-file=" + file("tokens"), "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--service-account-key-file=" + file("sa.crt"),
		"--service-account-signing-key-file=" + file("sa.key"), "--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none",
	}, args...)...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	config := &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", port), BearerToken: "secret", QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	peertest.WaitReady(t, config)
	return config
}
