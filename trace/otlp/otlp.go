// Package otlp exports spans to a collector with OTLP over gRPC. Start at Exporter.
//
// The messages and the call are those of OpenTelemetry's exporter. The queue before it is
// our own, so that dropped spans are counted and failures go to the server's log:
// OpenTelemetry's batch processor reports both only to process-wide handlers.
package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/apikeel/kelson/trace"
)

// The limits of OpenTelemetry's batch processor.
const (
	maxQueue    = 2048
	maxBatch    = 512
	exportEvery = 5 * time.Second
	exportTime  = 10 * time.Second
)

// Exporter sends spans in batches. Spans that do not fit into the queue are dropped.
type Exporter struct {
	log     *slog.Logger
	conn    *grpc.ClientConn
	otel    *otlptrace.Exporter
	process *resource.Resource
	spans   chan trace.Data
	flush   chan chan struct{}
	done    chan struct{}
	dropped atomic.Int64
	// every is the longest time that a span waits to be sent.
	every time.Duration
}

// New returns an exporter to a gRPC address: host:port, or unix: and a path. process
// describes this process.
func New(endpoint string, process []trace.Attribute, log *slog.Logger) (*Exporter, error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("collector of traces %q: %w", endpoint, err)
	}
	// Without retries: the queue goes on filling during one, and the next batch tries
	// again anyway.
	otel, err := otlptracegrpc.New(context.Background(), otlptracegrpc.WithGRPCConn(conn),
		otlptracegrpc.WithTimeout(exportTime), otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("collector of traces %q: %w", endpoint, err), conn.Close())
	}
	e := &Exporter{
		log: log, conn: conn, otel: otel, process: resource.NewSchemaless(keyValues(process)...), every: exportEvery,
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
	// Closing the connection ends an export that is under way, which Shutdown waits for.
	err := e.conn.Close()
	return errors.Join(late, err, e.otel.Shutdown(context.WithoutCancel(ctx)))
}

// run collects spans into batches and sends them.
func (e *Exporter) run() {
	var batch []trace.Data
	failing := false
	send := func() {
		if len(batch) == 0 {
			return
		}
		err := e.send(batch)
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

func (e *Exporter) send(batch []trace.Data) error {
	spans := make([]sdktrace.ReadOnlySpan, len(batch))
	for i := range batch {
		spans[i] = readOnlySpan(&batch[i], e.process)
	}
	return e.otel.ExportSpans(context.Background(), spans)
}
