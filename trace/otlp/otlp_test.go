package otlp

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/apikeel/kelson/trace"
)

// collected is a collector that passes on what it is sent.
type collected struct {
	collector.UnimplementedTraceServiceServer
	got chan<- []*tracepb.ResourceSpans
}

func (c *collected) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.got <- r.ResourceSpans
	return &collector.ExportTraceServiceResponse{}, nil
}

// collect starts a collector.
func collect(t *testing.T) (address string, got chan []*tracepb.ResourceSpans) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got = make(chan []*tracepb.ResourceSpans, 100)
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, &collected{got: got})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String(), got
}

func TestExport(t *testing.T) {
	address, got := collect(t)
	e, err := New(address, []trace.Attribute{trace.String("service.name", "apiserver")}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	remote := &trace.Remote{Trace: trace.ID{1}, Span: trace.SpanID{2}, Sampled: true, State: "a=b"}
	tracer := &trace.Tracer{Ratio: 1, Export: e.Add}
	began := time.Now().Add(-time.Second)
	root := tracer.Root(remote, true, "root", trace.Server, began)
	root.Set(trace.Int("status", 200), trace.String("empty", ""))
	_, child := trace.Start(trace.With(t.Context(), root), "child")
	child.Event("something", trace.String("k", "v"))
	child.Fail(nil)
	child.End()
	root.End()
	tracer.Root(remote, false, "linked", trace.Server, began).End()

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		t.Fatal(err)
	}
	rs := (<-got)[0]
	if a := rs.Resource.Attributes[0]; a.Key != "service.name" || a.Value.GetStringValue() != "apiserver" {
		t.Errorf("the resource is %v", rs.Resource)
	}
	spans := rs.ScopeSpans[0].Spans
	if len(spans) != 3 || rs.ScopeSpans[0].Scope.Name != scope {
		t.Fatalf("%v", rs.ScopeSpans)
	}
	c, r, l := spans[0], spans[1], spans[2]
	if r.Name != "root" || string(r.TraceId) != string(remote.Trace[:]) || string(r.ParentSpanId) != string(remote.Span[:]) || r.TraceState != "a=b" ||
		r.Kind != tracepb.Span_SPAN_KIND_SERVER || r.Flags != 769 || r.StartTimeUnixNano != uint64(began.UnixNano()) || r.EndTimeUnixNano < r.StartTimeUnixNano ||
		r.Attributes[0].Value.GetIntValue() != 200 || r.Attributes[1].Value.Value == nil {
		t.Errorf("root: %v", r)
	}
	if c.Name != "child" || string(c.ParentSpanId) != string(r.SpanId) || c.Flags != 257 || c.Kind != tracepb.Span_SPAN_KIND_INTERNAL ||
		c.Events[0].Name != "something" || c.Events[0].Attributes[0].Key != "k" || c.Status.Code != tracepb.Status_STATUS_CODE_ERROR {
		t.Errorf("child: %v", c)
	}
	if l.ParentSpanId != nil || string(l.Links[0].SpanId) != string(remote.Span[:]) || l.Links[0].Flags != 769 {
		t.Errorf("linked: %v", l)
	}
}

// A collector that is not there costs spans, nothing else.
func TestNoCollector(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	e, err := New(address, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 * maxQueue {
		e.Add(trace.Data{Name: "x"})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		t.Error(err)
	}
}
