package replicas

import (
	"bufio"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"k8s.io/client-go/util/keyutil"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/authn"
	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/internal/peertest"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/postgres"
)

// roleVariable names the role that the test binary plays when it is started again, and
// specVariable its configuration in JSON.
const (
	roleVariable = "KELSON_REPLICAS_ROLE"
	specVariable = "KELSON_REPLICAS_SPEC"
)

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVariable); role {
	case "":
		os.Exit(m.Run())
	case "etcd":
		play(runMember)
	case "server":
		play(runServer)
	default:
		fmt.Fprintln(os.Stderr, "unknown role", role)
		os.Exit(2)
	}
}

// play runs a role until the process gets SIGTERM, or its standard input ends: that is
// when the test that has started it is gone.
func play[Spec any](run func(ctx context.Context, spec Spec) error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	var spec Spec
	err := json.Unmarshal([]byte(os.Getenv(specVariable)), &spec)
	if err == nil {
		err = run(ctx, spec)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// addresses are what a process tells the test when it is ready.
type addresses struct{ Client, Peer string }

func (a addresses) tell() error { return json.NewEncoder(os.Stdout).Encode(a) }

// memberSpec configures an etcd member.
type memberSpec struct {
	Name, Dir string
	// Client and Peer are the addresses that others know the member by, those of
	// proxies. Cluster is the name and peer address of each member.
	Client, Peer string
	Cluster      map[string]string
	QuotaBytes   int64
	TLS          tlsFiles // of clients; none without them
}

// tlsFiles are the files with which etcd and servers know each other.
type tlsFiles struct {
	CA, Cert, Key string
	Client        string // certificate and key of clients
}

func (f tlsFiles) scheme() string {
	if f == (tlsFiles{}) {
		return "http"
	}
	return "https"
}

func runMember(ctx context.Context, spec memberSpec) error {
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = spec.Name, spec.Dir
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.UnsafeNoFsync, cfg.EnableGRPCGateway = true, false
	cfg.QuotaBackendBytes = spec.QuotaBytes
	cfg.ListenClientUrls = []url.URL{{Scheme: spec.TLS.scheme(), Host: "127.0.0.1:0"}}
	cfg.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.AdvertiseClientUrls = []url.URL{{Scheme: spec.TLS.scheme(), Host: spec.Client}}
	if spec.TLS != (tlsFiles{}) {
		cfg.ClientTLSInfo = transport.TLSInfo{TrustedCAFile: spec.TLS.CA, CertFile: spec.TLS.Cert, KeyFile: spec.TLS.Key, ClientCertAuth: true}
	}
	cfg.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: spec.Peer}}
	var cluster []string
	for name, address := range spec.Cluster {
		cluster = append(cluster, name+"=http://"+address)
	}
	cfg.InitialCluster = strings.Join(cluster, ",")
	// The times are etcd's own defaults: outages are measured with them.
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer server.Close()
	if err := (addresses{server.Clients[0].Addr().String(), server.Peers[0].Addr().String()}).tell(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-server.Err():
		return err
	}
}

// serverSpec configures a server.
type serverSpec struct {
	Dir       string
	Etcd      []string
	Postgres  string // the connection string, in place of Etcd
	Advertise string
	Shutdown  kelson.Shutdown
	TLS       tlsFiles // of etcd
	// Steps: the clock of the server goes ahead by 10 seconds with SIGUSR1 and by 10
	// minutes with SIGUSR2, and is right again with SIGHUP.
	Steps bool
}

// stepped returns a clock that signals set.
func stepped() func() time.Time {
	var ahead atomic.Int64
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP)
	go func() {
		for s := range signals {
			ahead.Store(int64(map[os.Signal]time.Duration{syscall.SIGUSR1: 10 * time.Second, syscall.SIGUSR2: 10 * time.Minute}[s]))
		}
	}()
	return func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
}

func runServer(ctx context.Context, spec serverSpec) error {
	port := 0
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	out, in := io.Pipe()
	go func() {
		// The greeting has the address.
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if _, after, ok := strings.Cut(lines.Text(), " at https://"); ok {
				_ = addresses{Client: strings.TrimSpace(after)}.tell()
			}
		}
	}()
	var now func() time.Time
	if spec.Steps {
		now = stepped()
	}
	config := controlplane.Config{
		Now: now, SecurePort: &port, DataDir: spec.Dir,
		Etcd:     etcd.Options{Endpoints: spec.Etcd, CompactInterval: -1, CAFile: spec.TLS.CA, CertFile: spec.TLS.Client, KeyFile: spec.TLS.Client},
		Serving:  kelson.Serving{AdvertiseAddress: net.ParseIP(spec.Advertise)},
		Shutdown: spec.Shutdown, Logger: log, Out: in,
	}
	if spec.Postgres != "" {
		config.Etcd = etcd.Options{}
		config.Postgres = postgres.Options{DSN: spec.Postgres, AllowNoSync: true, CompactInterval: -1}
	}
	return config.Run(ctx)
}

// process is a role that the test binary plays, and what it has written.
type process struct {
	name      string
	cmd       *exec.Cmd
	addresses addresses
	ended     chan struct{}
	stdin     io.Closer

	mu  sync.Mutex
	log strings.Builder
}

// startTimeout is how long a process may take to tell its addresses.
const startTimeout = time.Minute

// startProcess starts a program as a role: "" is the test binary itself.
func startProcess(t testing.TB, name, program, role string, spec any) *process {
	t.Helper()
	encoded, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if program == "" {
		if program, err = os.Executable(); err != nil {
			t.Fatal(err)
		}
	}
	p := &process{name: name, cmd: exec.Command(program), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), roleVariable+"="+role, specVariable+"="+string(encoded), "GORACE=atexit_sleep_ms=0")
	told := make(chan error, 1)
	p.start(t, func(stdout io.Reader) { told <- json.NewDecoder(stdout).Decode(&p.addresses) })
	select {
	case err := <-told:
		if err != nil {
			t.Fatalf("%s does not start: %v\n%s", name, err, p.tail())
		}
	case <-time.After(startTimeout):
		t.Fatalf("%s has told no address after %v\n%s", name, startTimeout, p.tail())
	}
	return p
}

// start starts the process, which ends with the test, and passes its output to read.
func (p *process) start(t testing.TB, read func(stdout io.Reader)) {
	t.Helper()
	stdout, err := p.cmd.StdoutPipe()
	if err == nil {
		p.stdin, err = p.cmd.StdinPipe()
	}
	p.cmd.Stderr = p
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		read(stdout)
		_, _ = io.Copy(io.Discard, stdout)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s wrote:\n%s", p.name, p.tail())
		}
	})
}

// startKubeAPIServer starts kube-apiserver in place of a server with a configuration.
func startKubeAPIServer(t testing.TB, name string, spec serverSpec) *process {
	t.Helper()
	port := peertest.FreePort(t)
	// It does not read a public key out of a private one in PKCS #8.
	private, err := os.ReadFile(filepath.Join(spec.Dir, "pki", "sa.key"))
	if err != nil {
		t.Fatal(err)
	}
	signer, err := keyutil.ParsePrivateKeyPEM(private)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(signer.(crypto.Signer).Public())
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(spec.Dir, "pki", name) }
	if err := os.WriteFile(file("sa.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &process{name: name, ended: make(chan struct{}), addresses: addresses{Client: fmt.Sprintf("127.0.0.1:%d", port)}}
	p.cmd = exec.Command(peertest.Binary(t, "kube-apiserver"),
		"--etcd-servers="+strings.Join(spec.Etcd, ","), "--bind-address=127.0.0.1", "--advertise-address="+spec.Advertise, fmt.Sprintf("--secure-port=%d", port),
		"--cert-dir="+filepath.Join(spec.Dir, "kube-apiserver"), "--tls-cert-file="+file("server.pem"), "--tls-private-key-file="+file("server.pem"),
		"--client-ca-file="+file("ca.crt"), "--authorization-mode=Node,RBAC", "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer="+authn.DefaultIssuer, "--service-account-key-file="+file("sa.pub"), "--service-account-signing-key-file="+file("sa.key"),
		"--etcd-compaction-interval=0", "--disable-admission-plugins=ServiceAccount", // which needs a controller
		"--shutdown-delay-duration="+spec.Shutdown.Delay.String(), "--shutdown-watch-termination-grace-period="+spec.Shutdown.Delay.String())
	p.start(t, func(io.Reader) {})
	return p
}

// Write implements io.Writer for the standard error of the process.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

// tail returns the last lines that the process has written.
func (p *process) tail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := p.log.String()
	return text[max(0, len(text)-8<<10):]
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill ends the process without notice.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// stop ends the process in good order.
func (p *process) stop(t testing.TB) {
	t.Helper()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(startTimeout):
		t.Errorf("%s does not end\n%s", p.name, p.tail())
		p.kill()
	}
}
