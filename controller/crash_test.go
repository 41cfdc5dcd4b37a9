package controller_test

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/kelsontest"
)

// servedFolder is the variable that makes this program a server on a folder
// instead of a test: one that can be killed.
const servedFolder = "KELSON_TEST_SERVE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(servedFolder); dir != "" {
		if err := serveFolder(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// serveFolder tells its parent how to reach the server, and serves as long as that
// lives.
func serveFolder(dir string) error {
	s, err := kelsontest.New(kelsontest.Folder(dir))
	if err != nil {
		return err
	}
	if _, err := os.Stdout.Write(s.Kubeconfig()); err != nil {
		return err
	}
	if err := os.Stdout.Close(); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// mortal is a server in a process of its own, on a folder.
type mortal struct {
	*cluster
	dir   string
	child *exec.Cmd
}

func startMortal(t *testing.T, dir string) *mortal {
	t.Helper()
	m := &mortal{dir: dir}
	m.start(t)
	t.Cleanup(m.kill)
	return m
}

func (m *mortal) start(t *testing.T) {
	t.Helper()
	m.child = exec.Command(os.Args[0])
	m.child.Env = append(os.Environ(), servedFolder+"="+m.dir)
	m.child.Stderr = os.Stderr
	out := must(m.child.StdoutPipe())(t)
	must(m.child.StdinPipe())(t) // which ends with this process
	if err := m.child.Start(); err != nil {
		t.Fatal(err)
	}
	kubeconfig := must(io.ReadAll(out))(t)
	config := must(clientcmd.RESTConfigFromKubeConfig(kubeconfig))(t)
	config.QPS = -1
	m.cluster = connect(t, config)
}

// kill ends the server as a loss of power ends it, but for what the system has
// not written yet.
func (m *mortal) kill() {
	_ = m.child.Process.Kill()
	_ = m.child.Wait() // whose error is the signal
}

// crash kills the server and starts another on the same folder.
func (m *mortal) crash(t *testing.T) {
	t.Helper()
	m.kill()
	m.start(t)
}

// Namespaces with content, some of which somebody holds, are deleted while the
// server is killed again and again: in the end those are gone that were deleted
// and are not held, and nothing else is.
func TestNamespaceCrashes(t *testing.T) {
	seeds, steps := testsize.Pick(1, 1, 10), testsize.Pick(12, 24, 200)
	for seed := range randomtest.Seeds(t, seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runNamespaces(t, randomtest.Rand(seed, 2), steps) })
	}
}

func runNamespaces(t *testing.T, random *rand.Rand, steps int) {
	c := startMortal(t, t.TempDir())
	content := map[string]map[string]bool{} // by namespace, the config maps and whether they are held
	deleted := map[string]bool{}
	pick := func(wanted bool) string {
		var all []string
		for _, name := range slices.Sorted(maps.Keys(content)) {
			if deleted[name] == wanted {
				all = append(all, name)
			}
		}
		if len(all) == 0 {
			return ""
		}
		return all[random.IntN(len(all))]
	}
	release := func(namespace, name string) {
		c.finalizers(namespace, name)
		if content[namespace][name] = false; deleted[namespace] {
			delete(content[namespace], name)
		}
	}
	for step := range steps {
		switch dice := random.IntN(100); {
		case dice < 50:
			name := fmt.Sprint("n-", step)
			c.namespace(name)
			content[name] = map[string]bool{}
			for i := range random.IntN(6) {
				held := random.IntN(4) == 0
				m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("m-", i)}}
				if held {
					m.Finalizers = []string{hold}
				}
				must(c.CoreV1().ConfigMaps(name).Create(t.Context(), m, metav1.CreateOptions{}))(t)
				content[name][m.Name] = held
			}
		case dice < 85:
			if name := pick(false); name != "" {
				if err := c.CoreV1().Namespaces().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				deleted[name] = true
				maps.DeleteFunc(content[name], func(_ string, held bool) bool { return !held })
			}
		default:
			if namespace := pick(true); namespace != "" {
				for _, name := range slices.Sorted(maps.Keys(content[namespace])) {
					release(namespace, name)
					break
				}
			}
		}
		if random.IntN(4) == 0 {
			c.crash(t) // whatever the controllers are at
		}
	}
	settled := func() {
		t.Helper()
		want := []string{}
		for name, objs := range content {
			if !deleted[name] || len(objs) > 0 {
				want = append(want, fmt.Sprint(name, " ", deleted[name]))
			}
		}
		slices.Sort(want)
		c.until(namespaces, "", func(objs map[string]*unstructured.Unstructured) bool {
			got := []string{}
			for key, ns := range objs {
				if name := strings.TrimPrefix(key, "/"); strings.HasPrefix(name, "n-") {
					got = append(got, fmt.Sprint(name, " ", ns.GetDeletionTimestamp() != nil))
				}
			}
			slices.Sort(got)
			return slices.Equal(got, want)
		})
		for name, objs := range content {
			if len(objs) > 0 || !deleted[name] {
				c.exactly(name, slices.Collect(maps.Keys(objs))...)
			}
		}
	}
	settled()
	for namespace, objs := range content {
		for name, held := range maps.Clone(objs) {
			if held {
				release(namespace, name)
			}
		}
	}
	c.crash(t)
	settled()
}
