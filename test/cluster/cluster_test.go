package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/test/bench/servers"
)

// TestNodesRunPods: nodes register at a server that is built from these sources; pods
// that are bound to them run, and go when they are deleted. There is no controller and
// no scheduler: those are large, and are built by `cluster build`.
func TestNodesRunPods(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("go is not in the path, and the server is built with it")
	}
	s, err := servers.Parse("kelson=../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if s, err = s.Build(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // without the build, which may begin with an empty cache
	defer cancel()
	v, err := s.Launch(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Stop()
	if err := v.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	of := size{Nodes: 5, Heartbeat: 100 * time.Millisecond}
	n := newNodes(v, of)
	defer n.stop()
	p, err := measurePhase(ctx, v, &servers.Server{}, n.client, time.Minute, n.register)
	if err != nil {
		t.Fatal(err)
	}
	if servers.KnowsProcesses && (p.CPU <= 0 || p.Memory <= 0) {
		t.Errorf("got %+v, want CPU time and memory of the server", p)
	}
	if least := float64(4 * of.Nodes); p.Requests < least { // node, status, lease, list of pods
		t.Errorf("got %v requests, want %v at least", p.Requests, least)
	}

	l := newLoad(v, of)
	pods := l.client.CoreV1().Pods(metav1.NamespaceDefault)
	const count = 20
	for i := range count {
		template := newDeployment("app", 1).Spec.Template
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i)}, Spec: template.Spec}
		pod.Spec.NodeName = nodeName(i % of.Nodes)
		// The controller of service accounts may not have come to the namespace yet.
		err := l.until(ctx, func(ctx context.Context) (string, error) {
			_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
			if apierrors.IsForbidden(err) {
				return err.Error(), nil
			}
			return "", err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	err = l.until(ctx, func(ctx context.Context) (string, error) {
		list, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for _, pod := range list.Items {
			if pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "" {
				return fmt.Sprintf("%s is %s", pod.Name, pod.Status.Phase), errors.Join(n.failed())
			}
		}
		return "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	err = l.until(ctx, func(ctx context.Context) (string, error) {
		list, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) == 0 {
			return "", err
		}
		return list.Items[0].Name + " is still there", n.failed()
	})
	if err != nil {
		t.Fatal(err)
	}
	// A lease that was renewed has a version that its creation did not have.
	err = l.until(ctx, func(ctx context.Context) (string, error) {
		lease, err := l.client.CoordinationV1().Leases(leaseNamespace).Get(ctx, nodeName(of.Nodes-1), metav1.GetOptions{})
		if err != nil || lease.Spec.RenewTime.After(lease.CreationTimestamp.Add(time.Second)) {
			return "", err
		}
		return "the lease was not renewed", n.failed()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDeploymentIsDone(t *testing.T) {
	d := newDeployment("a", 3)
	d.Generation = 2
	d.Status.ObservedGeneration, d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas = 2, 3, 3, 3
	if !isDone(d) {
		t.Error("all pods are new and available: got not done, want done")
	}
	for name, change := range map[string]func(){
		"an older generation was seen": func() { d.Status.ObservedGeneration = 1 },
		"old pods are left":            func() { d.Status.Replicas = 4 },
		"one is not available":         func() { d.Status.AvailableReplicas = 2 },
		"one is not new":               func() { d.Status.UpdatedReplicas = 2 },
	} {
		before := d.Status
		if change(); isDone(d) {
			t.Errorf("%s: got done, want not done", name)
		}
		d.Status = before
	}
}

func TestTable(t *testing.T) {
	got := markdown(size{Nodes: 10, Deployments: 2, Replicas: 5, Heartbeat: time.Second}, []outcome{
		{Server: "a", Peak: 800, Phases: []phase{{Name: "start", Seconds: 10, CPU: 5, Memory: 400, Requests: 1000}, {Name: "roll", Seconds: 9, CPU: 4}}},
		{Server: "b", Peak: 100, Phases: []phase{{Name: "start", Seconds: 8, CPU: 0.5, Memory: 50, Requests: 500}}},
	})
	for _, want := range []string{
		"10 nodes with a heartbeat every 1s, 10 pods in 2 deployments.",
		"| start | 10.0 · 5.00 · 400 · 1000 | 8.0 · 0.50 · 50 · 500 | ×1.25 · ×10.0 · ×5.0 |", "| roll | 9.0 · 4.00 · 0 · 0 | not done | – |", "| peak memory, MiB | 800 | 100 | ×8.0 |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant in it %q", got, want)
		}
	}
}

func TestModuleOfKubernetes(t *testing.T) {
	got := kubernetesModule("module k8s.io/kubernetes\n\nrequire (\n\tgithub.com/x/y v1.0.0\n\tk8s.io/api v0.0.0\n\tk8s.io/klog/v2 v2.1.0\n)\n")
	if want := "\tk8s.io/api => k8s.io/api v0.37.1\n)\n"; !strings.HasSuffix(got, want) || strings.Contains(got, "klog") {
		t.Errorf("got %q, want one replacement: %q", got, want)
	}
}

func TestUsage(t *testing.T) {
	var out, log bytes.Buffer
	if err := run(t.Context(), nil, &out, &log); !errors.Is(err, flag.ErrHelp) || !strings.Contains(log.String(), "SPEC") {
		t.Errorf("got the error %v and %q, want that of help and the usage", err, log.String())
	}
	if err := run(t.Context(), []string{"run"}, &out, &log); err == nil {
		t.Error("run without servers: got no error, want one")
	}
}
