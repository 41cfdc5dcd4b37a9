package main

import (
	"context"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/kelsontest"
)

// TestManifests: a server takes the manifests in deploy/kubernetes without a warning, pods
// of them pass the restricted level of Pod Security, and the commands in them have no
// unknown flags.
func TestManifests(t *testing.T) {
	t.Parallel()
	const dir = "../../deploy/kubernetes/"
	server := kelsontest.Start(t)
	for _, file := range []string{"hosted.yaml", "replicas.yaml"} {
		if err := server.Apply(t.Context(), dir+file); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	client := kubernetes.NewForConfigOrDie(server.Config())
	set, err := client.AppsV1().StatefulSets("kelson-system").Get(t.Context(), "kelson", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	deployment, err := client.AppsV1().Deployments("kelson-system").Get(t.Context(), "kelson", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().ServiceAccounts("kelson-system").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil && !strings.Contains(err.Error(), "already exists") {
		t.Fatal(err)
	}
	for name, template := range map[string]corev1.PodTemplateSpec{"hosted": set.Spec.Template, "replicas": deployment.Spec.Template} {
		template.Name = name
		if name == "hosted" { // which gets it from a claim
			template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{Name: "data"})
		}
		if _, err := client.CoreV1().Pods("kelson-system").Create(t.Context(), &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}, metav1.CreateOptions{}); err != nil {
			t.Errorf("a pod of %s: %v", name, err)
		}
		var said strings.Builder
		cmd := newCommand(streams{strings.NewReader(""), &said, io.Discard})
		var args []string
		for _, arg := range template.Spec.Containers[0].Args {
			args = append(args, strings.ReplaceAll(arg, "$(POD_IP)", "10.1.2.3"))
		}
		cmd.SetArgs(append(args, "--version"))
		if err := cmd.ExecuteContext(context.WithoutCancel(t.Context())); err != nil || !strings.HasPrefix(said.String(), "kelson ") {
			t.Errorf("%s: kelson %q says %q and %v", name, template.Spec.Containers[0].Args, said.String(), err)
		}
	}
}
