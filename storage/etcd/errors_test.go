package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fakeEtcd answers as the test says.
type fakeEtcd struct {
	pb.UnimplementedKVServer
	pb.UnimplementedMaintenanceServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedWatchServer
	answer func(context.Context) error
}

func (f *fakeEtcd) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{}, nil
}

func (f *fakeEtcd) Txn(ctx context.Context, _ *pb.TxnRequest) (*pb.TxnResponse, error) {
	return nil, f.answer(ctx)
}

func (f *fakeEtcd) Range(ctx context.Context, _ *pb.RangeRequest) (*pb.RangeResponse, error) {
	return nil, f.answer(ctx)
}

func (f *fakeEtcd) LeaseGrant(ctx context.Context, _ *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return nil, f.answer(ctx)
}

func (f *fakeEtcd) Watch(stream pb.Watch_WatchServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	return f.answer(stream.Context())
}

// openFake returns a backend on a fake etcd, and what cuts its connections.
func openFake(t *testing.T, f *fakeEtcd) (*Backend, func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	pb.RegisterKVServer(s, f)
	pb.RegisterMaintenanceServer(s, f)
	pb.RegisterLeaseServer(s, f)
	pb.RegisterWatchServer(s, f)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		<-served
	})
	b, err := Open(t.Context(), Options{Endpoints: []string{"http://" + l.Addr().String()}, CompactInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	b.history.learned.Store(true)
	return b, s.Stop
}

// allSentinels is what a caller may ask of a write that failed.
func allSentinels() []error {
	return []error{
		storage.ErrNotFound, storage.ErrExists, storage.ErrConflict, storage.ErrCompacted, storage.ErrFutureRevision,
		storage.ErrReadOnly, storage.ErrNoSpace, storage.ErrTooLarge, storage.ErrInvalidKey, storage.ErrUncertain,
		storage.ErrUnavailable, storage.ErrClosed,
	}
}

// only checks that an error wraps one sentinel, or none if it is nil.
func only(t *testing.T, what string, err, want error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
	}
	for _, s := range allSentinels() {
		if errors.Is(err, s) != (s == want) {
			t.Errorf("%s: error %v: is %q: %v", what, err, s, errors.Is(err, s))
		}
	}
}

func TestErrorsOfServer(t *testing.T) {
	t.Parallel()
	f := &fakeEtcd{}
	b, _ := openFake(t, f)
	for _, c := range []struct{ answer, read, write error }{
		{rpctypes.ErrGRPCCompacted, storage.ErrCompacted, storage.ErrCompacted},
		{rpctypes.ErrGRPCFutureRev, storage.ErrFutureRevision, storage.ErrFutureRevision},
		{rpctypes.ErrGRPCRequestTooLarge, storage.ErrTooLarge, storage.ErrTooLarge},
		{status.Error(codes.ResourceExhausted, "grpc: received message larger than max (9 vs. 8)"), storage.ErrTooLarge, storage.ErrTooLarge},
		{rpctypes.ErrGRPCCorrupt, storage.ErrReadOnly, storage.ErrReadOnly},
		{rpctypes.ErrGRPCRequestTooManyRequests, storage.ErrUnavailable, storage.ErrUnavailable},
		{rpctypes.ErrGRPCNotCapable, storage.ErrUnavailable, storage.ErrUnavailable},
		{rpctypes.ErrGRPCPermissionDenied, nil, nil},
		{status.Error(codes.Unknown, "whatever"), storage.ErrUnavailable, storage.ErrUncertain},
		{status.Error(codes.Internal, "whatever"), storage.ErrUnavailable, storage.ErrUncertain},
	} {
		f.answer = func(context.Context) error { return c.answer }
		_, err := b.Get(t.Context(), "/a")
		only(t, fmt.Sprintf("Get, %v", c.answer), err, c.read)
		_, err = b.Create(t.Context(), "/a", nil, 0)
		only(t, fmt.Sprintf("Create, %v", c.answer), err, c.write)
		_, _, err = b.Delete(t.Context(), "/a", 1)
		only(t, fmt.Sprintf("Delete, %v", c.answer), err, c.write)
		// It fails at the lease: the key has not been tried.
		_, err = b.Create(t.Context(), "/a", nil, time.Hour)
		only(t, fmt.Sprintf("Create with ttl, %v", c.answer), err, c.read)
	}
	// The words are those of a client that does not send what is too large.
	f.answer = func(context.Context) error {
		return status.Error(codes.ResourceExhausted, "grpc: received message larger than max (9 vs. 8)")
	}
	const want = "rpc error: code = ResourceExhausted desc = trying to send message larger than max (9 vs. 8)"
	if _, err := b.Create(t.Context(), "/a", nil, 0); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("Create of what is too large: got %v, want …%s", err, want)
	}
	// Reads are tried again, for long; writes are not.
	for _, answer := range []error{
		rpctypes.ErrGRPCTimeout, rpctypes.ErrGRPCTimeoutDueToLeaderFail, rpctypes.ErrGRPCTimeoutDueToConnectionLost,
		rpctypes.ErrGRPCStopped, rpctypes.ErrGRPCLeaderChanged, status.Error(codes.Unavailable, "transport is closing"),
		rpctypes.ErrGRPCCanceled, rpctypes.ErrGRPCDeadlineExceeded,
	} {
		requests := 0
		f.answer = func(context.Context) error {
			requests++
			return answer
		}
		_, err := b.Create(t.Context(), "/a", nil, 0)
		only(t, fmt.Sprintf("Create, %v", answer), err, storage.ErrUncertain)
		if requests != 1 {
			t.Errorf("Create, %v: sent %d times", answer, requests)
		}
	}
	f.answer = func(context.Context) error { return rpctypes.ErrGRPCNoLeader }
	_, err := b.Create(t.Context(), "/a", nil, 0)
	only(t, "Create without a leader", err, storage.ErrUnavailable)
}

func TestWatchErrorsOfServer(t *testing.T) {
	t.Parallel()
	answers := []error{
		rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCStopped, rpctypes.ErrGRPCNotCapable, rpctypes.ErrGRPCWatchCanceled, nil,
		status.Error(codes.Internal, "whatever"), rpctypes.ErrGRPCPermissionDenied,
	}
	f := &fakeEtcd{}
	f.answer = func(context.Context) error {
		answer := answers[0]
		answers = answers[1:]
		return answer
	}
	b, _ := openFake(t, f)
	w, err := b.Watch(t.Context(), "/", 5)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Next(t.Context())
	only(t, "Next", err, nil)
	wantErr(t, "Next", err, rpctypes.ErrPermissionDenied)
	if len(answers) != 0 {
		t.Errorf("gave up before %v", answers)
	}
	for reason, want := range map[string]error{
		rpctypes.ErrGRPCPermissionDenied.Error(): rpctypes.ErrPermissionDenied,
		rpctypes.ErrCompacted.Error():            rpctypes.ErrCompacted,
	} {
		if err := cancelError(reason); !errors.Is(err, want) || isTemporary(err) {
			t.Errorf("%q: %v", reason, err)
		}
	}
	if err := cancelError("because"); !isTemporary(err) {
		t.Error(err)
	}
}

func TestInterruptedWrites(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	f := &fakeEtcd{answer: func(ctx context.Context) error {
		select {
		case arrived <- struct{}{}:
		case <-ctx.Done():
		}
		<-ctx.Done()
		return ctx.Err()
	}}
	b, cut := openFake(t, f)
	b.grace = 0
	write := func(ctx context.Context) chan error {
		result := make(chan error, 1)
		go func() {
			_, err := b.Create(ctx, "/a", nil, 0)
			result <- err
		}()
		return result
	}
	// begin writes until a write has arrived: on a busy machine one is refused before there is a
	// connection, or too late.
	begin := func(limit time.Duration) (cancel context.CancelFunc, result chan error) {
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			result := write(ctx)
			select {
			case <-arrived:
				return cancel, result
			case err := <-result:
				cancel()
				t.Logf("a write has not arrived: %v", err)
			}
		}
		t.Fatal("no write arrives")
		return nil, nil
	}
	cancel, result := begin(time.Minute)
	cancel()
	err := <-result
	only(t, "canceled on the way", err, storage.ErrUncertain)
	wantErr(t, "canceled on the way", err, context.Canceled)

	cancel, result = begin(50 * time.Millisecond)
	defer cancel()
	err = <-result
	only(t, "too late", err, storage.ErrUncertain)
	wantErr(t, "too late", err, context.DeadlineExceeded)

	cancel, result = begin(time.Minute)
	defer cancel()
	cut()
	only(t, "cut off", <-result, storage.ErrUncertain)
	only(t, "nobody there", <-write(t.Context()), storage.ErrUnavailable)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = <-write(ctx)
	only(t, "canceled before", err, nil)
	wantErr(t, "canceled before", err, context.Canceled)
}

// spaceKV answers transactions as if they had just filled etcd.
type spaceKV struct {
	kvClient
	apply bool
}

func (k spaceKV) Txn(ctx context.Context) clientv3.Txn {
	return &spaceTxn{k.kvClient.Txn(ctx), k.apply}
}

type spaceTxn struct {
	clientv3.Txn
	apply bool
}

func (t *spaceTxn) If(c ...clientv3.Cmp) clientv3.Txn  { t.Txn = t.Txn.If(c...); return t }
func (t *spaceTxn) Then(o ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Then(o...); return t }
func (t *spaceTxn) Else(o ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Else(o...); return t }
func (t *spaceTxn) Commit() (*clientv3.TxnResponse, error) {
	if t.apply {
		if _, err := t.Txn.Commit(); err != nil {
			return nil, err
		}
	}
	return nil, rpctypes.ErrNoSpace
}

// TestWriteThatFillsEtcd: etcd may apply a write and say that there was no
// space for it.
func TestWriteThatFillsEtcd(t *testing.T) {
	t.Parallel()
	b := open(t, etcdtest.Start(t))
	kv := create(t, b, "/a", "1")
	plain := b.kv
	for _, apply := range []bool{false, true} {
		want := storage.ErrNoSpace
		if apply {
			want = storage.ErrUncertain
		}
		b.kv = spaceKV{plain, apply}
		_, err := b.Create(t.Context(), "/b", nil, 0)
		only(t, fmt.Sprintf("Create, applied: %v", apply), err, want)
		_, err = b.Update(t.Context(), "/a", nil, kv.ModRevision, 0)
		only(t, fmt.Sprintf("Update, applied: %v", apply), err, want)
	}
}

func TestNoSpace(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.Configure(func(c *embed.Config) { c.QuotaBackendBytes = 8 << 20 }))
	b, ctx := open(t, cluster), t.Context()
	first := create(t, b, "/first", "1")
	var err error
	written := 0
	for ; err == nil; written++ {
		_, err = b.Create(ctx, fmt.Sprintf("/%d", written), make([]byte, 1<<20), 0)
	}
	if !errors.Is(err, storage.ErrUncertain) {
		only(t, "Create", err, storage.ErrNoSpace)
		if n, _, err := b.Count(ctx, "/"); err != nil || n != int64(written) {
			t.Errorf("%d keys, %v; want %d", n, err, written)
		}
	}
	// etcd has raised its alarm when it refuses what is small.
	for err = storage.ErrUncertain; err == nil || errors.Is(err, storage.ErrUncertain); {
		_, err = b.Create(ctx, fmt.Sprintf("/small %p", &err), nil, 0)
	}
	only(t, "small Create", err, storage.ErrNoSpace)
	_, err = b.Update(ctx, "/first", nil, first.ModRevision, 0)
	only(t, "Update", err, storage.ErrNoSpace)
	_, err = b.Create(ctx, "/with a ttl", nil, time.Hour)
	only(t, "Create with ttl", err, storage.ErrNoSpace)
	s, err := b.Status(ctx)
	if err != nil || !errors.Is(s.ReadOnly, storage.ErrNoSpace) || s.SizeLimitBytes != 8<<20 {
		t.Errorf("Status: %+v, %v", s, err)
	}
	if _, err := b.Get(ctx, "/first"); err != nil {
		t.Errorf("Get: %v", err)
	}
	remove(t, b, first)
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	b := open(t, cluster)
	b.grace = 50 * time.Millisecond
	create(t, b, "/a", "1")
	cluster.Kill(0)
	// The first may be under way when the connection breaks; once that is
	// known, nothing is sent.
	var err error
	for err = storage.ErrUncertain; errors.Is(err, storage.ErrUncertain); {
		_, err = b.Create(t.Context(), "/b", nil, 0)
	}
	only(t, "Create", err, storage.ErrUnavailable)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = b.Status(ctx)
	wantErr(t, "Status", err, context.DeadlineExceeded)
	_, err = b.Get(t.Context(), "/a")
	only(t, "Get", err, storage.ErrUnavailable)
	cluster.Restart(0)
	for err = storage.ErrUnavailable; errors.Is(err, storage.ErrUnavailable); {
		_, err = b.Get(t.Context(), "/a")
	}
	if err != nil {
		t.Errorf("after the restart: %v", err)
	}
}
