//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/internal/http2test"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
)

// asKelson in the environment makes this test binary be kelson.
const asKelson = "KELSON_TEST_AS_KELSON"

func TestMain(m *testing.M) {
	if os.Getenv(asKelson) != "" {
		main()
	}
	os.Exit(m.Run())
}

// command returns kelson as a process of its own, which ends with the test.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	// The race detector would linger for a second at the end of each.
	cmd.Env = append(os.Environ(), asKelson+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// result is what became of a command.
type result struct {
	out, err string
	code     int
}

func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// kelson runs a command to its end.
func kelson(t *testing.T, args ...string) result {
	t.Helper()
	return finish(t, command(t, args...))
}

// must runs a command that succeeds and says so.
func must(t *testing.T, want string, args ...string) result {
	t.Helper()
	r := kelson(t, args...)
	if r.code != exitOK || !strings.Contains(r.out, want) {
		t.Fatalf("kelson %s: exit code %d, %q, %q; want %q", strings.Join(args, " "), r.code, r.out, r.err, want)
	}
	return r
}

// server is a kelson that serves.
type server struct {
	cmd *exec.Cmd
	out string // what it said until it was ready
	log bytes.Buffer
}

// serve starts a server on a free port, with the implementation of HTTP/2 that tests
// are to run on.
func serve(t *testing.T, args ...string) *server {
	t.Helper()
	if chosen := http2test.Chosen(); chosen != "" {
		args = append(args, "--http2-server", chosen)
	}
	return serveExactly(t, append(args, "--secure-port", "0")...)
}

// serveExactly starts a server with these flags and no others.
func serveExactly(t *testing.T, args ...string) *server {
	t.Helper()
	s := &server{cmd: command(t, args...)}
	s.cmd.Stderr = &s.log
	pipe, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.end(syscall.SIGKILL) })
	lines := bufio.NewReader(pipe)
	for !strings.Contains(s.out, "kubectl") {
		line, err := lines.ReadString('\n')
		s.out += line
		if err != nil {
			s.end(syscall.SIGKILL)
			t.Fatalf("server ended: %q, %q", s.out, s.log.String())
		}
	}
	return s
}

// end sends a signal and returns how the server ended.
func (s *server) end(signal syscall.Signal) int {
	_ = s.cmd.Process.Signal(signal)
	_ = s.cmd.Wait()
	return s.cmd.ProcessState.ExitCode()
}

// fillFolder makes a data folder with a store of n keys. The first of them are
// what every server makes at its first start, so that it makes nothing there.
func fillFolder(t *testing.T, dir string, n int) {
	t.Helper()
	e, err := engine.Open(engine.Options{Dir: controlplane.StoreDir(dir)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	// At once, since they then share a few commits.
	var writers sync.WaitGroup
	for i := range n {
		writers.Go(func() {
			var ttl time.Duration
			if i%10 == 3 {
				ttl = time.Hour
			}
			key, value := fmt.Sprintf("%sthings/default/c-%04d", storage.Root, i), bytes.Repeat([]byte{byte(i)}, i)
			if i < len(systemNamespaces) {
				name := systemNamespaces[i]
				key, ttl = storage.Root+"namespaces/"+name, 0
				value = fmt.Appendf(nil, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":%q}}`, name)
			}
			if _, err := e.Create(t.Context(), key, value, ttl); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
}

// contents returns what is in a data folder: keys and values, revisions, and
// which keys expire.
func contents(t *testing.T, dir string) (values map[string]string, revisions map[string]int64, expiring map[string]bool) {
	t.Helper()
	e, err := controlplane.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	page, err := e.List(t.Context(), "", storage.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	values, revisions, expiring = map[string]string{}, map[string]int64{}, map[string]bool{}
	for _, kv := range page.Items {
		values[kv.Key] = string(kv.Value)
		revisions[kv.Key] = kv.ModRevision
		expiring[kv.Key] = !kv.Expires.IsZero()
	}
	return values, revisions, expiring
}

// TestLife walks through the life of a data folder.
func TestLife(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	dir, during := filepath.Join(temp, "data"), filepath.Join(temp, "during.snap")
	fillFolder(t, dir, 100)

	// Controllers would go on writing.
	s := serve(t, "serve", "--data-dir", dir, "--controllers=-*")
	if !strings.Contains(s.out, dir) || !strings.Contains(s.out, "serves the Kubernetes API at https://127.0.0.1:") || !strings.Contains(s.out, "kubectl --kubeconfig") {
		t.Errorf("server says %q", s.out)
	}
	if r := kelson(t, "--data-dir", dir); r.code != exitError || !strings.Contains(r.err, "kelson: data folder is in use: "+dir) || strings.Count(r.err, "\n") != 1 {
		t.Errorf("second server: %+v", r)
	}
	newClient(t, controlplane.KubeconfigFile(dir)).ready()
	// The first start adds what every server has.
	saved := must(t, "Saved revision ", "snapshot", "save", "--data-dir", dir, during)
	var revision, keys int
	if _, err := fmt.Sscanf(saved.out, "Saved revision %d with %d keys", &revision, &keys); err != nil || keys < 100 || revision <= keys {
		t.Fatalf("save says %q: %v", saved.out, err)
	}
	if fi, err := os.Stat(during); err != nil || fi.Mode() != 0o600 {
		t.Errorf("snapshot: %v, %v", fi.Mode(), err)
	}

	// Killed, it leaves its socket behind; nobody minds.
	s.end(syscall.SIGKILL)
	if _, err := os.Lstat(filepath.Join(dir, "control", "socket")); err != nil {
		t.Errorf("there is no stale socket to test with: %v", err)
	}
	// A server that is ready may still write this and that; a folder at rest does
	// not change.
	after, same := filepath.Join(temp, "after.snap"), filepath.Join(temp, "same.snap")
	for _, file := range []string{after, same} {
		must(t, " keys", "snapshot", "save", "--data-dir", dir, file)
	}
	if read(t, after) != read(t, same) {
		t.Error("there are two different snapshots of the same data")
	}
	s = serve(t, "--data-dir", dir, "--controllers=-*") // without a command
	again := kelson(t, "snapshot", "save", "--data-dir", dir, "-")
	if again.code != exitOK || !strings.Contains(again.err, " keys") {
		t.Errorf("to the standard output: %d, %q", again.code, again.err)
	}
	s.stop(t)
	final := filepath.Join(temp, "final.snap")
	saved = must(t, "Saved revision ", "snapshot", "save", "--data-dir", dir, final)
	if _, err := fmt.Sscanf(saved.out, "Saved revision %d with %d keys", &revision, &keys); err != nil {
		t.Fatalf("save says %q: %v", saved.out, err)
	}
	snapshot := read(t, final)

	must(t, "keys ", "snapshot", "verify", during)
	r := must(t, fmt.Sprintf("revision  %d\nkeys      %d\nbytes     ", revision, keys), "snapshot", "verify", final)
	if !strings.Contains(r.out, fmt.Sprintf("sha256    %x\n", snapshot[len(snapshot)-32:])) {
		t.Errorf("verify says %q", r.out)
	}
	pipe := command(t, "snapshot", "verify", "-")
	pipe.Stdin = strings.NewReader(snapshot)
	if p := finish(t, pipe); p != r {
		t.Errorf("verify from a pipe: %+v", p)
	}
	restored := filepath.Join(temp, "restored")
	must(t, fmt.Sprintf("goes on at revision %d", 1000000000+revision), "snapshot", "restore", "--data-dir", restored, final)
	wantValues, wantRevisions, wantExpiring := contents(t, dir)
	values, revisions, expiring := contents(t, restored)
	if !maps.Equal(values, wantValues) || !maps.Equal(revisions, wantRevisions) || !maps.Equal(expiring, wantExpiring) {
		t.Error("what was restored is not what was saved")
	}
	s = serve(t, "serve", "--data-dir", restored, "--controllers=-*")
	if !strings.Contains(s.out, "keeps its data in "+controlplane.StoreDir(restored)) {
		t.Errorf("server says %q", s.out)
	}
	newClient(t, controlplane.KubeconfigFile(restored)).ready()
	must(t, fmt.Sprintf(" with %d keys", keys), "snapshot", "save", "--data-dir", restored, filepath.Join(temp, "restored.snap"))
	if code := s.end(syscall.SIGINT); code != exitOK {
		t.Errorf("after SIGINT it ended with %d", code)
	}
}

// TestStopWhileSaving stops a server in the middle of a snapshot which is not
// being read on. Nothing must be left that looks like one.
func TestStopWhileSaving(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	fillFolder(t, dir, 2000) // more than sockets and pipes take in
	s := serve(t, "serve", "--data-dir", dir)
	save := command(t, "snapshot", "save", "--data-dir", dir, "-")
	var errs bytes.Buffer
	save.Stderr = &errs
	out, err := save.StdoutPipe()
	if err == nil {
		err = save.Start()
	}
	if err == nil {
		_, err = io.ReadFull(out, make([]byte, 100))
	}
	if err != nil {
		t.Fatal(err)
	}
	if code := s.end(syscall.SIGTERM); code != exitOK {
		t.Errorf("server ended with %d: %s", code, s.log.String())
	}
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Error(err)
	}
	if err := save.Wait(); err == nil || !strings.Contains(errs.String(), "receiving from the server") {
		t.Errorf("save: %v, %q", err, errs.String())
	}
}

// TestInterruptedSave interrupts a snapshot after its first bytes.
func TestInterruptedSave(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	fillFolder(t, dir, 2000)
	ctx, interrupt := context.WithCancel(t.Context())
	var errs bytes.Buffer
	code := run(ctx, []string{"snapshot", "save", "--data-dir", dir, "-"}, streams{
		out: writerFunc(func([]byte) { interrupt() }),
		err: &errs,
	})
	if code != exitError || errs.String() != "kelson: saving a snapshot: interrupted\n" {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
}
