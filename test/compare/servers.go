//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	startPatience = 2 * time.Minute
	pollInterval  = 100 * time.Millisecond
	// requestTimeout is longer than the longest watch.
	requestTimeout = 40 * time.Second
)

// users have tokens of their names.
var users = []string{"admin", "jane", "bob", "node"}

const tokens = `admin,admin,1,"system:masters"
jane,jane,2,"devs"
bob,bob,3,""
node,system:node:n1,4,"system:nodes"
`

// server is one of the two.
type server struct {
	name   string
	url    string
	client *http.Client
	procs  []*process
}

// process is a program that runs; its output is in a file.
type process struct {
	cmd    *exec.Cmd
	log    string
	exited chan struct{}
}

// pair is both servers.
type pair struct{ reference, kelson *server }

// startPair starts both servers with the flags of a scenario, in folders below dir.
func startPair(ctx context.Context, o options, s scenario, dir string) (*pair, error) {
	p := &pair{}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	signer := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	for _, name := range []string{"kube-apiserver", "kelson"} {
		one, err := startServer(ctx, o, s, name, filepath.Join(dir, name), signer)
		if one != nil {
			if name == "kelson" {
				p.kelson = one
			} else {
				p.reference = one
			}
		}
		if err != nil {
			p.stop()
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return p, nil
}

// startServer starts a server on an etcd of its own.
func startServer(ctx context.Context, o options, s scenario, name, dir string, signer []byte) (*server, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	files := map[string][]byte{"sa.key": signer, "tokens": []byte(tokens)}
	for file, text := range s.files {
		files[file] = []byte(text)
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			return nil, err
		}
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	client, peer := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	one := &server{name: name, url: "https://127.0.0.1:" + ports[2]}
	one.client = &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableCompression: true,
			MaxIdleConnsPerHost: 64, ForceAttemptHTTP2: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if err := one.spawn(dir, "etcd.log", filepath.Join(o.peers, "etcd"), "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level", "error",
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", "default="+peer, "--quota-backend-bytes", "6000000000"); err != nil {
		return one, err
	}
	args := []string{
		"--etcd-servers", client, "--bind-address", "127.0.0.1", "--secure-port", ports[2], "--advertise-address", "192.0.2.1",
		"--cert-dir", filepath.Join(dir, "certs"), "--token-auth-file", filepath.Join(dir, "tokens"),
		"--service-account-issuer", "https://kubernetes.default.svc.cluster.local", "--service-account-key-file", filepath.Join(dir, "sa.key"),
		"--service-account-signing-key-file", filepath.Join(dir, "sa.key"), "--service-cluster-ip-range", "10.0.0.0/12", "--allow-privileged",
		"--max-requests-inflight", "2000", "--max-mutating-requests-inflight", "1000",
	}
	for _, flag := range s.flags {
		args = append(args, strings.ReplaceAll(flag, "{{dir}}", dir))
	}
	if !strings.Contains(strings.Join(args, " "), "--authorization-mode") {
		args = append(args, "--authorization-mode", "Node,RBAC")
	}
	program := filepath.Join(o.peers, "kube-apiserver")
	if name == "kelson" {
		program, args = o.kelson, append([]string{"kube-apiserver"}, args...)
	}
	if err := one.spawn(dir, "server.log", program, args...); err != nil {
		return one, err
	}
	return one, one.waitReady(ctx)
}

// spawn starts a program that ends with this one, however that ends.
func (s *server) spawn(dir, log, program string, args ...string) error {
	file, err := os.Create(filepath.Join(dir, log))
	if err != nil {
		return err
	}
	defer file.Close()
	p := &process{cmd: exec.Command(program, args...), log: file.Name(), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = file, file
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	s.procs = append(s.procs, p)
	return nil
}

func (s *server) waitReady(ctx context.Context) error {
	deadline := time.Now().Add(startPatience)
	for {
		a := s.send(ctx, &message{method: "GET", path: "/readyz", user: "admin"})
		if a.status == http.StatusOK {
			return nil
		}
		if log := s.ended(); log != "" {
			return fmt.Errorf("it has ended: %s", log)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("it is not ready: %d %s", a.status, a.body)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}

// ended returns the end of the log of a process that has ended.
func (s *server) ended() string {
	if s == nil {
		return ""
	}
	for _, p := range s.procs {
		select {
		case <-p.exited:
			text, _ := os.ReadFile(p.log)
			return fmt.Sprintf("%s: %s", s.name, text[max(0, len(text)-3000):])
		default:
		}
	}
	return ""
}

func (p *pair) ended() string  { return p.reference.ended() + p.kelson.ended() }
func (p *pair) hasEnded() bool { return p.ended() != "" }

func (p *pair) stop() {
	for _, s := range []*server{p.reference, p.kelson} {
		if s == nil {
			continue
		}
		for i := len(s.procs) - 1; i >= 0; i-- {
			_ = s.procs[i].cmd.Process.Kill()
			<-s.procs[i].exited
		}
	}
}

func freePorts(n int) (ports []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		ports = append(ports, port)
	}
	return ports, nil
}

// message is a request.
type message struct {
	method, path, user string
	query              url.Values
	header             http.Header
	body               []byte
}

// answer is what came back; a status of 0 is none.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// send sends a request.
func (s *server) send(ctx context.Context, m *message) *answer {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	target := s.url + m.path
	if len(m.query) > 0 {
		target += "?" + m.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, m.method, target, strings.NewReader(string(m.body)))
	if err != nil {
		return &answer{body: []byte(err.Error())}
	}
	for k, v := range m.header {
		req.Header[k] = v
	}
	req.Header.Set("User-Agent", "compare")
	if m.user != "" {
		req.Header.Set("Authorization", "Bearer "+m.user)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return &answer{body: []byte("no answer: " + err.Error())}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		body = append(body, ("\nbroken: " + err.Error())...)
	}
	return &answer{resp.StatusCode, resp.Header, body}
}
