package connect_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"

	"github.com/apikeel/kelson/kelsontest"
)

// cluster is a server with a node, whose kubelet is k, and two pods: one on the
// node and one on none.
func cluster(t *testing.T, features ...string) (*kelsontest.Server, *kubernetes.Clientset, *kubelet) {
	t.Helper()
	ctx := t.Context()
	k, server := newKubelet(t), kelsontest.Start(t)
	client := kubernetes.NewForConfigOrDie(server.Config())
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Status: corev1.NodeStatus{
		Addresses:        []corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "203.0.113.1"}, {Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
		DaemonEndpoints:  corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: port(t, k.Listener.Addr().String())}},
		DeclaredFeatures: features,
	}}
	if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, node := range map[string]string{"p": "node", "lonely": ""} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		if _, err := client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return server, client, k
}

func TestLogsOfPod(t *testing.T) {
	_, client, k := cluster(t)
	ctx := t.Context()
	limit := int64(5)
	got, err := client.CoreV1().Pods("default").GetLogs("p", &corev1.PodLogOptions{LimitBytes: &limit, Timestamps: true}).DoRaw(ctx)
	if err != nil || string(got) != "first\n" {
		t.Errorf("%q, %v", got, err)
	}
	if asked := k.last(t).URL.String(); asked != "/containerLogs/default/p/c?limitBytes=5&timestamps=true" {
		t.Errorf("the kubelet was asked for %s", asked)
	}
	if got, err := client.CoreV1().Pods("default").GetLogs("lonely", &corev1.PodLogOptions{}).DoRaw(ctx); err != nil || len(got) > 0 {
		t.Errorf("%q, %v", got, err)
	}
	stream, err := client.CoreV1().Pods("default").GetLogs("p", &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	buffer := make([]byte, 64)
	if n, err := stream.Read(buffer); err != nil || string(buffer[:n]) != "first\n" {
		t.Errorf("%q, %v", buffer[:n], err)
	}
	k.more <- struct{}{}
	if rest, err := io.ReadAll(stream); err != nil || string(rest) != "second\n" {
		t.Errorf("%q, %v", rest, err)
	}
}

func TestCommandInPod(t *testing.T) {
	server, client, k := cluster(t)
	command := func(pod string, args ...string) *url.URL {
		return client.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name(pod).SubResource("exec").
			VersionedParams(&corev1.PodExecOptions{Command: args, Stdin: true, Stdout: true}, scheme.ParameterCodec).URL()
	}
	for name, executor := range map[string]func(u *url.URL) (remotecommand.Executor, error){
		"SPDY": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewSPDYExecutor(server.Config(), "POST", u)
		},
		"WebSocket": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutor(server.Config(), "GET", u.String())
		},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(pod, input string, args ...string) (string, error) {
				e, err := executor(command(pod, args...))
				if err != nil {
					t.Fatal(err)
				}
				var out bytes.Buffer
				err = e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader(input), Stdout: &out})
				return out.String(), err
			}
			text := strings.Repeat("some text\n", 50_000)
			if got, err := run("p", text, "cat", "-"); err != nil || got != text {
				t.Errorf("%d bytes came back of %d: %v", len(got), len(text), err)
			}
			if asked := k.last(t); asked.URL.String() != "/exec/default/p/c?command=cat&command=-&input=1&output=1" || !strings.HasPrefix(asked.Header.Get("Upgrade"), "SPDY") {
				t.Errorf("the kubelet was asked for %s by %s", asked.URL, asked.Header.Get("Upgrade"))
			}
			_, err := run("p", "", "exit", "3")
			if exit := (exec.CodeExitError{}); !errors.As(err, &exit) || exit.Code != 3 {
				t.Errorf("it ended with %v", err)
			}
			if _, err := run("lonely", "", "ls"); err == nil || !strings.Contains(err.Error(), "pod lonely does not have a host assigned") {
				t.Errorf("a pod without a node: %v", err)
			}
		})
	}
}

func TestForwardedPort(t *testing.T) {
	server, client, k := cluster(t)
	u := client.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name("p").SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(server.Config())
	if err != nil {
		t.Fatal(err)
	}
	overWebSocket, err := portforward.NewSPDYOverWebsocketDialer(u, server.Config())
	if err != nil {
		t.Fatal(err)
	}
	plain := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
	forward := func(t *testing.T, f func(stop, ready chan struct{}) (*portforward.PortForwarder, error)) {
		stop, ready := make(chan struct{}), make(chan struct{})
		p, err := f(stop, ready)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- p.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-ended:
			t.Fatal(err)
		}
		ports, err := p.GetPorts()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, "ping")
		buffer := make([]byte, 4)
		if _, err := io.ReadFull(conn, buffer); err != nil || string(buffer) != "ping" {
			t.Errorf("%q, %v", buffer, err)
		}
		if asked := k.last(t); asked.URL.Path != "/portForward/default/p" || asked.Header.Get("Upgrade") != "SPDY/3.1" {
			t.Errorf("the kubelet was asked for %s by %s", asked.URL, asked.Header.Get("Upgrade"))
		}
		close(stop)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Run("SPDY", func(t *testing.T) {
		forward(t, func(stop, ready chan struct{}) (*portforward.PortForwarder, error) {
			return portforward.NewOnAddresses(plain, []string{"127.0.0.1"}, []string{"0:80"}, stop, ready, io.Discard, io.Discard)
		})
	})
	t.Run("WebSocket", func(t *testing.T) {
		forward(t, func(stop, ready chan struct{}) (*portforward.PortForwarder, error) {
			return portforward.NewOnAddresses(overWebSocket, []string{"127.0.0.1"}, []string{"0:80"}, stop, ready, io.Discard, io.Discard)
		})
	})
}

func TestConnectErrors(t *testing.T) {
	_, client, k := cluster(t)
	k.Close()
	get := func(path string) error {
		return client.CoreV1().RESTClient().Get().RequestURI(path).Do(context.Background()).Error()
	}
	for path, want := range map[string]string{
		"/api/v1/namespaces/default/pods/p/exec?command=ls&stdout=1": "Upgrade request required",
		"/api/v1/namespaces/default/pods/p/exec?dryRun=All":          "dryRun is not supported",
		"/api/v1/namespaces/default/pods/p/attach?container=x":       "container x is not valid for pod p",
		"/api/v1/namespaces/default/pods/lonely/portforward":         "pod lonely does not have a host assigned",
		"/api/v1/namespaces/default/pods/ftp:p:80/proxy":             `invalid pod request "ftp:p:80"`,
		"/api/v1/namespaces/default/pods/p/proxy/x":                  "address not allowed",
		"/api/v1/nodes/node/proxy/metrics":                           "address not allowed",
	} {
		if err := get(path); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
	if err := get("/api/v1/namespaces/default/pods/p/log"); err == nil || !strings.Contains(err.Error(), "connect: connection refused") {
		t.Errorf("a kubelet that is gone: %v", err)
	}
}

// TestStop stops a server while connections are open: they end, and it does not
// wait for anybody to end them.
func TestStop(t *testing.T) {
	server, client, _ := cluster(t)
	u := client.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name("p").SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: []string{"cat"}, Stdin: true, Stdout: true}, scheme.ParameterCodec).URL()
	plain, err := remotecommand.NewSPDYExecutor(server.Config(), "POST", u)
	if err != nil {
		t.Fatal(err)
	}
	translated, err := remotecommand.NewWebSocketExecutor(server.Config(), "GET", u.String())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 3)
	for _, e := range []remotecommand.Executor{plain, translated} {
		in, write := io.Pipe()
		read, out := io.Pipe()
		go func() {
			ended <- e.StreamWithContext(context.Background(), remotecommand.StreamOptions{Stdin: in, Stdout: out})
		}()
		fmt.Fprint(write, "ping")
		buffer := make([]byte, 4)
		if _, err := io.ReadFull(read, buffer); err != nil || string(buffer) != "ping" {
			t.Fatalf("%q, %v", buffer, err)
		}
		t.Cleanup(func() { _ = write.Close() })
	}
	log, err := client.CoreV1().Pods("default").GetLogs("p", &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	go func() { _, err := io.Copy(io.Discard, log); ended <- err }()
	server.Stop()
	for range 3 {
		<-ended
	}
}
