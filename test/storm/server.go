//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Users of the server; each has a token of the same name.
const (
	adminUser  = "admin"  // of system:masters
	honestUser = "honest" // of stormGroup, like all that follow
	maxUsers   = 64       // user-0 to user-63

	stormGroup = "storm-clients"
)

const (
	// startPatience is how long a server may take to be ready: kube-apiserver loads
	// all objects first.
	startPatience = 3 * time.Minute
	stopPatience  = 30 * time.Second
	pollInterval  = 50 * time.Millisecond
)

// serverKind starts servers of one kind.
type serverKind interface {
	name() string
	// start starts a server on a data folder in a group, or in none if it is nil. It
	// need not wait until the server is ready.
	start(dir string, port int, group *cgroup) (*server, error)
}

// server is a running server: one process, or two with etcd.
type server struct {
	name  string
	url   string
	group *cgroup
	began time.Time  // when its processes were started
	mu    sync.Mutex // protects procs
	procs []*process // the API server is the last
}

// process is a process of a server. Its output goes to a file.
type process struct {
	name   string
	args   []string
	cmd    *exec.Cmd
	log    string
	exited chan struct{} // closed when it has ended
}

// startProcess starts a program in a group.
func startProcess(log string, group *cgroup, program string, args ...string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	line := group.command(program, args...)
	p := &process{name: program, args: args, cmd: exec.Command(line[0], line[1:]...), log: log, exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = file, file
	// It ends with this process, however that ends.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// newLog returns the name of a log file, and removes that of an earlier run.
func newLog(dir, name string) string {
	file := filepath.Join(dir, name)
	_ = os.Remove(file)
	return file
}

func (p *process) hasEnded() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// stop ends the process, with SIGKILL if it takes too long.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(stopPatience):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// logTail returns the end of what the process has written.
func (p *process) logTail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text[max(0, len(text)-2000):]))
}

// stop ends all processes, the API server first.
func (s *server) stop() {
	procs := s.processes()
	for i := len(procs) - 1; i >= 0; i-- {
		procs[i].stop()
	}
}

func (s *server) processes() []*process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.procs)
}

// restart kills the API server and starts it again.
func (s *server) restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.procs[len(s.procs)-1]
	_ = last.cmd.Process.Kill()
	<-last.exited
	next, err := startProcess(last.log, s.group, last.name, last.args...)
	if err == nil {
		s.procs[len(s.procs)-1] = next
	}
	return err
}

// dead returns the process that has ended, or nil.
func (s *server) dead() *process {
	for _, p := range s.processes() {
		if p.hasEnded() {
			return p
		}
	}
	return nil
}

// death describes how a process has ended, or is empty if all run.
func (s *server) death() string {
	p := s.dead()
	if p == nil {
		return ""
	}
	state := p.cmd.ProcessState
	status, ok := state.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() && status.Signal() == syscall.SIGKILL && s.group.use().oomKills > 0 {
		return filepath.Base(p.name) + " killed, out of memory"
	}
	return fmt.Sprintf("%s ended: %v", filepath.Base(p.name), state)
}

// resident returns VmRSS and VmHWM of all processes.
func (s *server) resident() (now, peak int64) {
	for _, p := range s.processes() {
		n, k := residentMemory(p.cmd.Process.Pid)
		now, peak = now+n, peak+k
	}
	return now, peak
}

// cpuTime returns how many seconds of CPU all processes have used.
func (s *server) cpuTime() (seconds float64) {
	for _, p := range s.processes() {
		seconds += cpuTime(p.cmd.Process.Pid)
	}
	return seconds
}

// waitReady waits until the server is ready.
func (s *server) waitReady(ctx context.Context) error {
	client := newClient(adminUser, clientOptions{})
	defer client.close()
	last := errors.New("no answer")
	for end := time.Now().Add(startPatience); time.Now().Before(end); {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := client.call(attempt, http.MethodGet, s.url+"/readyz", "", nil)
		cancel()
		if err == nil {
			return nil
		}
		last = err
		if p := s.dead(); p != nil {
			return fmt.Errorf("%s: %s", s.death(), p.logTail())
		}
		if err := wait(ctx, pollInterval); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s is not ready after %v: %w", s.name, startPatience, last)
}

// wait waits for a time, or less if the context ends.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// freePort returns a port of loopback that is free now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// writeTokens writes the file with the tokens of all users.
func writeTokens(dir string) (string, error) {
	var lines strings.Builder
	fmt.Fprintf(&lines, "%[1]s,%[1]s,%[1]s,system:masters\n", adminUser)
	fmt.Fprintf(&lines, "%[1]s,%[1]s,%[1]s,%[2]s\n", honestUser, stormGroup)
	for i := range maxUsers {
		fmt.Fprintf(&lines, "%[1]s,%[1]s,%[1]s,%[2]s\n", userName(i), stormGroup)
	}
	file := filepath.Join(dir, "tokens")
	return file, os.WriteFile(file, []byte(lines.String()), 0o600)
}

func userName(i int) string { return fmt.Sprintf("user-%d", i) }

// kelsonServer is Kelson on its own storage.
type kelsonServer struct {
	program string
	args    []string
}

func (kelsonServer) name() string { return "kelson" }

func (k kelsonServer) start(dir string, port int, group *cgroup) (*server, error) {
	tokens, err := writeTokens(dir)
	if err != nil {
		return nil, err
	}
	p, err := startProcess(newLog(dir, "kelson.log"), group, k.program, append([]string{
		"serve", "--data-dir", filepath.Join(dir, "data"), "--secure-port", fmt.Sprint(port), "--token-auth-file", tokens,
	}, k.args...)...)
	if err != nil {
		return nil, err
	}
	return &server{name: k.name(), url: loopbackURL(port), procs: []*process{p}, group: group}, nil
}

func loopbackURL(port int) string { return fmt.Sprintf("https://127.0.0.1:%d", port) }

// kubeServer is kube-apiserver with one etcd, both in the same group.
type kubeServer struct {
	program, etcd string
	args          []string
}

func (kubeServer) name() string { return "kube-apiserver" }

func (k kubeServer) start(dir string, port int, group *cgroup) (*server, error) {
	tokens, err := writeTokens(dir)
	if err != nil {
		return nil, err
	}
	signer, err := signerFile(dir)
	if err != nil {
		return nil, err
	}
	clientPort, err := freePort()
	if err != nil {
		return nil, err
	}
	peerPort, err := freePort()
	if err != nil {
		return nil, err
	}
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", clientPort), fmt.Sprintf("http://127.0.0.1:%d", peerPort)
	s := &server{name: k.name(), url: loopbackURL(port), group: group}
	etcd, err := startProcess(newLog(dir, "etcd.log"), group, k.etcd, "--data-dir", filepath.Join(dir, "etcd"),
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
		"--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--quota-backend-bytes", fmt.Sprint(8<<30))
	if err != nil {
		return nil, err
	}
	s.procs = append(s.procs, etcd)
	api, err := startProcess(newLog(dir, "kube-apiserver.log"), group, k.program, append([]string{
		"--etcd-servers", client, "--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(port), "--cert-dir", filepath.Join(dir, "certs"),
		"--token-auth-file", tokens, "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.0.0.0/24",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", signer,
		"--service-account-signing-key-file", signer, "--disable-admission-plugins", "ServiceAccount", "--endpoint-reconciler-type", "none",
	}, k.args...)...)
	if err != nil {
		s.stop()
		return nil, err
	}
	s.procs = append(s.procs, api)
	return s, nil
}

// signerFile returns a file with the key of service account tokens, made at the first
// start.
func signerFile(dir string) (string, error) {
	file := filepath.Join(dir, "sa.key")
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return "", err
	}
	return file, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600)
}

// client is an HTTP/2 client of one user with a connection of its own.
type client struct {
	token     string
	transport *http.Transport
}

// clientOptions are what clients differ in.
type clientOptions struct {
	// window is how many bytes of an answer the client takes before they are read; 0 is
	// the default of net/http, which client-go has too: 4 MiB.
	window int
}

func newClient(token string, o clientOptions) *client {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	t := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, Protocols: protocols,
		DisableCompression: true,
	}
	if o.window > 0 {
		t.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: o.window, MaxReceiveBufferPerConnection: max(o.window, 64<<10)}
	}
	return &client{token, t}
}

func (c *client) close() { c.transport.CloseIdleConnections() }

// do sends a request.
func (c *client) do(ctx context.Context, method, url, contentType string, body []byte, header ...string) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, content)
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return c.transport.RoundTrip(req)
}

// call sends a request and returns the whole answer; a status of 300 or more is an
// error.
func (c *client) call(ctx context.Context, method, url, contentType string, body []byte) ([]byte, error) {
	resp, err := c.do(ctx, method, url, contentType, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = &statusError{resp.StatusCode, string(text[:min(len(text), 300)])}
	}
	return text, err
}

// statusError is an answer that is not a success.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.code, e.text) }

// isStatus reports whether an error is an answer with a code.
func isStatus(err error, code int) bool {
	var status *statusError
	return errors.As(err, &status) && status.code == code
}

// dropCache makes the kernel forget the pages of the files in a folder, so that a server
// that reads them pays for them in its own group.
func dropCache(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Sync(); err != nil {
			return err
		}
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
}

// copyFolder copies the files of a server that does not run. A server that was killed
// leaves sockets too, which cannot be copied.
func copyFolder(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch target := filepath.Join(to, relative); {
		case entry.IsDir():
			return os.MkdirAll(target, 0o700)
		case entry.Type().IsRegular():
			return copyFile(path, target)
		}
		return nil
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// inParallel calls a function for 0 to n-1, a few at a time, and returns the first error.
func inParallel(ctx context.Context, n, atOnce int, call func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for i := range next {
				if err := call(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	workers.Wait()
	return context.Cause(ctx)
}
