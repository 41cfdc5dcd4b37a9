package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/apikeel/kelson/test/bench/servers"
)

// requestsPerSecond is what the components may ask of the server: more than it can
// answer, so that the server is what is measured.
const requestsPerSecond = 5000

// startComponents starts kube-controller-manager and kube-scheduler. They count as one
// server, which has no address.
func startComponents(v *servers.Server, peers, dir string) (*servers.Server, error) {
	kubeconfig := filepath.Join(dir, "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: x
clusters: [{name: x, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: x, user: {token: %q}}]
contexts: [{name: x, context: {cluster: x, user: x}}]
`, v.URL, v.Token)
	config := filepath.Join(dir, "scheduler.yaml")
	schedulerText := fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %q, qps: %d, burst: %d, contentType: application/vnd.kubernetes.protobuf}
leaderElection: {leaderElect: false}
`, kubeconfig, requestsPerSecond, requestsPerSecond)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		return nil, err
	}
	if err := os.WriteFile(config, []byte(schedulerText), 0o600); err != nil {
		return nil, err
	}
	c := &servers.Server{Name: "components"}
	rate := fmt.Sprint(requestsPerSecond)
	err := c.StartProcess(dir, "kube-controller-manager", exec.Command(filepath.Join(peers, "kube-controller-manager"), "--kubeconfig", kubeconfig,
		"--leader-elect=false", "--secure-port=0", "--kube-api-qps", rate, "--kube-api-burst", rate,
		"--concurrent-deployment-syncs=20", "--concurrent-replicaset-syncs=20", "--concurrent-gc-syncs=40"))
	if err == nil {
		err = c.StartProcess(dir, "kube-scheduler", exec.Command(filepath.Join(peers, "kube-scheduler"), "--config", config, "--secure-port=0"))
	}
	if err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}
