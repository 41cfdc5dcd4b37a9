//go:build unix

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/storage/etcd/etcdtest"
)

// docsRun are the documents whose shell blocks are run, with this program as kelson.
var docsRun = []string{"getting-started", "install", "operations", "migrating", "troubleshooting", "languages"}

var (
	// shellBlock is a block of shell commands in a document. A word after sh is noexec, for
	// a block that is not run, or the program without which it is not run.
	shellBlock = regexp.MustCompile("(?ms)^```sh( [\\w-]+)?\n(.*?)^```$")
	// negated is a command that is to fail. The shell itself does not mind if it does not.
	negated = regexp.MustCompile(`(?m)^! (.*)$`)
)

// TestDocumentsRun runs what the documents tell people to type: the blocks of a document
// one after the other in one shell, each command of which has to succeed. What is marked
// noexec needs root or a network, and is only parsed; what is marked with a program is
// run where that is installed, or is in the folder that KELSON_PEERS names.
func TestDocumentsRun(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not on PATH, which the documents are run with")
	}
	for _, name := range docsRun {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile("../../docs/" + name + ".md")
			if err != nil {
				t.Fatal(err)
			}
			var script strings.Builder
			blocks := shellBlock.FindAllStringSubmatch(string(text), -1)
			for i, block := range blocks {
				mark := strings.TrimSpace(block[1])
				switch mark {
				case "javac", kubeName, "node", "python3":
					if missing := missingFor(t, mark); missing != "" {
						t.Logf("block %d is not run: %s", i+1, missing)
						continue
					}
					fallthrough
				case "":
					fmt.Fprintf(&script, "echo '== block %d' >&2\n%s", i+1, negated.ReplaceAllString(block[2], "if $1; then echo 'succeeded, and was to fail' >&2; exit 97; fi"))
				case "noexec":
					check := exec.CommandContext(t.Context(), bash, "-n")
					check.Stdin = strings.NewReader(block[2])
					if out, err := check.CombinedOutput(); err != nil {
						t.Errorf("block %d does not parse: %v: %s", i+1, err, out)
					}
				default:
					t.Errorf("block %d: got the mark %q, want none, noexec, javac, kube-apiserver, node or python3", i+1, mark)
				}
			}
			if len(blocks) == 0 {
				t.Fatal("got no shell blocks, want some: the expression that finds them is wrong")
			}
			runDocument(t, bash, script.String())
		})
	}
}

// clientNode is the client of Kubernetes for Node.js, if 'npm install' was run.
const clientNode = "../../clients/npm/node_modules/@kubernetes/client-node"

// missingFor says what is not installed that a block with a mark needs.
func missingFor(t *testing.T, mark string) string {
	if mark == kubeName {
		for _, name := range []string{kubeName, "etcd"} {
			if _, err := os.Stat(filepath.Join(os.Getenv("KELSON_PEERS"), name)); err != nil || os.Getenv("KELSON_PEERS") == "" {
				return "KELSON_PEERS names no folder with a program " + name
			}
		}
		return ""
	}
	if _, err := exec.LookPath(mark); err != nil {
		return mark + " is not on PATH"
	}
	switch mark {
	case "node":
		if _, err := os.Stat(clientNode); err != nil {
			return "clients/npm has no node_modules: run 'npm install' there"
		}
	case "python3":
		if err := exec.CommandContext(t.Context(), debianPython(), "-c", "import kubernetes").Run(); err != nil {
			return "Python has no package kubernetes (Debian: python3-kubernetes)"
		}
	}
	return ""
}

// debianPython returns Debian's Python, which has the client of Kubernetes as a package,
// or the name of any other.
func debianPython() string {
	if _, err := os.Stat("/usr/bin/python3"); err == nil {
		return "/usr/bin/python3"
	}
	return "python3"
}

// runDocument runs a script in a folder of its own. Ports that documents name are
// replaced by free ones, and the etcd by one of this test.
func runDocument(t *testing.T, bash, script string) {
	t.Helper()
	if strings.Contains(script, "kubectl") {
		if _, err := exec.LookPath("kubectl"); err != nil {
			t.Skip("kubectl is not on PATH, which this document uses")
		}
	}
	if strings.Contains(script, "http://127.0.0.1:2379") {
		script = strings.ReplaceAll(script, "http://127.0.0.1:2379", etcdtest.Start(t).Endpoints()[0])
	}
	for _, port := range []string{"16443", "16444", "12379", "12380"} {
		script = strings.ReplaceAll(script, port, freePort(t))
	}
	work := t.TempDir()
	bin := filepath.Dir(asProgram(t))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bash, "-e", "-u", "-o", "pipefail", "-x", "-c", "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n"+script)
	cmd.Dir = work
	sources, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// What 'npm install' would have done, and Debian's Python before others.
	modules := t.TempDir()
	if err := os.Symlink(filepath.Join(sources, "clients/npm"), filepath.Join(modules, "kelson")); err != nil {
		t.Fatal(err)
	}
	if python, err := exec.LookPath(debianPython()); err == nil {
		if err := os.Symlink(python, filepath.Join(bin, "python3")); err != nil {
			t.Fatal(err)
		}
	}
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH")+":"+os.Getenv("KELSON_PEERS"), "HOME="+work, "KUBECONFIG=", "KELSON_SOURCES="+sources,
		"NODE_PATH="+modules+":"+filepath.Join(sources, "clients/npm/node_modules"), "PYTHONDONTWRITEBYTECODE=1")
	cmd.WaitDelay = 10 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("got %v, want every command to succeed:\n%s", err, out)
	} else {
		t.Logf("%s", out)
	}
}

// asProgram returns a program with the name kelson that is this one. A server that it
// starts takes a free port, unless it is told one.
func asProgram(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "kelson")
	wrapper := fmt.Sprintf(`#!/bin/sh
export %s=1 GORACE=atexit_sleep_ms=0
case "$1 $*" in
*--secure-port*) ;;
serve*) set -- "$@" --secure-port 0 ;;
esac
exec '%s' "$@"
`, asKelson, self)
	if err := os.WriteFile(program, []byte(wrapper), 0o755); err != nil {
		t.Fatal(err)
	}
	return program
}

// TestClients runs the tests of the packages for other languages.
func TestClients(t *testing.T) {
	t.Parallel()
	t.Run("python", func(t *testing.T) {
		t.Parallel()
		python, err := exec.LookPath(debianPython())
		if err != nil {
			t.Skip("python3 is not on PATH, which clients/python is for")
		}
		runClient(t, "../../clients/python", python, "-B", "-m", "unittest", "-v")
	})
	t.Run("npm", func(t *testing.T) {
		t.Parallel()
		node, err := exec.LookPath("node")
		if err != nil {
			t.Skip("node is not on PATH, which clients/npm is for")
		}
		if _, err := os.Stat(clientNode); err != nil {
			t.Skip("clients/npm has no node_modules: run 'npm install' there")
		}
		runClient(t, "../../clients/npm", node, "--test")
	})
}

// runClient runs the tests of a client with this program as kelson.
func runClient(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KELSON_BINARY="+asProgram(t))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%q: got %v, want all tests to pass:\n%s", args, err, out)
	} else {
		t.Logf("%s", out)
	}
}

// freePort returns a port that nobody listened on a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
}
