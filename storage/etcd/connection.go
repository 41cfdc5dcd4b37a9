package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
)

const (
	// connectTimeout bounds an attempt to connect to a member, unless
	// Options.DialTimeout is shorter. connectBackoff is the longest time between two
	// attempts: a server whose etcd is back should not wait long to notice.
	connectTimeout = 3 * time.Second
	connectBackoff = 500 * time.Millisecond
)

// connection is the link to a member: an etcd client for one endpoint. reset replaces the
// client by a new one, since gRPC has no other way to give up a connection on which
// nothing arrives.
type connection struct {
	newClient func() (*clientv3.Client, error)
	probeKey  string // the key that the read probe counts
	current   atomic.Pointer[clientv3.Client]
	closed    atomic.Bool
}

var _ link = (*connection)(nil)

// dialMember returns a link to one endpoint. It does not wait for the connection.
func dialMember(opts Options, tlsConfig *tls.Config, endpoint, probeKey string, trust *trust) (*connection, error) {
	c := &connection{probeKey: probeKey, newClient: func() (*clientv3.Client, error) {
		return clientv3.New(clientv3.Config{
			Endpoints:            []string{endpoint},
			TLS:                  tlsConfig,
			DialTimeout:          opts.DialTimeout,
			DialKeepAliveTime:    opts.KeepAliveTime,
			DialKeepAliveTimeout: opts.KeepAliveTimeout,
			MaxCallSendMsgSize:   maxSendBytes,
			MaxCallRecvMsgSize:   math.MaxInt32,
			MaxUnaryRetries:      1, // members.read goes to another member instead
			Logger:               zap.NewNop(),
			DialOptions: []grpc.DialOption{
				grpc.WithChainUnaryInterceptor(traceCall, trust.intercept, failFast),
				grpc.WithConnectParams(grpc.ConnectParams{
					Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: connectBackoff},
					MinConnectTimeout: min(opts.DialTimeout, connectTimeout),
				}),
				opts.dialer(),
			},
		})
	}}
	client, err := c.newClient()
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	c.current.Store(client)
	return c, nil
}

func (c *connection) client() *clientv3.Client { return c.current.Load() }

func (c *connection) isReady() bool {
	return c.client().ActiveConnection().GetState() == connectivity.Ready
}

func (c *connection) connected(ctx context.Context) bool {
	for ctx.Err() == nil {
		conn := c.client().ActiveConnection()
		state := conn.GetState()
		if state == connectivity.Ready {
			return true
		}
		conn.Connect() // in case it is idle
		conn.WaitForStateChange(ctx, state)
	}
	return false
}

func (c *connection) lost(ctx context.Context) {
	client := c.client()
	conn := client.ActiveConnection()
	for state := conn.GetState(); state == connectivity.Ready; state = conn.GetState() {
		if !conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

func (c *connection) ping(ctx context.Context) error {
	_, err := pb.NewMaintenanceClient(c.client().ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	return err
}

func (c *connection) read(ctx context.Context) (term uint64, err error) {
	resp, err := c.client().Get(ctx, c.probeKey, clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return resp.Header.RaftTerm, nil
}

func (c *connection) reset() {
	client, err := c.newClient()
	if err != nil {
		return // the options were good before: the old connection has to do
	}
	old := c.current.Swap(client)
	_ = closeClient(old)
	if c.closed.Load() {
		_ = closeClient(client)
	}
}

func (c *connection) close() error {
	c.closed.Store(true)
	return closeClient(c.client())
}

// closeClient closes a client, which reports as an error that its own context has ended.
func closeClient(client *clientv3.Client) error {
	if err := client.Close(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// memberKV makes the requests for keys to one member or another.
type memberKV struct{ *members }

// kvClient is the part of clientv3.KV that the backend uses.
type kvClient interface {
	Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error)
	Txn(ctx context.Context) clientv3.Txn
	Compact(ctx context.Context, revision int64, opts ...clientv3.CompactOption) (*clientv3.CompactResponse, error)
}

func (kv memberKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (resp *clientv3.GetResponse, err error) {
	err = kv.members.read(ctx, func(ctx context.Context, client *clientv3.Client) (err error) {
		resp, err = client.Get(ctx, key, opts...)
		return err
	})
	return resp, err
}

func (kv memberKV) Compact(ctx context.Context, revision int64, opts ...clientv3.CompactOption) (resp *clientv3.CompactResponse, err error) {
	err = kv.members.write(ctx, func(ctx context.Context, client *clientv3.Client) (err error) {
		resp, err = client.Compact(ctx, revision, opts...)
		return err
	})
	return resp, err
}

func (kv memberKV) Txn(ctx context.Context) clientv3.Txn { return &memberTxn{ctx: ctx, kv: kv} }

// memberTxn is a transaction whose member is chosen when it is committed.
type memberTxn struct {
	ctx       context.Context
	kv        memberKV
	cmps      []clientv3.Cmp
	then, els []clientv3.Op
}

func (t *memberTxn) If(cmps ...clientv3.Cmp) clientv3.Txn { t.cmps = cmps; return t }
func (t *memberTxn) Then(ops ...clientv3.Op) clientv3.Txn { t.then = ops; return t }
func (t *memberTxn) Else(ops ...clientv3.Op) clientv3.Txn { t.els = ops; return t }

func (t *memberTxn) Commit() (resp *clientv3.TxnResponse, err error) {
	err = t.kv.members.write(t.ctx, func(ctx context.Context, client *clientv3.Client) (err error) {
		resp, err = client.Txn(ctx).If(t.cmps...).Then(t.then...).Else(t.els...).Commit()
		return err
	})
	return resp, err
}

// memberLeases grants leases by one member or another. A lease that was granted although
// no answer came expires unused.
type memberLeases struct{ *members }

func (l memberLeases) Grant(ctx context.Context, ttl int64) (resp *clientv3.LeaseGrantResponse, err error) {
	err = l.members.read(ctx, func(ctx context.Context, client *clientv3.Client) (err error) {
		resp, err = client.Grant(ctx, ttl)
		return err
	})
	return resp, err
}

func (l memberLeases) timeToLive(ctx context.Context, id clientv3.LeaseID) (resp *clientv3.LeaseTimeToLiveResponse, err error) {
	err = l.members.read(ctx, func(ctx context.Context, client *clientv3.Client) (err error) {
		resp, err = client.TimeToLive(ctx, id)
		return err
	})
	return resp, err
}
