package api

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/internal/peertest"
	"github.com/apikeel/kelson/kelsontest"
)

// TestHelm takes a chart through its life with Helm itself, of the two versions that
// are in use.
func TestHelm(t *testing.T) {
	for _, program := range []string{"helm", "helm4"} {
		t.Run(program, func(t *testing.T) {
			binary := peertest.Binary(t, program)
			s := kelsontest.Start(t)
			c, ctx := client(t, s), t.Context()
			dir := t.TempDir()
			kubeconfig := filepath.Join(dir, "kubeconfig")
			if err := os.WriteFile(kubeconfig, s.Kubeconfig(), 0o600); err != nil {
				t.Fatal(err)
			}
			run := func(args string) (string, error) {
				cmd := exec.CommandContext(ctx, binary, strings.Fields(args+" --namespace one")...)
				cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir)
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			helm := func(args string) string {
				t.Helper()
				out, err := run(args)
				if err != nil {
					t.Fatalf("helm %s: %v\n%s", args, err, out)
				}
				return out
			}
			state := func(replicas int32, image string) {
				t.Helper()
				d, err := c.AppsV1().Deployments("one").Get(ctx, "a", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if got := d.Spec.Template.Spec.Containers[0].Image; *d.Spec.Replicas != replicas || got != image || d.Labels["mine"] != "yes" && d.Generation > 1 {
					t.Errorf("%d replicas of %s with %v, not %d of %s", *d.Spec.Replicas, got, d.Labels, replicas, image)
				}
			}

			helm("install a testdata/chart --create-namespace")
			state(1, "nginx:1")
			kept, err := c.CoreV1().ConfigMaps("one").Get(ctx, "a-kept", metav1.GetOptions{})
			if err != nil || kept.Data["found"] != "kube-system" {
				t.Errorf("looked up: %v, %v", kept, err)
			}
			// What others have added is kept by an upgrade, which knows what it wrote.
			if _, err := c.AppsV1().Deployments("one").Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"mine":"yes"}}}`), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			if out, err := run("install a testdata/chart"); err == nil || !strings.Contains(out, "cannot re-use a name") && !strings.Contains(out, "cannot reuse a name") {
				t.Errorf("a second install: %v\n%s", err, out)
			}
			if out, err := run("upgrade a testdata/chart --set replicas=many"); err == nil || !strings.Contains(out, "spec.replicas") {
				t.Errorf("a wrong value: %v\n%s", err, out)
			}
			helm("upgrade a testdata/chart --set replicas=3 --dry-run=server")
			state(1, "nginx:1")
			helm("upgrade a testdata/chart --set replicas=3")
			state(3, "nginx:3")
			helm("rollback a 1")
			state(1, "nginx:1")
			if out := helm("history a --output json"); strings.Count(out, `"status":"superseded"`) != 2 || strings.Count(out, `"status":"failed"`) != 1 || strings.Count(out, `"status":"deployed"`) != 1 {
				t.Errorf("the history:\n%s", out)
			}
			helm("template b testdata/chart --dry-run=server")
			helm("uninstall a")
			if _, err := c.AppsV1().Deployments("one").Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("after the end: %v", err)
			}
			if _, err := c.CoreV1().ConfigMaps("one").Get(ctx, "a-kept", metav1.GetOptions{}); err != nil {
				t.Errorf("what is to be kept: %v", err)
			}
			if out := helm("list --all-namespaces --short"); strings.TrimSpace(out) != "" {
				t.Errorf("still there: %s", out)
			}
		})
	}
}
