package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestEnvtestAssets(t *testing.T) {
	dir, bin := filepath.Join(t.TempDir(), "deep", "assets"), t.TempDir()
	kubectl := filepath.Join(bin, kubectlName)
	if err := os.WriteFile(kubectl, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	leadsTo := func(name, want string) {
		t.Helper()
		if got, err := os.Readlink(filepath.Join(dir, name)); err != nil || got != want {
			t.Errorf("%s leads to %q, and not to %q: %v", name, got, want, err)
		}
	}
	for range 2 { // over what is there
		var out strings.Builder
		if code := run(t.Context(), []string{"envtest-assets", dir}, streams{out: &out, err: &out}); code != exitOK {
			t.Fatal(out.String())
		}
		if want := "export KUBEBUILDER_ASSETS=" + dir + "\n"; out.String() != want {
			t.Errorf("it says %q", out.String())
		}
		leadsTo(kubeName, self)
		leadsTo(etcdName, self)
		leadsTo(kubectlName, kubectl)
	}

	t.Setenv("PATH", "")
	if code := run(t.Context(), []string{"envtest-assets", dir, "--etcd", kubectl, "--controllers", "-*"}, streams{out: io.Discard, err: io.Discard}); code != exitOK {
		t.Fatalf("code %d", code)
	}
	leadsTo(kubectlName, self)
	leadsTo(etcdName, kubectl)
	script, err := os.ReadFile(filepath.Join(dir, kubeName))
	if err != nil || !strings.Contains(string(script), "kube-apiserver --controllers='-*'") {
		t.Errorf("the program is %q, %v", script, err)
	}

	if code := run(t.Context(), []string{"envtest-assets"}, streams{out: io.Discard, err: io.Discard}); code != exitUsage {
		t.Errorf("without a folder the code is %d", code)
	}
}

func TestIdleEtcd(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "http://" + listener.Addr().String()
	listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, called([]string{"/some/where/etcd", "--listen-client-urls=" + address, "--data-dir=/nowhere", "--unsafe-no-fsync=true"}), streams{out: io.Discard, err: io.Discard})
	}()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); ; <-tick.C {
		if resp, err := http.Get(address + "/health"); err == nil {
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK || !idling(ctx, []string{address}) {
				t.Errorf("it answers %s", resp.Status)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it does not answer")
		}
	}
	cancel()
	if code := <-ended; code != exitOK {
		t.Errorf("it ends with %d", code)
	}
	if code := run(t.Context(), []string{etcdName, "--listen-client-urls=https://127.0.0.1:1"}, streams{out: io.Discard, err: io.Discard}); code != exitError {
		t.Errorf("https: code %d", code)
	}
	http.DefaultClient.CloseIdleConnections()
}
