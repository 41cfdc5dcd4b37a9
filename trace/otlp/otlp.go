// Package otlp exports spans to a collector with OTLP over gRPC. Start at Exporter. The
// few messages that it needs are encoded by hand.
package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"

	"github.com/apikeel/kelson/trace"
)

// The limits of OpenTelemetry's own exporter.
const (
	maxQueue    = 2048
	maxBatch    = 512
	exportEvery = 5 * time.Second
	exportTime  = 10 * time.Second
)

const exportMethod = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

// Exporter sends spans in batches. Spans that do not fit into the queue are dropped.
type Exporter struct {
	log      *slog.Logger
	conn     *grpc.ClientConn
	resource []trace.Attribute
	spans    chan trace.Data
	flush    chan chan struct{}
	done     chan struct{}
	dropped  atomic.Int64
	// every is the longest time that a span waits to be sent.
	every time.Duration
}

// New returns an exporter to a gRPC address: host:port, or unix: and a path. resource
// describes this process.
func New(endpoint string, resource []trace.Attribute, log *slog.Logger) (*Exporter, error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("collector of traces %q: %w", endpoint, err)
	}
	e := &Exporter{
		log: log, conn: conn, resource: resource, every: exportEvery,
		spans: make(chan trace.Data, maxQueue), flush: make(chan chan struct{}), done: make(chan struct{}),
	}
	go e.run()
	return e, nil
}

// Add queues a span without blocking.
func (e *Exporter) Add(d trace.Data) {
	select {
	case e.spans <- d:
	default:
		e.dropped.Add(1)
	}
}

// Close sends the queued spans, until ctx ends, and closes the connection. It is called
// once; later spans are lost.
func (e *Exporter) Close(ctx context.Context) error {
	sent := make(chan struct{})
	var late error
	select {
	case e.flush <- sent:
		select {
		case <-sent:
		case <-ctx.Done():
			late = errors.New("the last traces are lost: the collector did not take them in time")
		}
	case <-ctx.Done():
	}
	close(e.done)
	return errors.Join(late, e.conn.Close())
}

// run collects spans into batches and sends them.
func (e *Exporter) run() {
	var batch []trace.Data
	failing := false
	send := func() {
		if len(batch) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), exportTime)
		defer cancel()
		err := e.send(ctx, batch)
		if err != nil && !failing {
			e.log.Warn("spans cannot be sent to the trace collector; they are dropped", "error", err)
		}
		failing = err != nil
		if n := e.dropped.Swap(0); n > 0 {
			e.log.Warn("spans were dropped: they come faster than the trace collector takes them", "spans", n)
		}
		batch = batch[:0]
	}
	tick := time.NewTicker(e.every)
	defer tick.Stop()
	for {
		select {
		case d := <-e.spans:
			if batch = append(batch, d); len(batch) >= maxBatch {
				send()
			}
		case <-tick.C:
			send()
		case sent := <-e.flush:
			for range len(e.spans) {
				batch = append(batch, <-e.spans)
			}
			send()
			close(sent)
		case <-e.done:
			return
		}
	}
}

func (e *Exporter) send(ctx context.Context, spans []trace.Data) error {
	request := appendRequest(nil, e.resource, spans)
	var answer []byte
	return e.conn.Invoke(ctx, exportMethod, &request, &answer, grpc.ForceCodecV2(rawCodec{}))
}

// rawCodec is a gRPC codec for messages that are encoded already.
type rawCodec struct{}

// Marshal implements encoding.CodecV2.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

// Unmarshal implements encoding.CodecV2.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// Name implements encoding.CodecV2.
func (rawCodec) Name() string { return "proto" }
