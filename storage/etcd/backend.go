// Package etcd is a storage.Backend on etcd v3.
//
// It needs etcd 3.5.13 or newer. In older servers watches that lag can lose
// events to a compaction, and progress can be announced ahead of events or not
// at all.
//
// Keys and values are stored as they are given, so the store can be shared
// with other programs that use the same layout, kube-apiserver above all: the
// periodic compaction follows its protocol too.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apikeel/kelson/storage"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
)

const (
	// maxSendBytes lets the largest write that the contract allows leave this
	// process; how much etcd takes is for etcd to say.
	maxSendBytes = storage.MaxValueBytes + 1<<20

	// closeGrace is how long Close waits for writes under way.
	closeGrace = 10 * time.Second

	// reconnectGrace is how long a write waits for a connection, asking every
	// reconnectPoll. It is about what etcd's client takes to give up on a read.
	reconnectGrace = 2500 * time.Millisecond
	reconnectPoll  = 25 * time.Millisecond
)

// Backend is a storage.Backend on etcd.
type Backend struct {
	opts   Options
	client *clientv3.Client
	kv     clientv3.KV
	log    *slog.Logger
	grace  time.Duration // reconnectGrace, unless in a test

	revision  *revisionReader
	leases    *leasePool
	history   *history
	compactor *compactor

	// ctx ends when Close is called, with storage.ErrClosed as its cause.
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	closed   bool
	watchers map[*watcher]struct{}
	// writes and tasks, of which there are no new ones once closed is set: the
	// writes under way, and goroutines that end by themselves when ctx does.
	writes, tasks sync.WaitGroup
}

var _ storage.Backend = (*Backend)(nil)

// Open connects to etcd. It fails when no endpoint answers within the dial
// timeout.
func Open(ctx context.Context, opts Options) (*Backend, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	tlsConfig, err := opts.tlsConfig()
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            opts.Endpoints,
		TLS:                  tlsConfig,
		DialTimeout:          opts.DialTimeout,
		DialKeepAliveTime:    opts.KeepAliveTime,
		DialKeepAliveTimeout: opts.KeepAliveTimeout,
		MaxCallSendMsgSize:   maxSendBytes,
		MaxCallRecvMsgSize:   math.MaxInt32,
		Logger:               zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(traced, call),
			// gRPC's own limit, two minutes, is long for a server that is back.
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
				MinConnectTimeout: opts.DialTimeout,
			}),
			opts.dialer(),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	version, err := probe(ctx, client, opts)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	if outdated(version) {
		opts.Logger.Warn("etcd is older than 3.5.13 and may lose watch events", "version", version)
	}

	b := &Backend{
		opts:     opts,
		client:   client,
		kv:       client,
		log:      opts.Logger,
		grace:    reconnectGrace,
		watchers: make(map[*watcher]struct{}),
	}
	b.ctx, b.cancel = context.WithCancelCause(context.Background())
	b.revision = newRevisionReader(b.ctx, b.spawn, b.readRevision)
	b.leases = newLeasePool(client, opts.LeaseReuse, opts.LeaseMaxKeys)
	b.history = newHistory()
	b.compactor = &compactor{b: b}
	if opts.CompactInterval > 0 {
		b.spawn(func() { b.compactor.run(b.ctx, opts.CompactInterval) })
	}
	return b, nil
}

// probe waits until some endpoint answers, and returns its version.
func probe(ctx context.Context, client *clientv3.Client, opts Options) (string, error) {
	dialCtx, cancel := context.WithTimeout(ctx, opts.DialTimeout)
	defer cancel()
	maintenance := pb.NewMaintenanceClient(client.ActiveConnection())
	var last error
	for {
		resp, err := maintenance.Status(dialCtx, &pb.StatusRequest{})
		if err == nil {
			return resp.Version, nil
		}
		// Once a connection was refused, that it did not come up before the
		// deadline says less than why.
		if last == nil || dialCtx.Err() == nil {
			last = err
		}
		if code := codeOf(err); code != codes.Unavailable && dialCtx.Err() == nil {
			return "", fmt.Errorf("etcd: %s: %w", strings.Join(opts.Endpoints, ", "), err)
		}
		select {
		case <-dialCtx.Done():
			if err := ctx.Err(); err != nil {
				return "", fmt.Errorf("etcd: connect to %s: %w", strings.Join(opts.Endpoints, ", "), err)
			}
			return "", fmt.Errorf("etcd: no answer from %s within %v: %w: %w",
				strings.Join(opts.Endpoints, ", "), opts.DialTimeout, storage.ErrUnavailable, last)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// outdated reports whether a version is one that this package should not be
// used with; of what is not a version it does not know.
func outdated(version string) bool {
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); err != nil {
		return false
	}
	return slices.Compare([]int{major, minor, patch}, []int{3, 5, 13}) < 0
}

// Revision returns the current revision. Callers that wait at the same time
// share a request to etcd.
func (b *Backend) Revision(ctx context.Context) (int64, error) {
	if err := b.usable(ctx); err != nil {
		return 0, err
	}
	return b.revision.get(ctx)
}

// readRevision asks etcd. The key is never written, and lies in the range that
// a user of etcd restricted to Kubernetes objects may read.
func (b *Backend) readRevision(ctx context.Context) (int64, error) {
	resp, err := b.kv.Get(ctx, b.place(storage.Root), clientv3.WithCountOnly())
	if err != nil {
		return 0, b.readError(ctx, err)
	}
	return resp.Header.Revision, nil
}

// Progress asks etcd to report, on the stream of every watcher, how far it is.
// A watcher without a connection asks when it has one.
func (b *Backend) Progress(ctx context.Context) error {
	if err := b.usable(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.watchers {
		w.requestProgress()
	}
	return nil
}

// Status describes the etcd cluster. Sizes are those of one member, whichever
// answers.
func (b *Backend) Status(ctx context.Context) (storage.Status, error) {
	revision, err := b.Revision(ctx)
	if err != nil {
		return storage.Status{}, err
	}
	if err := b.history.learn(ctx, b); err != nil {
		return storage.Status{}, err
	}
	member, err := pb.NewMaintenanceClient(b.client.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return storage.Status{}, b.readError(ctx, err)
	}
	return storage.Status{
		Engine:          "etcd",
		Revision:        revision,
		CompactRevision: max(b.history.oldest.Load(), b.compactor.seen.Load()),
		SizeBytes:       member.DbSize,
		SizeLimitBytes:  member.DbSizeQuota,
		ReadOnly:        alarm(member),
	}, nil
}

// alarm returns why the cluster refuses writes, or nil. A member lists its
// alarms, in the text form of a protobuf message, among its errors; to ask for
// them as such would append to the cluster's log on every call.
func alarm(member *pb.StatusResponse) error {
	for _, e := range member.Errors {
		switch {
		case strings.Contains(e, pb.AlarmType_CORRUPT.String()):
			return fmt.Errorf("%w: etcd reports that its members differ (alarm CORRUPT): restore the broken member, then disarm the alarm", storage.ErrReadOnly)
		case strings.Contains(e, pb.AlarmType_NOSPACE.String()):
			return fmt.Errorf("%w: etcd uses %d bytes, %d of them for live data (alarm NOSPACE): compact, defragment or raise --quota-backend-bytes, then disarm the alarm",
				storage.ErrNoSpace, member.DbSize, member.DbSizeInUse)
		}
	}
	return nil
}

// Close ends all watchers, waits for writes under way and closes the
// connections. Calls that come later fail with ErrClosed.
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.mu.Unlock()
	b.cancel(storage.ErrClosed)

	written := make(chan struct{})
	go func() {
		b.writes.Wait()
		close(written)
	}()
	select {
	case <-written:
	case <-time.After(closeGrace):
		b.log.Warn("closing etcd connections while writes wait for an answer")
	}
	b.tasks.Wait()
	err := b.client.Close()
	// Without connections, the last writes have failed.
	<-written
	return err
}

// usable returns why a call cannot be served, if so.
func (b *Backend) usable(ctx context.Context) error {
	if b.ctx.Err() != nil {
		return storage.ErrClosed
	}
	return ctx.Err()
}

// spawn runs a task, unless the backend is closed.
func (b *Backend) spawn(task func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.tasks.Go(task)
	return true
}

// beginWrite makes Close wait for the write that follows, until endWrite.
func (b *Backend) beginWrite(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return storage.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	b.writes.Add(1)
	return nil
}

func (b *Backend) endWrite() { b.writes.Done() }
