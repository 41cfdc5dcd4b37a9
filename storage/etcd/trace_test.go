package etcd

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/apikeel/kelson/trace"
)

func TestTraced(t *testing.T) {
	var kept []trace.Data
	tracer := &trace.Tracer{Ratio: 1, Export: func(d trace.Data) { kept = append(kept, d) }}
	var told []string
	invoke := func(ctx context.Context, method string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
		if method != "/etcdserverpb.KV/Txn" {
			t.Errorf("%s is called", method)
		}
		md, _ := metadata.FromOutgoingContext(ctx)
		told = md.Get("traceparent")
		return status.Error(codes.NotFound, "no")
	}
	_ = traceCall(t.Context(), "/etcdserverpb.KV/Txn", nil, nil, nil, invoke)
	if len(told) > 0 || len(kept) > 0 {
		t.Errorf("without a trace: %v, %v", told, kept)
	}
	ctx := trace.With(t.Context(), tracer.Root(nil, false, "root", trace.Server, time.Now()))
	_ = traceCall(ctx, "/etcdserverpb.KV/Txn", nil, nil, nil, invoke)
	if len(told) != 1 || len(kept) != 1 || kept[0].Name != "etcdserverpb.KV/Txn" || kept[0].Kind != trace.Client || !kept[0].Failed {
		t.Fatalf("%v, %+v", told, kept)
	}
	code := ""
	for _, a := range kept[0].Attributes {
		if a.Key == "rpc.response.status_code" {
			code = a.Text
		}
	}
	if code != "NOT_FOUND" {
		t.Errorf("the code is %s", code)
	}
}
