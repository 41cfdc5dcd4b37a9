package replicas

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/storage/etcd"
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
	return controlplane.Config{
		Now: now, SecurePort: &port, DataDir: spec.Dir,
		Etcd:     etcd.Options{Endpoints: spec.Etcd, CompactInterval: -1, CAFile: spec.TLS.CA, CertFile: spec.TLS.Client, KeyFile: spec.TLS.Client},
		Serving:  kelson.Serving{AdvertiseAddress: net.ParseIP(spec.Advertise)},
		Shutdown: spec.Shutdown, Logger: log, Out: in,
	}.Run(ctx)
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

func startProcess(t testing.TB, name, role string, spec any) *process {
	t.Helper()
	encoded, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{name: name, cmd: exec.Command(self), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), roleVariable+"="+role, specVariable+"="+string(encoded), "GORACE=atexit_sleep_ms=0")
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
	told := make(chan error, 1)
	go func() {
		defer close(p.ended)
		told <- json.NewDecoder(stdout).Decode(&p.addresses)
		_, _ = io.Copy(io.Discard, stdout)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s wrote:\n%s", name, p.tail())
		}
	})
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
