// Package etcd is a storage.Backend on etcd v3. Start at Open and Backend. The package
// never changes keys or values, so the store can be shared with other programs that use
// the same layout, kube-apiserver above all; the periodic compaction follows its
// protocol too (compact.go).
//
// It needs etcd 3.5.13 or newer: older servers can lose events of watches that lag
// behind a compaction, and can send progress notifications ahead of events or not at
// all.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apikeel/kelson/storage"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

const (
	// maxSendBytes is gRPC's limit for requests, large enough for every write that the
	// contract allows. etcd has a limit of its own.
	maxSendBytes = storage.MaxValueBytes + 1<<20

	// closeGrace is how long Close waits for writes in flight.
	closeGrace = 10 * time.Second

	// reconnectGrace is how long a request waits for a connection, trying every
	// reconnectPoll. A read is also repeated for that long if etcd cannot answer it.
	reconnectGrace = 2500 * time.Millisecond
	reconnectPoll  = 25 * time.Millisecond
)

// Backend is a storage.Backend on etcd.
type Backend struct {
	opts    Options
	members *members
	kv      kvClient
	trust   *trust
	log     *slog.Logger
	grace   time.Duration // reconnectGrace, unless in a test

	revision  *revisionReader
	leases    *leasePool
	history   *history
	compactor *compactor

	// ctx is canceled by Close, with storage.ErrClosed as its cause.
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	closed   bool
	watchers map[*watcher]struct{}
	// writes counts the writes in flight, tasks the goroutines that return when ctx is
	// canceled. Neither is added to once closed is set.
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
	b := &Backend{
		opts:     opts,
		log:      opts.Logger,
		grace:    reconnectGrace,
		watchers: make(map[*watcher]struct{}),
	}
	b.trust = &trust{log: opts.Logger, onBroken: b.endWatches}
	var links []link
	for _, endpoint := range opts.Endpoints {
		l, err := dialMember(opts, tlsConfig, endpoint, b.etcdKey(storage.Root), b.trust)
		if err != nil {
			return nil, errors.Join(err, closeLinks(links))
		}
		links = append(links, l)
	}
	version, err := firstAnswer(ctx, links, opts)
	if err != nil {
		return nil, errors.Join(err, closeLinks(links))
	}
	if isOutdated(version) {
		opts.Logger.Warn("etcd is older than 3.5.13 and may lose watch events", "version", version)
	}

	b.ctx, b.cancel = context.WithCancelCause(context.Background())
	b.members = newMembers(b.ctx, opts.Logger, defaultMemberLimits(), opts.Endpoints, links)
	b.members.start(b.spawn)
	b.kv = memberKV{b.members}
	b.revision = newRevisionReader(b.ctx, b.spawn, b.readRevision)
	b.leases = newLeasePool(memberLeases{b.members}, opts.LeaseReuse, opts.LeaseMaxKeys)
	b.history = newHistory()
	b.compactor = &compactor{b: b}
	if opts.CompactInterval > 0 {
		b.spawn(func() { b.compactor.run(b.ctx, opts.CompactInterval) })
	}
	return b, nil
}

func closeLinks(links []link) (err error) {
	for _, l := range links {
		err = errors.Join(err, l.close())
	}
	return err
}

// firstAnswer waits until an endpoint answers, and returns its version of etcd. It fails
// when none has answered within the dial timeout, or as soon as one refuses.
func firstAnswer(ctx context.Context, links []link, opts Options) (string, error) {
	var probes sync.WaitGroup
	defer probes.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		version string
		err     error
	}
	answers := make(chan answer, len(links))
	for _, l := range links {
		probes.Go(func() {
			version, err := probe(ctx, l.client(), opts)
			answers <- answer{version, err}
		})
	}
	var first answer
	for i := range links {
		switch a := <-answers; {
		case a.err == nil:
			return a.version, nil
		case !errors.Is(a.err, storage.ErrUnavailable):
			return "", a.err
		case i == 0:
			first = a
		}
	}
	return "", first.err
}

// probe waits until an endpoint answers, and returns etcd's version.
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
		// "Connection refused" is a better reason than the deadline that ends the wait:
		// keep it.
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

// isOutdated reports whether a version is below 3.5.13. A text that is not a version is
// not outdated.
func isOutdated(version string) bool {
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); err != nil {
		return false
	}
	return slices.Compare([]int{major, minor, patch}, []int{3, 5, 13}) < 0
}

// Revision returns the current revision. Callers that wait at the same time
// share a request to etcd.
func (b *Backend) Revision(ctx context.Context) (int64, error) {
	if err := b.checkUsable(ctx); err != nil {
		return 0, err
	}
	return b.revision.get(ctx)
}

// readRevision asks etcd for the current revision by counting a key that is never
// written. The key is in the range that an etcd user restricted to Kubernetes objects
// may read.
func (b *Backend) readRevision(ctx context.Context) (int64, error) {
	resp, err := b.kv.Get(ctx, b.etcdKey(storage.Root), clientv3.WithCountOnly())
	if err != nil {
		return 0, b.readError(ctx, err)
	}
	return resp.Header.Revision, nil
}

// Progress makes every watcher request a progress notification on its stream. A watcher
// that has no stream requests it when it has one.
func (b *Backend) Progress(ctx context.Context) error {
	if err := b.checkUsable(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.watchers {
		w.requestProgress()
	}
	return nil
}

// Shared implements storage.Backend: any number of servers may use one etcd.
func (b *Backend) Shared() bool { return true }

// Status describes the etcd cluster. The sizes are those of the member that answers.
func (b *Backend) Status(ctx context.Context) (storage.Status, error) {
	revision, err := b.Revision(ctx)
	if err != nil {
		return storage.Status{}, err
	}
	if err := b.history.learn(ctx, b); err != nil {
		return storage.Status{}, err
	}
	var member *pb.StatusResponse
	err = b.members.read(ctx, func(ctx context.Context, client *clientv3.Client) (err error) {
		member, err = pb.NewMaintenanceClient(client.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
		return err
	})
	if err != nil {
		return storage.Status{}, b.readError(ctx, err)
	}
	return storage.Status{
		Engine:          "etcd",
		Revision:        revision,
		CompactRevision: max(b.history.oldest.Load(), b.compactor.seen.Load()),
		SizeBytes:       member.DbSize,
		SizeLimitBytes:  member.DbSizeQuota,
		ReadOnly:        alarmError(member),
	}, nil
}

// alarmError returns the reason why the cluster refuses writes, or nil. It reads the alarms
// from the errors of a status response, where they are protobuf messages in text form:
// an alarm request would append to the cluster's log on every call.
func alarmError(member *pb.StatusResponse) error {
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

// Close ends all watchers, waits for writes in flight and closes the connections. Calls
// after it fail with ErrClosed.
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
	err := b.members.close()
	// Without connections the remaining writes fail.
	<-written
	return err
}

// checkUsable returns ErrClosed or the context's error if a call cannot be served.
func (b *Backend) checkUsable(ctx context.Context) error {
	if b.ctx.Err() != nil {
		return storage.ErrClosed
	}
	return ctx.Err()
}

// endWatches ends all watches: what follows does not continue what they have delivered.
func (b *Backend) endWatches(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.watchers {
		w.cancel(b.readError(context.Background(), err))
	}
}

// spawn runs a task in a goroutine that Close waits for. It returns false if the
// backend is closed.
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
