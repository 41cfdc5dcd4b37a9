// Package etcdtest runs real etcd inside a test, from etcd's own server
// library: no binary to install, no port to reserve.
//
//	cluster := etcdtest.Start(t)                      // one member
//	cluster := etcdtest.Start(t, etcdtest.Members(3)) // three
//	backend, err := etcd.Open(ctx, etcd.Options{Endpoints: cluster.Endpoints()})
//
// The cluster lives until the test ends. Members can be stopped, killed and started
// again with their data. Their endpoints stay the same: clients and peers reach a
// member through a TCP forwarder that keeps its port. No port is released and reused,
// so tests that run in parallel do not disturb each other.
//
// Unless Fsync is given, etcd does not wait for the disk: a member survives
// Stop and Kill, but would not survive a power cut.
package etcdtest

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// startTimeout is how long members may take to start and agree on a leader,
// on a machine that is busy with other tests.
const startTimeout = 60 * time.Second

// Option changes how Start sets up the cluster.
type Option func(*settings)

type settings struct {
	members   int
	fsync     bool
	tls       bool
	configure []func(*embed.Config)
}

// Members sets the number of members; the default is one.
func Members(n int) Option { return func(s *settings) { s.members = n } }

// Fsync makes etcd wait for the disk as it does in production. Use it in
// benchmarks; tests are faster without.
func Fsync() Option { return func(s *settings) { s.fsync = true } }

// TLS makes the members serve clients over TLS and demand a client
// certificate, from an authority made for this cluster; see Cluster.TLSFiles.
func TLS() Option { return func(s *settings) { s.tls = true } }

// Configure changes the configuration of every member before it starts, for
// what has no option of its own.
func Configure(f func(*embed.Config)) Option {
	return func(s *settings) { s.configure = append(s.configure, f) }
}

// Cluster is an etcd cluster inside the test process. Its methods must be
// called from the test's goroutine: they end the test when etcd fails.
type Cluster struct {
	tb      testing.TB
	opts    settings
	files   TLSFiles
	members []*member
}

// member is one etcd server, running or not, and the addresses it keeps.
type member struct {
	name         string
	dir          string
	client, peer *forwarder
	server       *embed.Etcd // nil while stopped
}

// Start starts a cluster and waits until it serves. It is closed and its data
// removed when the test ends.
func Start(tb testing.TB, opts ...Option) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb, opts: settings{members: 1}}
	for _, o := range opts {
		o(&c.opts)
	}
	if c.opts.tls {
		c.files = makeTLSFiles(tb)
	}
	// TempDir before Cleanup: cleanups run in reverse order, so the folder is removed
	// after the servers have stopped.
	dir := tb.TempDir()
	tb.Cleanup(c.close)
	all := make([]int, c.opts.members)
	for i := range all {
		all[i] = i
		m := &member{name: fmt.Sprintf("m%d", i), dir: filepath.Join(dir, fmt.Sprintf("m%d", i))}
		c.members = append(c.members, m)
		var err error
		if m.client, err = newForwarder(); err == nil {
			m.peer, err = newForwarder()
		}
		if err != nil {
			tb.Fatalf("etcdtest: %v", err)
		}
	}
	c.Restart(all...)
	return c
}

// Endpoints returns the client URLs of all members, running or not.
func (c *Cluster) Endpoints() []string {
	var urls []string
	for _, m := range c.members {
		urls = append(urls, c.clientURL(m).String())
	}
	return urls
}

// TLSFiles returns the certificates of a cluster started with TLS.
func (c *Cluster) TLSFiles() TLSFiles { return c.files }

// Client returns an etcd client for all members, closed when tb ends.
func (c *Cluster) Client(tb testing.TB) *clientv3.Client {
	tb.Helper()
	cfg := clientv3.Config{Endpoints: c.Endpoints(), DialTimeout: startTimeout, Logger: zap.NewNop()}
	if c.opts.tls {
		cfg.TLS = c.files.clientConfig(tb)
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		tb.Fatalf("etcdtest: client: %v", err)
	}
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// Server returns the etcd server of member i, or nil while it is stopped.
func (c *Cluster) Server(i int) *embed.Etcd { return c.members[i].server }

// Leader waits until the running members agree on a leader and returns its
// index.
func (c *Cluster) Leader() int {
	c.tb.Helper()
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		leader, agreed := -1, true
		var id uint64
		for i, m := range c.members {
			if m.server == nil {
				continue
			}
			lead := uint64(m.server.Server.Leader())
			agreed = agreed && lead != 0 && (id == 0 || id == lead)
			id = lead
			if lead == uint64(m.server.Server.MemberID()) {
				leader = i
			}
		}
		if agreed && leader >= 0 {
			return leader
		}
	}
	c.tb.Fatalf("etcdtest: no leader within %v", startTimeout)
	return -1
}

// Stop shuts a member down in good order: a leader hands over first. Its
// clients are disconnected at once. The data is kept.
func (c *Cluster) Stop(i int) { c.members[i].stop(false) }

// Kill takes a member away without notice, as if its process had been killed:
// all connections break first, and nothing is handed over. The data is kept.
func (c *Cluster) Kill(i int) { c.members[i].stop(true) }

// Freeze makes a member stop answering clients, as if its process were stopped with
// SIGSTOP: connections stay open and new ones are accepted, but no data is passed on.
func (c *Cluster) Freeze(i int) { c.members[i].client.freeze() }

// Restart starts stopped members with the data and the addresses they had and
// waits until they serve. With more than one member, enough must be running or
// restarting for a quorum.
func (c *Cluster) Restart(members ...int) {
	c.tb.Helper()
	// The members of a new cluster start together, since they must elect a leader.
	for _, i := range members {
		m := c.members[i]
		if m.server != nil {
			c.tb.Fatalf("etcdtest: %s is running", m.name)
		}
		server, err := embed.StartEtcd(c.config(m))
		if err != nil {
			c.tb.Fatalf("etcdtest: start %s: %v", m.name, err)
		}
		m.server = server
		m.peer.forward(server.Peers[0].Addr().String())
	}
	timeout := time.After(startTimeout)
	for _, i := range members {
		m := c.members[i]
		select {
		case <-m.server.Server.ReadyNotify():
			m.client.forward(m.server.Clients[0].Addr().String())
		case err := <-m.server.Err():
			c.tb.Fatalf("etcdtest: %s: %v", m.name, err)
		case <-timeout:
			c.tb.Fatalf("etcdtest: %s is not ready after %v", m.name, startTimeout)
		}
	}
}

func (c *Cluster) clientURL(m *member) *url.URL {
	scheme := "http"
	if c.opts.tls {
		scheme = "https"
	}
	return &url.URL{Scheme: scheme, Host: m.client.addr()}
}

func peerURL(m *member) *url.URL { return &url.URL{Scheme: "http", Host: m.peer.addr()} }

func (c *Cluster) config(m *member) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = m.name, m.dir
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.UnsafeNoFsync = !c.opts.fsync
	cfg.EnableGRPCGateway = false
	// Else a watch may read from the database that has been closed already, which panics.
	cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.WaitForHandlers(true)}
	// etcd listens on any free port; clients and peers know the addresses of the
	// forwarders.
	advertised := c.clientURL(m)
	cfg.ListenClientUrls = []url.URL{{Scheme: advertised.Scheme, Host: "127.0.0.1:0"}}
	cfg.AdvertiseClientUrls = []url.URL{*advertised}
	cfg.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.AdvertisePeerUrls = []url.URL{*peerURL(m)}
	var initial []string
	for _, other := range c.members {
		initial = append(initial, other.name+"="+peerURL(other).String())
	}
	cfg.InitialCluster = strings.Join(initial, ",")
	// A lone member elects itself, so the election timeout is only a delay. Several
	// members need one that is longer than scheduling delays on a busy machine.
	cfg.TickMs, cfg.ElectionMs = 10, 50
	if len(c.members) > 1 {
		cfg.TickMs, cfg.ElectionMs = 50, 500
	}
	if c.opts.tls {
		cfg.ClientTLSInfo.TrustedCAFile = c.files.CA
		cfg.ClientTLSInfo.CertFile = c.files.serverCert
		cfg.ClientTLSInfo.KeyFile = c.files.serverKey
		cfg.ClientTLSInfo.ClientCertAuth = true
	}
	for _, f := range c.opts.configure {
		f(cfg)
	}
	return cfg
}

func (m *member) stop(kill bool) {
	if m.server == nil {
		return
	}
	// Clients first: etcd waits for their watches to end.
	m.client.refuse()
	if kill {
		m.peer.refuse()
		m.server.Server.HardStop()
	}
	m.server.Close()
	m.peer.refuse()
	m.server = nil
}

func (c *Cluster) close() {
	for _, m := range c.members {
		// kill: there is nobody to transfer the leadership to.
		m.stop(true)
		err := errors.Join(m.client.close(), m.peer.close())
		if err != nil {
			c.tb.Logf("etcdtest: %v", err)
		}
	}
}
