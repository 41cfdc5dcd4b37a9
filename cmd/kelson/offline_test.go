//go:build unix

package main

import (
	"os/exec"
	"strings"
	"testing"
)

// TestRunsWithoutNetwork: a machine that has loopback only, as a build in a sandbox or a
// laptop on a train, has a server all the same. There is no address that the service
// kubernetes could have as its endpoint.
func TestRunsWithoutNetwork(t *testing.T) {
	t.Parallel()
	alone := func(command string) *exec.Cmd {
		return exec.CommandContext(t.Context(), "unshare", "--map-root-user", "--net", "sh", "-c", "ip link set lo up && "+command)
	}
	if out, err := alone("true").CombinedOutput(); err != nil {
		t.Skipf("no network namespace can be made here: %v: %s", err, out)
	}
	out, err := alone(asProgram(t) + " run -- sh -c 'test -s $KUBECONFIG && echo it ran'").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "it ran") {
		t.Errorf("got %v, %s; want the command to run", err, out)
	}
}
