package etcd

import (
	"context"
	"strings"
	"unicode"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/apikeel/kelson/trace"
)

// traceCall is a gRPC interceptor that records a span for each call and sends the trace
// context to etcd.
func traceCall(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if trace.From(ctx) == nil {
		return invoke(ctx, method, req, reply, conn, opts...)
	}
	method = strings.TrimPrefix(method, "/")
	ctx, span := trace.StartClient(ctx, method, trace.String("rpc.method", method), trace.String("rpc.system.name", "grpc"))
	parent, state := trace.Headers(ctx)
	ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", parent)
	if state != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "tracestate", state)
	}
	err := invoke(ctx, "/"+method, req, reply, conn, opts...)
	span.Set(trace.String("rpc.response.status_code", codeName(status.Code(err))))
	if err != nil {
		span.Fail(err)
	}
	span.End()
	return err
}

// codeName returns a gRPC code as gRPC writes it: NOT_FOUND.
func codeName(c codes.Code) string {
	var name strings.Builder
	for i, r := range c.String() {
		if i > 1 && unicode.IsUpper(r) {
			name.WriteByte('_')
		}
		name.WriteRune(unicode.ToUpper(r))
	}
	return name.String()
}
