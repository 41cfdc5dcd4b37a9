package etcd

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// trust checks what etcd answers against what it has answered before. It is a gRPC
// interceptor around every attempt of a unary request; streams call checkCluster.
//
// An etcd that was restored from an old copy gives revisions a second time, which clients
// have seen for other objects. Once that is noticed no request is made any more; only a new
// process, whose clients begin anew, takes such an etcd. An answer of another cluster is
// an error, and the next request may do better.
type trust struct {
	log *slog.Logger
	// onBroken is called once, in a goroutine of the request that notices.
	onBroken func(error)

	mu       sync.Mutex // guards all below
	cluster  uint64     // 0 until the first answer
	revision int64      // the greatest revision that was answered
	broken   error
	warned   bool // of another cluster
}

// checkCluster returns an error unless an answer is from the cluster of the first one.
func (t *trust) checkCluster(h *pb.ResponseHeader) error {
	id := h.GetClusterId()
	if id == 0 {
		return nil // some servers with etcd's API have none
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cluster == 0 {
		t.cluster = id
	}
	if t.cluster == id {
		return nil
	}
	if !t.warned {
		t.warned = true
		t.log.Error("etcd: an endpoint belongs to another cluster; its answers are refused", "cluster", fmt.Sprintf("%x", id), "member", fmt.Sprintf("%x", h.GetMemberId()), "expected", fmt.Sprintf("%x", t.cluster))
	}
	return status.Errorf(codes.DataLoss, "the endpoint belongs to cluster %x, and the first answer was from %x: check the endpoints, or restart if etcd was replaced on purpose", id, t.cluster)
}

// begin returns the revision that an answer has at least, or why no request may be made.
func (t *trust) begin() (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.revision, t.broken
}

// checkRevision returns an error if the revision of an answer is below the one that was
// known when the request began.
func (t *trust) checkRevision(revision, before int64) error {
	t.mu.Lock()
	if revision >= before || t.broken != nil {
		t.revision = max(t.revision, revision)
		err := t.broken
		t.mu.Unlock()
		return err
	}
	t.broken = status.Errorf(codes.DataLoss, "etcd is at revision %d, and was at %d before: it was restored from an older copy. "+
		"Restart this server and all clients, or restore etcd with --bump-revision and --mark-compacted", revision, before)
	err := t.broken
	t.mu.Unlock()
	t.log.Error("etcd has gone back; requests are refused until this server is restarted", "revision", revision, "before", before)
	t.onBroken(err)
	return err
}

// intercept is the interceptor.
func (t *trust) intercept(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	before, err := t.begin()
	if err != nil {
		return err
	}
	if err := invoke(ctx, method, req, reply, conn, opts...); err != nil {
		return err
	}
	if answer, ok := reply.(interface{ GetHeader() *pb.ResponseHeader }); ok {
		if err := t.checkCluster(answer.GetHeader()); err != nil {
			return err
		}
	}
	// Other answers, and serializable ones, may be of a member that lags behind.
	switch answer := reply.(type) {
	case *pb.RangeResponse:
		asked, ok := req.(*pb.RangeRequest)
		if !ok || asked.Serializable {
			return nil
		}
		if err := checkRange(asked, answer); err != nil {
			t.log.Error("etcd has answered what was not asked for", "error", err)
			return err
		}
		return t.checkRevision(answer.Header.GetRevision(), before)
	case *pb.TxnResponse:
		return t.checkRevision(answer.Header.GetRevision(), before)
	}
	return nil
}

// checkRange returns an error if an answer has a key that was not asked for, or one that was
// written later than it says.
func checkRange(asked *pb.RangeRequest, answer *pb.RangeResponse) error {
	for _, kv := range answer.Kvs {
		inside := bytes.Equal(kv.Key, asked.Key)
		if len(asked.RangeEnd) > 0 {
			toEnd := len(asked.RangeEnd) == 1 && asked.RangeEnd[0] == 0
			inside = bytes.Compare(kv.Key, asked.Key) >= 0 && (toEnd || bytes.Compare(kv.Key, asked.RangeEnd) < 0)
		}
		if !inside {
			return status.Errorf(codes.DataLoss, "etcd has answered with key %q, which was not asked for", kv.Key)
		}
		if at := answer.Header.GetRevision(); kv.ModRevision > at || asked.Revision > 0 && kv.ModRevision > asked.Revision || kv.CreateRevision > kv.ModRevision {
			return status.Errorf(codes.DataLoss, "etcd has answered key %q of revision %d at revision %d", kv.Key, kv.ModRevision, at)
		}
	}
	return nil
}
