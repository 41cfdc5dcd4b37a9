//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/internal/peertest"
	"github.com/apikeel/kelson/pki"
)

// TestControllerManager is a control plane of etcd, this server under the name of
// kube-apiserver, and kube-controller-manager, which finds all it needs.
// KELSON_PEERS names the folder that has the others.
func TestControllerManager(t *testing.T) {
	peertest.Binary(t, "kube-controller-manager")
	dir := t.TempDir()
	local := func() string { return fmt.Sprintf("http://127.0.0.1:%d", peertest.FreePort(t)) }
	etcd, others := local(), local()
	peertest.Start(t, "etcd", "--data-dir="+dir+"/etcd", "--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+others, "--initial-advertise-peer-urls="+others, "--initial-cluster=default="+others)

	port := peertest.FreePort(t)
	certificate, private := selfSigned(t, "service accounts")
	authority, err := pki.NewIssuer()
	if err != nil {
		t.Fatal(err)
	}
	file := files(t, map[string]string{
		"ca.crt": string(authority.CertificatePEM()), "crt": certificate, "key": private, "tokens": "secret,admin,1,system:masters\nmanaging,system:kube-controller-manager,2,\n",
		"kubeconfig": fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "x",
			"clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:%d", "insecure-skip-tls-verify": true}}],
			"users": [{"name": "x", "user": {"token": "managing"}}],
			"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}`, port),
	})
	server := command(t, "kube-apiserver", "--etcd-servers="+etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--endpoint-reconciler-type=none", "--cert-dir="+dir+"/certs", "--token-auth-file="+file("tokens"), "--authorization-mode=Node,RBAC", "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+file("crt"), "--service-account-signing-key-file="+file("key"))
	server.Stderr = t.Output()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(os.Interrupt)
		_ = server.Wait()
	})
	config := &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", port), BearerToken: "secret", QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	peertest.WaitReady(t, config)
	stop, log := peertest.StartLogged(t, "kube-controller-manager", "--kubeconfig="+file("kubeconfig"), "--use-service-account-credentials",
		"--service-account-private-key-file="+file("key"), "--root-ca-file="+file("ca.crt"), "--bind-address=127.0.0.1", "--cert-dir="+dir+"/manager",
		fmt.Sprintf("--secure-port=%d", peertest.FreePort(t)))

	c := kubernetes.NewForConfigOrDie(config)
	workload(t, c)
	stop()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	// That others were faster, or that a namespace ends, is no fault.
	fault := regexp.MustCompile(`(?i)forbidden|could not find|failed to (list|watch)|is invalid|cannot unmarshal|panic`)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "E") && fault.MatchString(line) && !strings.Contains(line, "is being terminated") {
			t.Error(strings.TrimSpace(line))
		}
	}
}

// workload makes a deployment and what belongs to it, sees what becomes of it, and
// deletes it again.
func workload(t *testing.T, c kubernetes.Interface) {
	const ns = "demo"
	ctx := t.Context()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	labels := map[string]string{"app": "web"}
	_, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
	ok(err)
	// Its service account comes first: pods have one.
	patiently(t, "a service account", func(ctx context.Context) error {
		_, err := c.CoreV1().ServiceAccounts(ns).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	patiently(t, "the root certificate", func(ctx context.Context) error {
		_, err := c.CoreV1().ConfigMaps(ns).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
	_, err = c.AppsV1().Deployments(ns).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(3)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: new(int64), Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}},
	}, metav1.CreateOptions{})
	ok(err)
	_, err = c.CoreV1().Services(ns).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	ok(err)
	pods := func(ctx context.Context) ([]corev1.Pod, error) {
		list, err := c.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		return list.Items, nil
	}
	patiently(t, "three pods", func(ctx context.Context) error {
		all, err := pods(ctx)
		if err == nil && len(all) != 3 {
			err = fmt.Errorf("there are %d", len(all))
		}
		return err
	})
	_, err = c.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, metav1.CreateOptions{})
	ok(err)
	all, err := pods(ctx)
	ok(err)
	for i := range all { // as the scheduler and a kubelet do
		binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: all[i].Name}, Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}
		ok(c.CoreV1().Pods(ns).Bind(ctx, binding, metav1.CreateOptions{}))
		pod, err := c.CoreV1().Pods(ns).Get(ctx, all[i].Name, metav1.GetOptions{})
		ok(err)
		pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, fmt.Sprintf("10.1.0.%d", i+1)
		pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		_, err = c.CoreV1().Pods(ns).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		ok(err)
	}
	patiently(t, "a deployment that is ready", func(ctx context.Context) error {
		d, err := c.AppsV1().Deployments(ns).Get(ctx, "web", metav1.GetOptions{})
		if err == nil && d.Status.AvailableReplicas != 3 {
			err = fmt.Errorf("%+v", d.Status)
		}
		return err
	})
	patiently(t, "endpoints", func(ctx context.Context) error {
		slices, err := c.DiscoveryV1().EndpointSlices(ns).List(ctx, metav1.ListOptions{})
		if err == nil && (len(slices.Items) != 1 || len(slices.Items[0].Endpoints) != 3) {
			err = fmt.Errorf("there are %+v", slices.Items)
		}
		return err
	})
	ok(c.AppsV1().Deployments(ns).Delete(ctx, "web", metav1.DeleteOptions{}))
	patiently(t, "the end of what the deployment owned", func(ctx context.Context) error {
		all, err := pods(ctx)
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("there are %d pods", len(all))
		}
		return err
	})
	ok(c.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}))
	patiently(t, "the end of the namespace", func(ctx context.Context) error {
		_, err := c.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
}

// patiently waits for something that other processes do.
func patiently(t *testing.T, what string, try func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("no %s: %v", what, err)
		case <-tick.C:
		}
	}
}
