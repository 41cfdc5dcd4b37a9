package etcd

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestStrangeAnswersAreRefused: an etcd that has gone back, another cluster, and keys that were
// not asked for are errors, which are logged; a member that lags is not.
func TestStrangeAnswersAreRefused(t *testing.T) {
	list := &pb.RangeRequest{Key: []byte("/registry/"), RangeEnd: []byte("/registry0")}
	at := func(cluster uint64, revision int64, keys ...string) *pb.RangeResponse {
		resp := &pb.RangeResponse{Header: &pb.ResponseHeader{ClusterId: cluster, Revision: revision}}
		for _, key := range keys {
			resp.Kvs = append(resp.Kvs, &mvccpb.KeyValue{Key: []byte(key), CreateRevision: 2, ModRevision: 9})
		}
		return resp
	}
	for name, c := range map[string]struct {
		req    any
		answer any
		want   string // in the error
		sticky bool
	}{
		"further":         {list, at(7, 11, "/registry/a"), "", false},
		"the same":        {list, at(7, 10), "", false},
		"gone back":       {list, at(7, 9), "is at revision 9, and was at 10", true},
		"a write, back":   {&pb.TxnRequest{}, &pb.TxnResponse{Header: &pb.ResponseHeader{ClusterId: 7, Revision: 3}}, "was restored from an older copy", true},
		"a member lags":   {&pb.RangeRequest{Key: []byte("/a"), Serializable: true}, at(7, 9), "", false},
		"another cluster": {list, at(8, 11), "belongs to cluster 8", false},
		"another's state": {&pb.StatusRequest{}, &pb.StatusResponse{Header: &pb.ResponseHeader{ClusterId: 8}}, "belongs to cluster 8", false},
		"another prefix":  {list, at(7, 11, "/other/a"), "not asked for", false},
		"another key":     {&pb.RangeRequest{Key: []byte("/registry/a")}, at(7, 11, "/registry/ab"), "not asked for", false},
		"from the future": {&pb.RangeRequest{Key: []byte("/registry/a"), Revision: 5}, at(7, 11, "/registry/a"), "of revision 9", false},
	} {
		var log bytes.Buffer
		var broken error
		tr := &trust{log: slog.New(slog.NewTextHandler(&log, nil)), onBroken: func(err error) { broken = err }}
		call := func(req, answer any) error {
			return tr.intercept(t.Context(), "", req, answer, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil })
		}
		if err := call(list, at(7, 10)); err != nil {
			t.Fatal(err)
		}
		err := call(c.req, c.answer)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || status.Code(err) != codes.DataLoss) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if (log.Len() > 0) != (c.want != "") {
			t.Errorf("%s: logged %q", name, log.String())
		}
		if next := call(list, at(7, 12)); (next != nil) != c.sticky || (broken != nil) != c.sticky {
			t.Errorf("%s: the next request gets %v, and watches end with %v; want an end: %v", name, next, broken, c.sticky)
		}
	}
}
