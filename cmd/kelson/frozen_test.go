//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/internal/peertest"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
)

// TestFrozenEtcd: a server ends in good order although its etcd has stopped to answer.
// It tries for a few seconds to take back its lease, and then its endpoint.
func TestFrozenEtcd(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	dir, port := t.TempDir(), peertest.FreePort(t)
	file := files(t, map[string]string{"tokens": "secret,admin,1,system:masters\n"})
	server := command(t, "serve", "--data-dir="+filepath.Join(dir, "data"), "--etcd-servers="+strings.Join(cluster.Endpoints(), ","),
		fmt.Sprintf("--secure-port=%d", port), "--advertise-address=192.0.2.1", "--token-auth-file="+file("tokens"))
	var log bytes.Buffer
	server.Stderr = &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	peertest.WaitReady(t, &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", port), BearerToken: "secret", TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	cluster.Freeze(0)
	if err := server.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		_ = server.Process.Signal(os.Kill)
		<-ended
		t.Error("it does not end")
	}
	for _, want := range []string{"the lease of this server could not be removed", "the endpoint of the service kubernetes could not be removed"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("nobody says that %s", want)
		}
	}
	if t.Failed() || strings.Contains(log.String(), "command failed") || strings.Contains(log.String(), "Error:") {
		t.Errorf("it says:\n%s", log.String())
	}
}
