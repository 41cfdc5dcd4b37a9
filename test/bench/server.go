package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	// adminToken is the token of a member of system:masters at servers that are started here.
	adminToken = "bench-admin"

	startPatience = 5 * time.Minute
	stopPatience  = 30 * time.Second
)

// server is a running server. The fields do not change once it is started.
type server struct {
	name  string
	url   string
	tls   *tls.Config
	token string
	procs []*process // all that count as the server, in the order in which they were started; none if it runs elsewhere
}

// process is one process of a server. Its output goes to a file.
type process struct {
	cmd    *exec.Cmd
	log    string
	tree   bool          // child processes count too
	exited chan struct{} // closed when it has ended
}

// build compiles the sources of a spec and returns a spec of the program.
func (s spec) build(ctx context.Context, dir string) (spec, error) {
	if s.kind != kelsonSources {
		return s, nil
	}
	program := filepath.Join(dir, "kelson-"+s.name)
	// The race detector would be in GOFLAGS; figures with it mean nothing.
	cmd := exec.CommandContext(ctx, "go", "build", "-race=false", "-o", program, "./cmd/kelson")
	cmd.Dir = s.path
	if text, err := cmd.CombinedOutput(); err != nil {
		return s, fmt.Errorf("go build in %s: %w: %s", s.path, err, text)
	}
	s.kind, s.path = kelsonProgram, program
	return s, nil
}

// launch starts the server on a folder, which may have its data of an earlier launch. It
// does not wait until the server is ready.
func (s spec) launch(ctx context.Context, dir string) (*server, error) {
	if s.kind == runningServer {
		return fromKubeconfig(s.name, s.path)
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	tokens := filepath.Join(dir, "tokens")
	if err := os.WriteFile(tokens, []byte(adminToken+",admin,admin,system:masters\n"), 0o600); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	v := &server{
		name: s.name, url: fmt.Sprintf("https://127.0.0.1:%d", port), token: adminToken,
		tls: &tls.Config{InsecureSkipVerify: true}, // a certificate that the server has just signed itself
	}
	start := v.startKelson
	if s.kind == kubeAPIServer {
		start = v.startKube
	}
	if err := start(ctx, s, dir, port, tokens); err != nil {
		v.stop()
		return nil, err
	}
	return v, nil
}

func (v *server) startKelson(ctx context.Context, s spec, dir string, port int, tokens string) error {
	args := []string{"serve", "--secure-port", strconv.Itoa(port), "--token-auth-file", tokens}
	switch {
	case s.etcd != "":
		url, err := v.startEtcd(s.etcd, dir)
		if err != nil {
			return err
		}
		args = append(args, "--etcd-servers", url)
	case s.postgres != "":
		dsn, err := v.startPostgres(ctx, s.postgres, dir)
		if err != nil {
			return err
		}
		args = append(args, "--storage-dsn", dsn)
	default:
		args = append(args, "--data-dir", filepath.Join(dir, "data"))
	}
	return v.startProcess(dir, "kelson", false, exec.Command(s.path, append(args, s.args...)...))
}

// startKube starts etcd and kube-apiserver with what is their default, as far as there is one.
func (v *server) startKube(_ context.Context, s spec, dir string, port int, tokens string) error {
	url, err := v.startEtcd(filepath.Join(s.path, "etcd"), dir)
	if err != nil {
		return err
	}
	signer, err := signerFile(dir)
	if err != nil {
		return err
	}
	return v.startProcess(dir, "kube-apiserver", false, exec.Command(filepath.Join(s.path, "kube-apiserver"), append([]string{
		"--etcd-servers", url, "--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(port),
		"--advertise-address", "192.0.2.1", // it may not be one of loopback, and is only written down
		"--cert-dir", filepath.Join(dir, "certs"), "--token-auth-file", tokens, "--authorization-mode", "Node,RBAC",
		"--service-cluster-ip-range", "10.96.0.0/16", "--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", signer, "--service-account-signing-key-file", signer,
	}, s.args...)...))
}

func (v *server) startEtcd(program, dir string) (string, error) {
	clientPort, err := freePort()
	if err != nil {
		return "", err
	}
	peerPort, err := freePort()
	if err != nil {
		return "", err
	}
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", clientPort), fmt.Sprintf("http://127.0.0.1:%d", peerPort)
	return client, v.startProcess(dir, "etcd", false, exec.Command(program, "--data-dir", filepath.Join(dir, "etcd"),
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
		"--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--quota-backend-bytes", strconv.Itoa(8<<30)))
}

// startPostgres makes a database, unless there is one, and starts it. It does not run as
// root, so it gets another user then.
func (v *server) startPostgres(ctx context.Context, bin, dir string) (string, error) {
	data := filepath.Join(dir, "pg")
	first := !exists(data, "PG_VERSION")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return "", err
	}
	as := func(cmd *exec.Cmd) *exec.Cmd { return cmd }
	if os.Getuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			return "", err
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o711), os.Chown(data, uid, gid)); err != nil {
			return "", err
		}
		as = func(cmd *exec.Cmd) *exec.Cmd {
			setUser(cmd, uid, gid)
			return cmd
		}
	}
	if first {
		cmd := as(exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-U", "kelson", "--auth=trust", "--no-locale", "-E", "UTF8"))
		cmd.Dir = data
		if text, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("initdb: %w: %s", err, text)
		}
	}
	cmd := as(exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-c", "listen_addresses=", "-c", "unix_socket_directories="+data,
		"-c", "unix_socket_permissions=0777"))
	cmd.Dir = data
	if err := v.startProcess(dir, "postgres", true, cmd); err != nil {
		return "", err
	}
	p := v.procs[len(v.procs)-1]
	for end := time.Now().Add(startPatience); time.Now().Before(end); {
		check := as(exec.CommandContext(ctx, filepath.Join(bin, "pg_isready"), "-q", "-h", data))
		check.Dir = data
		if check.Run() == nil {
			return "host=" + data + " user=kelson dbname=postgres", nil
		}
		if err := p.ended(); err != nil {
			return "", err
		}
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("postgres is not ready after %v", startPatience)
}

func (v *server) startProcess(dir, name string, tree bool, cmd *exec.Cmd) error {
	p := &process{cmd: cmd, log: filepath.Join(dir, name+".log"), tree: tree, exited: make(chan struct{})}
	file, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	endWithParent(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	v.procs = append(v.procs, p)
	return nil
}

// ended returns an error with the end of the log if the process does not run.
func (p *process) ended() error {
	select {
	case <-p.exited:
		text, _ := os.ReadFile(p.log)
		return fmt.Errorf("%s ended: %v: %s", filepath.Base(p.cmd.Path), p.cmd.ProcessState, text[max(0, len(text)-2000):])
	default:
		return nil
	}
}

// stop ends the processes, the API server before its store.
func (v *server) stop() {
	for i := len(v.procs) - 1; i >= 0; i-- {
		p := v.procs[i]
		_ = p.cmd.Process.Signal(os.Interrupt)
		select {
		case <-p.exited:
		case <-time.After(stopPatience):
			_ = p.cmd.Process.Kill()
			<-p.exited
		}
	}
}

// waitReady waits until /readyz answers with 200.
func (v *server) waitReady(ctx context.Context) error {
	c := newClient(v, 1)
	defer c.close()
	var last error
	for end := time.Now().Add(startPatience); time.Now().Before(end); {
		attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, last = c.send(attempt, 0, request{path: "/readyz"})
		cancel()
		if last == nil {
			return nil
		}
		for _, p := range v.procs {
			if err := p.ended(); err != nil {
				return err
			}
		}
		if err := wait(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s is not ready after %v: %w", v.name, startPatience, last)
}

// wait waits for a time, or less if the context ends.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
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

// signerFile returns a file with a key for service account tokens.
func signerFile(dir string) (string, error) {
	file := filepath.Join(dir, "sa.key")
	if exists(dir, "sa.key") {
		return file, nil
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return "", err
	}
	return file, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600)
}

// isStatus reports whether an error is an answer with a code.
func isStatus(err error, code int) bool {
	var status *statusError
	return errors.As(err, &status) && status.code == code
}

// isThere is nil for an error that says that what was to be created exists.
func isThere(err error) error {
	if isStatus(err, http.StatusConflict) && strings.Contains(err.Error(), "AlreadyExists") {
		return nil
	}
	return err
}
