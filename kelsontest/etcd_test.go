package kelsontest_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/apikeel/kelson/kelsontest"
)

// startEtcd runs a real etcd, and returns where it is.
func startEtcd(t *testing.T) string {
	t.Helper()
	peers := os.Getenv("KELSON_PEERS")
	if peers == "" {
		t.Skip("KELSON_PEERS does not say where an etcd is")
	}
	url := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return "http://" + l.Addr().String()
	}
	clients, others := url(), url()
	cmd := exec.Command(filepath.Join(peers, "etcd"), "--data-dir", t.TempDir(), "--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", others, "--initial-advertise-peer-urls", others, "--initial-cluster", "default="+others)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return clients
}

// Servers share an etcd, but no objects.
func TestEtcd(t *testing.T) {
	url := startEtcd(t)
	for i := range 2 {
		s := kelsontest.Start(t, kelsontest.Etcd(url))
		c := client(t, s.Config())
		clean := snapshot(t, s)
		own := fmt.Sprintf("of-%d", i)
		create(t, c, own)
		if got := names(t, c); got != own {
			t.Errorf("config maps are %q, and not %q alone", got, own)
		}
		if err := s.Restore(clean); err != nil {
			t.Fatal(err)
		}
		if got := names(t, c); got != "" {
			t.Errorf("config maps are %q", got)
		}
		if err := s.CompactHistory(); err != nil {
			t.Error(err)
		}
		create(t, c, own)
	}
}
