package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/kelsontest"
)

// A store that keeps no history of its own has as much as its watches, without times.
func TestHistoryOfAnotherStore(t *testing.T) {
	t.Parallel()
	testOtherStore(t, kelsontest.Start(t))
}

// The same is true of etcd.
func TestHistoryOfEtcd(t *testing.T) {
	t.Parallel()
	peers := os.Getenv("KELSON_PEERS")
	if peers == "" {
		t.Skip("KELSON_PEERS does not say where an etcd is")
	}
	testOtherStore(t, kelsontest.Start(t, kelsontest.Etcd(startEtcd(t, peers))))
}

// startEtcd runs a real etcd, and returns where it is.
func startEtcd(t *testing.T, peers string) string {
	t.Helper()
	var urls []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		urls = append(urls, "http://"+l.Addr().String())
		_ = l.Close()
	}
	cmd := exec.Command(filepath.Join(peers, "etcd"), "--data-dir", t.TempDir(), "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0],
		"--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1], "--initial-cluster", "default="+urls[1])
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return urls[0]
}

func testOtherStore(t *testing.T, s *kelsontest.Server) {
	t.Helper()
	ctx := t.Context()
	p := &pastServer{Server: s, client: kubernetes.NewForConfigOrDie(s.Config())}
	p.admin = p.kubeconfig(t, s.Config())
	maps := p.client.CoreV1().ConfigMaps("default")
	first, err := maps.Create(ctx, configMap("web", "a", "1"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	out, stderr, code := runKelson(t, p.admin, "history", "cm", "web")
	if code != 0 || !strings.Contains(out, "delete  configmaps/web") || !strings.Contains(stderr, "does not know their times") {
		t.Errorf("history: exit code %d\n%s%s", code, out, stderr)
	}
	if _, stderr, code := runKelson(t, p.admin, "get", "cm", "web", "--at", "1h"); code != 1 || !strings.Contains(stderr, "give a revision") {
		t.Errorf("get at a time: exit code %d, %q", code, stderr)
	}
	p.must(t, "undo", "cm", "web", "--to", first.ResourceVersion, "--yes")
	if m, err := maps.Get(ctx, "web", metav1.GetOptions{}); err != nil || m.Data["a"] != "1" {
		t.Errorf("after undo: %v %v", m, err)
	}
}

// Secrets that are encrypted in the store are shown as any client sees them.
func TestHistoryOfEncryptedSecrets(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("k"), 32))
	config := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources: [{resources: [secrets], providers: [{aesgcm: {keys: [{name: a, secret: " + key + "}]}}, {identity: {}}]}]\n"
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, p := t.Context(), startPast(t, kelsontest.Encryption(file))
	secrets := p.client.CoreV1().Secrets("default")
	s, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"k": "first"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first := s.ResourceVersion
	s.Data["k"] = []byte("second")
	if _, err := secrets.Update(ctx, s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	var got corev1.Secret
	if err := json.Unmarshal([]byte(p.must(t, "get", "secret", "s", "--at", first, "-o", "json")), &got); err != nil || string(got.Data["k"]) != "first" {
		t.Errorf("secret of the past: %q (%v), want first", got.Data["k"], err)
	}
	out := p.must(t, "history", "secret", "s")
	if !strings.Contains(out, "- data.k: ***") || strings.Contains(out, base64.StdEncoding.EncodeToString([]byte("first"))) {
		t.Errorf("history of a secret: %s, want its values hidden", out)
	}
	p.must(t, "undo", "secret", "s", "--to", first, "--yes")
	if s, err = secrets.Get(ctx, "s", metav1.GetOptions{}); err != nil || string(s.Data["k"]) != "first" {
		t.Errorf("after undo: %q, %v", s.Data["k"], err)
	}
}

// lockedBuffer is an output that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

// A watch shows every change once.
func TestHistoryWatch(t *testing.T) {
	t.Parallel()
	p := startPast(t)
	maps := p.client.CoreV1().ConfigMaps("default")
	if _, err := maps.Create(t.Context(), configMap("before"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var out lockedBuffer
	done := make(chan int)
	go func() {
		done <- run(ctx, []string{"history", "cm", "-n", "default", "--watch", "--kubeconfig", p.admin}, streams{in: strings.NewReader(""), out: &out, err: &lockedBuffer{}})
	}()
	shows := func(name string) func() bool {
		return func() bool { return strings.Count(out.String(), "create  configmaps/"+name+" ") == 1 }
	}
	polltest.Until(t, "what was there before", shows("before"))
	for i := range 3 {
		if _, err := maps.Create(t.Context(), configMap(fmt.Sprint("m", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		polltest.Until(t, "a change", shows(fmt.Sprint("m", i)))
	}
	stop()
	select {
	case code := <-done:
		if code != 0 {
			t.Errorf("exit code %d, want 0", code)
		}
	case <-time.After(time.Minute):
		t.Fatal("the watch does not end")
	}
}
