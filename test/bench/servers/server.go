package servers

import (
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
	"os/user"
	"path/filepath"
	"strconv"
	"time"
)

const (
	// adminToken is the token of a member of system:masters at servers that are started here.
	adminToken = "bench-admin"

	startPatience = 5 * time.Minute
	stopPatience  = 30 * time.Second
)

// Server is a running server. The fields do not change once it is started.
type Server struct {
	Name  string
	URL   string
	TLS   *tls.Config
	Token string     // empty with a client certificate
	procs []*process // all that count as the server, in the order in which they were started; none if it runs elsewhere
}

// process is one process of a server. Its output goes to a file.
type process struct {
	cmd    *exec.Cmd
	log    string
	tree   bool          // child processes count too
	exited chan struct{} // closed when it has ended
}

// Build compiles the sources of a spec and returns a spec of the program.
func (s Spec) Build(ctx context.Context, dir string) (Spec, error) {
	if s.Kind != KelsonSources {
		return s, nil
	}
	program := filepath.Join(dir, "kelson-"+s.Name)
	// The race detector would be in GOFLAGS; figures with it mean nothing.
	cmd := exec.CommandContext(ctx, "go", "build", "-race=false", "-o", program, "./cmd/kelson")
	cmd.Dir = s.Path
	if text, err := cmd.CombinedOutput(); err != nil {
		return s, fmt.Errorf("go build in %s: %w: %s", s.Path, err, text)
	}
	s.Kind, s.Path = KelsonProgram, program
	return s, nil
}

// Launch starts the server on a folder, which may have its data of an earlier launch. It
// does not wait until the server is ready.
func (s Spec) Launch(ctx context.Context, dir string) (*Server, error) {
	if s.Kind == Running {
		return fromKubeconfig(s.Name, s.Path)
	}
	dir, err := filepath.Abs(dir) // processes run in it
	if err != nil {
		return nil, err
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
	v := &Server{
		Name: s.Name, URL: fmt.Sprintf("https://127.0.0.1:%d", port), Token: adminToken,
		TLS: &tls.Config{InsecureSkipVerify: true}, // a certificate that the server has just signed itself
	}
	start := v.startKelson
	switch s.Kind {
	case KubeAPIServer:
		start = v.startKube
	case Kcp:
		start = v.startKcp
	}
	if err := start(ctx, s, dir, port, tokens); err != nil {
		v.Stop()
		return nil, err
	}
	return v, nil
}

func (v *Server) startKelson(ctx context.Context, s Spec, dir string, port int, tokens string) error {
	args := []string{"serve", "--secure-port", strconv.Itoa(port), "--token-auth-file", tokens}
	switch {
	case s.Etcd != "":
		url, err := v.startEtcd(s.Etcd, dir)
		if err != nil {
			return err
		}
		args = append(args, "--etcd-servers", url)
	case s.Postgres != "":
		dsn, err := v.startPostgres(ctx, s.Postgres, dir)
		if err != nil {
			return err
		}
		args = append(args, "--storage-dsn", dsn)
	default:
		args = append(args, "--data-dir", filepath.Join(dir, "data"))
	}
	return v.startProcess(dir, "kelson", false, exec.Command(s.Path, append(args, s.Args...)...))
}

// startKube starts etcd and kube-apiserver with what is their default, as far as there is one.
func (v *Server) startKube(_ context.Context, s Spec, dir string, port int, tokens string) error {
	url, err := v.startEtcd(filepath.Join(s.Path, "etcd"), dir)
	if err != nil {
		return err
	}
	signer, err := signerFile(dir)
	if err != nil {
		return err
	}
	return v.startProcess(dir, "kube-apiserver", false, exec.Command(filepath.Join(s.Path, "kube-apiserver"), append([]string{
		"--etcd-servers", url, "--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(port),
		"--advertise-address", "192.0.2.1", // it may not be one of loopback, and is only written down
		"--cert-dir", filepath.Join(dir, "certs"), "--token-auth-file", tokens, "--authorization-mode", "Node,RBAC",
		"--service-cluster-ip-range", "10.96.0.0/16", "--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", signer, "--service-account-signing-key-file", signer,
	}, s.Args...)...))
}

// startKcp starts kcp with the etcd that it has in its process, with what is their default.
// Requests are of its root workspace.
func (v *Server) startKcp(_ context.Context, s Spec, dir string, port int, tokens string) error {
	clientPort, err := freePort()
	if err != nil {
		return err
	}
	peerPort, err := freePort()
	if err != nil {
		return err
	}
	v.URL += "/clusters/root"
	return v.startProcess(dir, "kcp", false, exec.Command(filepath.Join(s.Path, "kcp"), append([]string{
		"start", "--root-directory", filepath.Join(dir, "kcp"), "--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(port),
		"--embedded-etcd-client-port", strconv.Itoa(clientPort), "--embedded-etcd-peer-port", strconv.Itoa(peerPort), "--token-auth-file", tokens,
	}, s.Args...)...))
}

func (v *Server) startEtcd(program, dir string) (string, error) {
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
func (v *Server) startPostgres(ctx context.Context, bin, dir string) (string, error) {
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
		if err := Wait(ctx, 50*time.Millisecond); err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("postgres is not ready after %v", startPatience)
}

// StartProcess starts a process that counts as the server, with a log in a folder.
func (v *Server) StartProcess(dir, name string, cmd *exec.Cmd) error {
	return v.startProcess(dir, name, false, cmd)
}

func (v *Server) startProcess(dir, name string, tree bool, cmd *exec.Cmd) error {
	p := &process{cmd: cmd, log: filepath.Join(dir, name+".log"), tree: tree, exited: make(chan struct{})}
	file, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	if cmd.Dir == "" {
		cmd.Dir = dir // what a server writes without being told where, such as a kubeconfig
	}
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

// Stop ends the processes, the API server before its store.
func (v *Server) Stop() {
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

// WaitReady waits until /readyz answers with 200.
func (v *Server) WaitReady(ctx context.Context) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	transport := &http.Transport{TLSClientConfig: v.TLS.Clone(), Protocols: protocols}
	defer transport.CloseIdleConnections()
	var last error
	for end := time.Now().Add(startPatience); time.Now().Before(end); {
		attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
		last = v.ready(attempt, transport)
		cancel()
		if last == nil {
			return nil
		}
		for _, p := range v.procs {
			if err := p.ended(); err != nil {
				return err
			}
		}
		if err := Wait(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s is not ready after %v: %w", v.Name, startPatience, last)
}

// ready asks the server whether it is ready.
func (v *Server) ready(ctx context.Context, transport http.RoundTripper) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.URL+"/readyz", nil)
	if err != nil {
		return err
	}
	if v.Token != "" {
		req.Header.Set("Authorization", "Bearer "+v.Token)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("/readyz: %s: %s", resp.Status, text)
	}
	return err
}

// IsLocal reports whether the processes of the server are known, and so its CPU time and memory.
func (v *Server) IsLocal() bool { return len(v.procs) > 0 && KnowsProcesses }

// Wait waits for a time, or less if the context ends.
func Wait(ctx context.Context, d time.Duration) error {
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

// CPU returns the CPU time of all processes of the server in seconds.
func (v *Server) CPU() (seconds float64) {
	for _, p := range v.procs {
		for _, pid := range p.pids() {
			seconds += cpuTime(pid).Seconds()
		}
	}
	return seconds
}

// StoreCPU returns how much of CPU is of the processes that the API server keeps its
// objects in: etcd or PostgreSQL.
func (v *Server) StoreCPU() (seconds float64) {
	for _, p := range v.procs[:max(0, len(v.procs)-1)] {
		for _, pid := range p.pids() {
			seconds += cpuTime(pid).Seconds()
		}
	}
	return seconds
}

// Memory returns resident memory and its peak in MiB, of all processes of the server.
func (v *Server) Memory() (now, peak float64) {
	for _, p := range v.procs {
		for _, pid := range p.pids() {
			n, k := residentMemory(pid)
			now, peak = now+float64(n)/(1<<20), peak+float64(k)/(1<<20)
		}
	}
	return now, peak
}

// Settle waits until the server uses less than a tenth of a processor, for at most a time.
func (v *Server) Settle(ctx context.Context, most time.Duration) error {
	const window = 50 * time.Millisecond
	if !v.IsLocal() {
		return nil
	}
	for end := time.Now().Add(most); time.Now().Before(end); {
		before := v.CPU()
		if err := Wait(ctx, window); err != nil {
			return err
		}
		if v.CPU()-before < 0.1*window.Seconds() {
			break
		}
	}
	return nil
}

// SelfTime returns the CPU time of this process.
func SelfTime() time.Duration { return cpuTime(os.Getpid()) }
