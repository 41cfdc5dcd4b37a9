//go:build unix

package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/apikeel/kelson/storage/postgres/pgtest"
)

// TestServeOnPostgres: servers on one database see each other's writes; one that is
// killed in the middle of writes loses none that it has acknowledged, and is no obstacle
// to the others.
func TestServeOnPostgres(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	start := func(name string) (*server, kubernetes.Interface) {
		dir := filepath.Join(t.TempDir(), name)
		s := serve(t, "serve", "--data-dir", dir, "--storage-dsn", db.DSN(), "--storage-allow-nosync")
		if !strings.Contains(s.out, db.Addr()) {
			t.Errorf("got greeting %q, want one that names the database", s.out)
		}
		config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
		if err != nil {
			t.Fatal(err)
		}
		config.QPS = -1
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return s, client
	}
	victim, doomed := start("victim")
	_, other := start("other")

	var mu sync.Mutex
	acknowledged := map[string]bool{}
	killed := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := 0; ; n++ {
				name := fmt.Sprintf("m-%d-%d", i, n)
				_, err := doomed.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
				if err != nil {
					<-killed
					return
				}
				mu.Lock()
				acknowledged[name] = true
				mu.Unlock()
			}
		})
	}
	for n := 0; n < 100; time.Sleep(5 * time.Millisecond) {
		mu.Lock()
		n = len(acknowledged)
		mu.Unlock()
	}
	// Frozen in the middle of writes, it holds no lock that others wait for.
	_ = victim.cmd.Process.Signal(syscall.SIGSTOP)
	for i := range 20 {
		began := time.Now()
		name := fmt.Sprintf("beside-%d", i)
		if _, err := other.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Errorf("a write beside a frozen server: %v", err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("a write beside a frozen server took %v, want no wait for it", took)
		}
	}
	victim.end(syscall.SIGKILL)
	close(killed)
	wg.Wait()
	maps := other.CoreV1().ConfigMaps("default")
	for name := range acknowledged {
		if _, err := maps.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("%s, which was acknowledged: got error %v, want none", name, err)
		}
	}
	began := time.Now()
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "after"}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Errorf("a write on the other server: %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a write on the other server took %v, want no wait for the one that was killed", took)
	}
	_, again := start("again")
	if _, err := again.CoreV1().ConfigMaps("default").Get(t.Context(), "after", metav1.GetOptions{}); err != nil {
		t.Errorf("on a server that was started later: %v", err)
	}
	metrics, err := other.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`kelson_storage_connections\{state="max",storage_cluster_id="[^"]+"\} [1-9]`, `kelson_storage_connections_waiting\{storage_cluster_id="[^"]+"\} [0-9]`} {
		if !regexp.MustCompile(want).Match(metrics) {
			t.Errorf("the metrics have no line like %s", want)
		}
	}
}
