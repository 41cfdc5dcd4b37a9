//go:build unix

package main

import (
	"bufio"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestQuiet: a server with which all is well says, under the name of kube-apiserver,
// which one it is, where it listens, that it has started and that it ends, and nothing
// else.
func TestQuiet(t *testing.T) {
	t.Parallel()
	certificate, key := selfSigned(t, "service accounts")
	file := files(t, map[string]string{"sa.crt": certificate, "sa.key": key})
	server := command(t, kubeName, "--storage=memory", "--cert-dir="+t.TempDir(), "--bind-address=127.0.0.1", "--secure-port=0", "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=https://x", "--service-account-key-file="+file("sa.crt"), "--service-account-signing-key-file="+file("sa.key"), "--authorization-mode=RBAC")
	pipe, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	want := []string{"starting", "Serving securely on", "lifecycle", "[graceful-termination] shutdown event", "Stopped listening on"}
	var got []string
	line := regexp.MustCompile(`^I\d{4} [\d:.]+ +\d+ \w+\.go:\d+\] "?(.*?)("| 127)`)
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		if m := line.FindStringSubmatch(lines.Text()); m != nil {
			got = append(got, m[1])
		} else {
			got = append(got, lines.Text())
		}
		if strings.Contains(lines.Text(), "MuxAndDiscoveryComplete") {
			if err := server.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	if err := server.Wait(); err != nil {
		t.Error(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("it says %q", got)
	}
}
