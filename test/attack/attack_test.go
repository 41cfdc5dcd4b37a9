//go:build linux

// Package attack keeps a running server under attack and measures what that costs it.
//
// The server is cmd/kelson as a process of its own, built without the race detector, so
// that its CPU time, memory and log are its own. The attacker is in the test: it speaks
// TLS and writes frames and bytes that no honest client would. Each test names one
// attack and states as a price what a kilobyte of the attacker may cost the server;
// start reading at attack and price.
package attack

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/apikeel/kelson/internal/testsize"
)

// Users of the server, who have tokens of the same names. Only the readers have a role.
const (
	stranger = ""
	jane     = "jane"
	mary     = "mary"
	reader   = "reader"
	other    = "other-reader"
)

// patience bounds everything that a test waits for and that should be immediate.
const patience = 30 * time.Second

// soon bounds what an attacker waits for.
const soon = 10 * time.Second

// What the reader can list: configMaps objects, each of configMapSize bytes.
const (
	configMaps    = 200
	configMapSize = 10 << 10
)

// victim is the server that is attacked, patientVictim another of which tests of time-outs
// have connections for as long as all others take, and filledVictim one that gets large
// bodies, so that what is left of them is not counted as the memory of others.
var victim, patientVictim, filledVictim *server

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

// run runs the tests: once, or for as long as KELSON_ATTACK says, on the same servers.
func run(m *testing.M) int {
	var first usage // after the first round
	if testsize.Race() {
		fmt.Println("skipped: the prices are those of a server without the race detector; run it without -race")
		return 0
	}
	dir, err := os.MkdirTemp("", "attack")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	program, err := build(dir)
	if err == nil {
		victim, err = start(program, dir)
	}
	if err == nil {
		defer victim.kill()
		err = victim.prepare()
	}
	if err == nil {
		patientVictim, err = start(program, filepath.Join(dir, "patient"), "--request-timeout", slowRequestTimeout.String())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the server that is to be attacked does not start:", err)
		return 1
	}
	defer patientVictim.kill()
	if filledVictim, err = start(program, filepath.Join(dir, "filled")); err != nil {
		fmt.Fprintln(os.Stderr, "the server for long lists does not start:", err)
		return 1
	}
	defer filledVictim.kill()
	length, err := time.ParseDuration(cmp.Or(os.Getenv("KELSON_ATTACK"), "0s"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "KELSON_ATTACK is how long the attacks are repeated:", err)
		return 1
	}
	for begin, round := time.Now(), 1; ; round++ {
		slow.begin()
		code := m.Run()
		slow.end()
		if length == 0 || code != 0 {
			return code
		}
		now := victim.rest
		fmt.Printf("round %d, after %v: %d KiB in use, %d goroutines\n", round, time.Since(begin).Round(time.Second), now.held>>10, now.goroutines)
		if round == 1 {
			first = now
		}
		// Each round may leave what caches keep, all of them together not more.
		if now.held > first.held+leftPerAttack || now.goroutines > first.goroutines+leftGoroutines {
			fmt.Printf("after the first round there were %d KiB and %d goroutines: something is never given back\n", first.held>>10, first.goroutines)
			return 1
		}
		if time.Since(begin) > length {
			return 0
		}
	}
}

// server is a kelson process.
type server struct {
	addr  string
	cmd   *exec.Cmd
	log   lockedBuffer
	admin *http.Client // with a connection of its own
	url   string
	rest  usage // what it used when it had come to rest after the last attack
}

// lockedBuffer is what the process writes and tests look at meanwhile.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Len()
}

func (b *lockedBuffer) from(n int) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.b.Bytes()[n:])
}

// build compiles cmd/kelson into a folder, unless KELSON_ATTACKED names a program.
func build(dir string) (string, error) {
	if program := os.Getenv("KELSON_ATTACKED"); program != "" {
		return program, nil
	}
	file := filepath.Join(dir, "kelson")
	if out, err := exec.Command("go", "build", "-o", file, "github.com/apikeel/kelson/cmd/kelson").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return file, nil
}

// start starts a server with its data in memory.
func start(program, dir string, args ...string) (*server, error) {
	data, tokens := filepath.Join(dir, "data"), filepath.Join(dir, "tokens")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	var lines strings.Builder
	for _, user := range []string{jane, mary, reader, other} {
		fmt.Fprintf(&lines, "%s,%s,%s\n", user, user, user)
	}
	if err := os.WriteFile(tokens, []byte(lines.String()), 0o600); err != nil {
		return nil, err
	}
	s := &server{}
	s.cmd = exec.Command(program, append([]string{"serve", "--data-dir", data, "--storage", "memory", "--secure-port", "0", "--token-auth-file", tokens}, args...)...)
	s.cmd.Stdout, s.cmd.Stderr = io.Discard, &s.log
	// It ends with this process, however that ends.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	exited := make(chan struct{})
	go func() {
		_ = s.cmd.Wait()
		close(exited)
	}()
	kubeconfig := filepath.Join(data, "kubeconfig")
	for deadline := time.Now().Add(patience); ; {
		if s.connect(kubeconfig) == nil {
			return s, nil
		}
		select {
		case <-exited:
			return nil, fmt.Errorf("it has ended: %s", s.log.from(0))
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.kill()
			return nil, fmt.Errorf("it is not ready: %s", s.log.from(0))
		}
	}
}

// connect makes the administrator's client, if the server is ready.
func (s *server) connect(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	if s.admin, err = rest.HTTPClientFor(config); err != nil {
		return err
	}
	s.url, s.addr = config.Host, strings.TrimPrefix(config.Host, "https://")
	_, err = s.get(s.admin, "/readyz")
	return err
}

func (s *server) kill() { _ = s.cmd.Process.Kill() }

// alive reports whether the process is there.
func (s *server) alive() bool { return s.cmd.Process.Signal(syscall.Signal(0)) == nil }

// client returns a client of a user with a connection of its own.
func (s *server) client(user string, http2 bool) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	return &http.Client{Timeout: patience, Transport: withToken{user, &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, Protocols: protocols,
	}}}
}

// withToken sends a user's token.
type withToken struct {
	token string
	*http.Transport
}

func (t withToken) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.token != "" {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+t.token)
	}
	return t.Transport.RoundTrip(req)
}

func (s *server) get(client *http.Client, path string) (string, error) {
	return s.do(client, http.MethodGet, path, nil)
}

func (s *server) do(client *http.Client, method, path string, body any) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return "", err
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, content)
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, text)
	}
	return string(text), err
}

type fields = map[string]any

// prepare creates what the reader can list, and the role to do so.
func (s *server) prepare() error {
	group := "/apis/rbac.authorization.k8s.io/v1/"
	_, err := s.do(s.admin, http.MethodPost, group+"clusterroles", fields{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": fields{"name": "reader"},
		"rules": []any{fields{"apiGroups": []string{""}, "resources": []string{"configmaps"}, "verbs": []string{"get", "list", "watch"}}},
	})
	_, err2 := s.do(s.admin, http.MethodPost, group+"clusterrolebindings", fields{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": fields{"name": "reader"},
		"roleRef": fields{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
		"subjects": []any{
			fields{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": reader},
			fields{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": other},
		},
	})
	for i := range configMaps {
		if err != nil || err2 != nil {
			break
		}
		_, err = s.do(s.admin, http.MethodPost, "/api/v1/namespaces/default/configmaps", fields{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": fields{"name": fmt.Sprintf("large-%d", i)},
			"data": fields{"text": strings.Repeat("0123456789", configMapSize/10)},
		})
	}
	return errors.Join(err, err2)
}
