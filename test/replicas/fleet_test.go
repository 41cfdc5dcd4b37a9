package replicas

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/storage/postgres/pgtest"
)

// size is the number of servers and of etcd members.
const size = 3

// steppedServer is the server whose clock can be set.
const steppedServer = 2

// kubeAPIServer stands for the program of that name.
const kubeAPIServer = "kube-apiserver"

// fleet is three servers on three etcd members, or on one PostgreSQL, with a proxy in front of
// each.
type fleet struct {
	owner *testing.T // processes live as long as it
	t     *testing.T // the test that runs now
	dir   string
	// history is what the store itself says about its changes.
	history history
	// db is the PostgreSQL, nil on etcd. Server i reaches it by way of links[i][0].
	db *pgtest.DB

	members [size]*process
	ids     [size]uint64 // of members, in etcd
	// peers are the proxies by which other members reach a member, direct those by
	// which the test does.
	peers, direct [size]*proxy
	// links[i][j] is the proxy by which server i reaches member j.
	links   [size][size]*proxy
	servers [size]*process
	fronts  [size]*proxy // by which clients reach a server
	config  *rest.Config // of an administrator, without a host
	etcd    *clientv3.Client
	// lostServices is the number of services whose creation or deletion has an unknown
	// outcome: their addresses may be reserved.
	lostServices int
	spec         func(*serverSpec) // changes how servers are started
	// program is what servers are started from: a test binary of this package, "" this one,
	// or kubeAPIServer.
	program string
	quota   int64
	tls     tlsFiles // of etcd; none without them
}

// newFleet starts all processes, with three etcd members, and waits until all servers are
// ready.
func newFleet(t *testing.T, change ...func(*fleet)) *fleet {
	t.Helper()
	f := &fleet{owner: t, t: t, dir: t.TempDir(), spec: func(*serverSpec) {}}
	for _, c := range change {
		c(f)
	}
	for j := range size {
		f.peers[j], f.direct[j] = newProxy(t), newProxy(t)
		f.peers[j].set(func() { f.peers[j].from = senderOf })
	}
	var starting sync.WaitGroup
	for j := range size {
		starting.Go(func() { f.startMember(j) })
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	var endpoints []string
	for j := range size {
		endpoints = append(endpoints, f.tls.scheme()+"://"+f.direct[j].addr())
	}
	clients, err := f.tls.clientConfig()
	if err != nil {
		t.Fatal(err)
	}
	f.etcd, err = clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(), TLS: clients})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.etcd.Close() })
	for j := range size {
		f.ids[j] = f.status(j).Header.MemberId
	}
	f.history = etcdHistory{f.etcd}
	for i := range size {
		for j := range size {
			f.links[i][j] = newProxy(t)
			f.links[i][j].forward(f.members[j].addresses.Client)
		}
	}
	f.startServers()
	return f
}

// startServers starts all servers, and waits until they are ready.
func (f *fleet) startServers() {
	t := f.owner
	t.Helper()
	// All servers have the same keys and certificates.
	shared := filepath.Join(f.dir, "pki")
	if _, err := pki.Open(shared); err != nil {
		t.Fatal(err)
	}
	for i := range size {
		if err := os.CopyFS(filepath.Join(f.serverDir(i), "pki"), os.DirFS(shared)); err != nil {
			t.Fatal(err)
		}
		f.fronts[i] = newProxy(t)
	}
	f.startServer(0) // alone: it writes what every cluster has
	var err error
	f.config, err = clientcmd.BuildConfigFromFlags("", controlplane.KubeconfigFile(f.serverDir(0)))
	if err != nil {
		t.Fatal(err)
	}
	f.config.QPS = -1
	f.awaitReady(0)
	var starting sync.WaitGroup
	for i := 1; i < size; i++ {
		starting.Go(func() { f.startServer(i) })
	}
	starting.Wait()
	for i := 1; i < size; i++ {
		f.awaitReady(i)
	}
}

func (f *fleet) serverDir(i int) string { return filepath.Join(f.dir, fmt.Sprintf("server%d", i)) }

func (f *fleet) startMember(j int) {
	cluster := map[string]string{}
	for k := range size {
		cluster[fmt.Sprintf("m%d", k)] = f.peers[k].addr()
	}
	name := fmt.Sprintf("m%d", j)
	f.members[j] = startProcess(f.owner, "etcd member "+name, "", "etcd", memberSpec{
		Name: name, Dir: filepath.Join(f.dir, name), Client: f.direct[j].addr(), Peer: f.peers[j].addr(), Cluster: cluster, QuotaBytes: f.quota, TLS: f.tls,
	})
	f.peers[j].forward(f.members[j].addresses.Peer)
	f.direct[j].forward(f.members[j].addresses.Client)
	for i := range size {
		if f.links[i][j] != nil {
			f.links[i][j].forward(f.members[j].addresses.Client)
		}
	}
}

func (f *fleet) startServer(i int) {
	spec := serverSpec{Dir: f.serverDir(i), Advertise: fmt.Sprintf("192.0.2.%d", i+1), TLS: f.tls, Steps: i == steppedServer}
	if f.db != nil {
		spec.Postgres = fmt.Sprintf("postgres://kelson@%s/postgres?sslmode=disable", f.links[i][0].addr())
	}
	for j := range size {
		if f.db != nil {
			break
		}
		// Servers prefer different members.
		spec.Etcd = append(spec.Etcd, f.tls.scheme()+"://"+f.links[i][(i+j)%size].addr())
	}
	f.spec(&spec)
	name := fmt.Sprintf("server %d", i)
	if f.program == kubeAPIServer {
		f.servers[i] = startKubeAPIServer(f.owner, name, spec)
	} else {
		f.servers[i] = startProcess(f.owner, name, f.program, "server", spec)
	}
	f.fronts[i].forward(f.servers[i].addresses.Client)
}

// withShutdown sets how servers end.
func withShutdown(s kelson.Shutdown) func(*fleet) {
	return func(f *fleet) { f.spec = func(spec *serverSpec) { spec.Shutdown = s } }
}

// client returns a client of one server.
func (f *fleet) client(i int) *kubernetes.Clientset {
	f.t.Helper()
	client, err := kubernetes.NewForConfig(f.configOf(i))
	if err != nil {
		f.t.Fatal(err)
	}
	return client
}

// configOf returns the configuration of clients of one server, which have connections of
// their own.
func (f *fleet) configOf(i int) *rest.Config {
	config := rest.CopyConfig(f.config)
	config.Host = "https://" + f.fronts[i].addr()
	config.Dial = dialer()
	return config
}

// awaitReady waits until a server is ready.
func (f *fleet) awaitReady(i int) {
	f.t.Helper()
	client := f.client(i)
	ctx, cancel := context.WithTimeout(f.t.Context(), startTimeout)
	defer cancel()
	var err error
	for ctx.Err() == nil {
		if err = client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err == nil {
			return
		}
		pause(20 * time.Millisecond)
	}
	f.t.Fatalf("server %d is not ready after %v: %v\n%s", i, startTimeout, err, f.servers[i].tail())
}

func (f *fleet) status(j int) *pb.StatusResponse {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 10*time.Second)
	defer cancel()
	for {
		resp, err := f.etcd.Status(ctx, f.tls.scheme()+"://"+f.direct[j].addr())
		if err == nil {
			return (*pb.StatusResponse)(resp)
		}
		if ctx.Err() != nil {
			f.t.Fatalf("etcd member %d: %v", j, err)
		}
		pause(20 * time.Millisecond)
	}
}

// leader returns the member that leads, besides those that are named.
func (f *fleet) leader(besides ...int) int {
	f.t.Helper()
	skip := map[int]bool{}
	for _, j := range besides {
		skip[j] = true
	}
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); pause(20 * time.Millisecond) {
		for j := range size {
			if skip[j] {
				continue
			}
			lead := f.status(j).Leader
			for k, id := range f.ids {
				if id == lead && !skip[k] {
					return k
				}
			}
		}
	}
	f.t.Fatalf("no leader after %v", startTimeout)
	return -1
}

// senderOf returns the ID of the member that has opened a connection between members, by
// the header that etcd sends with its first request.
func senderOf(first []byte) uint64 {
	_, after, _ := bytes.Cut(first, []byte("X-Server-From: "))
	text, _, _ := strings.Cut(string(after), "\r")
	id, _ := strconv.ParseUint(text, 16, 64)
	return id
}

// partition cuts a member off from the other members, but not from servers.
func (f *fleet) partition(j int) {
	f.peers[j].mute()
	for k := range size {
		if k != j {
			f.peers[k].set(func() { f.peers[k].isolated[f.ids[j]] = true })
		}
	}
}

// freeze stops a process as SIGSTOP does; thaw lets it go on.
func (p *process) freeze() { p.signal(syscall.SIGSTOP) }
func (p *process) thaw()   { p.signal(syscall.SIGCONT) }

// heal removes all impairments of the network.
func (f *fleet) heal() {
	proxies := slices.Concat(f.peers[:], f.direct[:], f.fronts[:])
	for i := range size {
		proxies = append(proxies, f.links[i][:]...)
	}
	for _, p := range proxies {
		if p != nil { // PostgreSQL has no members
			p.heal()
		}
	}
}

// cutOff separates a server from all members, by silence or by refusal.
func (f *fleet) cutOff(i int, refuse bool) {
	for j := range size {
		if refuse {
			f.links[i][j].refuse()
		} else {
			f.links[i][j].mute()
		}
	}
}
