package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/kelsontest"
)

const (
	runDefinition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`
	runManifests = `apiVersion: example.com/v1
kind: Widget
metadata: {name: w, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: viewers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: viewers}]
`
)

// running is a 'kelson run' whose command shows its KUBECONFIG and waits for a line.
type running struct {
	kubeconfig []byte
	file       string
	input      io.WriteCloser
	code       chan int
}

func startRun(t *testing.T, args ...string) *running {
	t.Helper()
	input, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	r, output := io.Pipe()
	process := &running{input: w, code: make(chan int, 1)}
	var complaints bytes.Buffer
	go func() {
		code := run(t.Context(), append(append([]string{"run"}, args...), "--", "sh", "-c", `echo "$KUBECONFIG"; cat "$KUBECONFIG"; echo END; read x; exit 3`), streams{in: input, out: output, err: &complaints})
		input.Close()
		output.CloseWithError(io.ErrUnexpectedEOF)
		process.code <- code
	}()
	var text bytes.Buffer
	for buf := make([]byte, 4096); !strings.HasSuffix(text.String(), "END\n"); {
		n, err := r.Read(buf)
		if err != nil {
			t.Fatalf("the command has not begun: %v, %s", err, complaints.String())
		}
		text.Write(buf[:n])
	}
	process.file, _ = text.ReadString('\n')
	process.file = strings.TrimSpace(process.file)
	process.kubeconfig = bytes.TrimSuffix(text.Bytes(), []byte("END\n"))
	return process
}

// end lets the command end, and returns the exit code of 'kelson run'.
func (r *running) end(t *testing.T) int {
	t.Helper()
	if _, err := r.input.Write([]byte("\n")); err != nil {
		t.Error(err)
	}
	return <-r.code
}

func (r *running) client(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(r.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return kubernetes.NewForConfigOrDie(config)
}

// TestRun: a command gets a server with what was asked for, and a KUBECONFIG; when it ends
// both are gone, and its exit code is that of the program.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	definition, manifests := filepath.Join(dir, "crd.yaml"), filepath.Join(dir, "objects.yaml")
	for file, text := range map[string]string{definition: runDefinition, manifests: runManifests} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := startRun(t, "--crds", definition, "--manifests", manifests, "--as", "jane", "--as-group", "viewers")
	client := r.client(t)
	// The role view does not have widgets.
	if err := client.RESTClient().Get().AbsPath("/apis/example.com/v1/namespaces/default/widgets/w").Do(t.Context()).Error(); !apierrors.IsForbidden(err) {
		t.Errorf("a widget for jane: got %v, want forbidden", err)
	}
	if _, err := client.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Errorf("a service account for jane, who is a viewer: %v", err)
	}
	if code := r.end(t); code != 3 {
		t.Errorf("got exit code %d, want that of the command, 3", code)
	}
	if _, err := os.Stat(r.file); !os.IsNotExist(err) {
		t.Errorf("the kubeconfig %s is left: %v", r.file, err)
	}
	if err := client.RESTClient().Get().AbsPath("/version").MaxRetries(0).Do(t.Context()).Error(); err == nil {
		t.Error("the server is left")
	}
}

// TestRunKeeps: the data of --keep can be served afterwards.
func TestRunKeeps(t *testing.T) {
	dir := t.TempDir()
	r := startRun(t, "--keep", dir)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}
	if _, err := r.client(t).CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if code := r.end(t); code != 3 {
		t.Errorf("got exit code %d, want 3", code)
	}
	s := kelsontest.Start(t, kelsontest.Folder(controlplane.StoreDir(dir)), kelsontest.NoControllers())
	if _, err := kubernetes.NewForConfigOrDie(s.Config()).CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestRunEnds: how a command ends is how the program ends.
func TestRunEnds(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--", "true"}, 0, ""},
		{[]string{"--", "sh", "-c", "echo mine >&2; exit 42"}, 42, "mine\n"},
		{[]string{"sh", "-c", "exit 5"}, 5, ""}, // without the dashes
		{[]string{"--", "sh", "-c", "kill -9 $$"}, 128 + 9, ""},
		{[]string{"--", "no-such-command"}, exitError, "kelson: no-such-command cannot be run: executable file not found in $PATH\n"},
		{[]string{"--as-group", "x", "--", "true"}, exitUsage, "kelson: --as-group needs --as, the user who is in the groups; see 'kelson run --help'\n"},
		{[]string{"--crds", "/nowhere", "--", "true"}, exitError, "kelson: stat /nowhere: no such file or directory; check the path\n"},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"run"}, c.args...), streams{in: strings.NewReader(""), out: &out, err: &errs})
		if code != c.code || errs.String() != c.says || out.Len() > 0 {
			t.Errorf("%q: got code %d, %q and %q, want %d and %q", c.args, code, out.String(), errs.String(), c.code, c.says)
		}
	}
}

// TestRunIsTold: a signal is passed on to the command, which ends in its own time.
func TestRunIsTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, output := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"run", "--", "sh", "-c", `trap 'exit 7' TERM; echo; while :; do sleep 0.01; done`}, streams{in: strings.NewReader(""), out: output, err: io.Discard})
	}()
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case code := <-ended:
		if code != 7 {
			t.Errorf("got exit code %d, want that of the command, 7", code)
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
}
