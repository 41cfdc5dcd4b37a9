package otlp

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/apikeel/kelson/trace"
)

// scope is the instrumentation scope of the spans.
const scope = "github.com/apikeel/kelson/trace"

// readOnlySpan returns a finished span as OpenTelemetry's exporter takes it. Only the
// SDK can implement that interface; SpanStub is its way to make a value from data.
func readOnlySpan(d *trace.Data, process *resource.Resource) sdktrace.ReadOnlySpan {
	stub := tracetest.SpanStub{
		Name:                 d.Name,
		SpanContext:          spanContext(d.Trace, d.Span, d.State, true, false),
		SpanKind:             spanKind(d.Kind),
		StartTime:            d.Start,
		EndTime:              d.End,
		Attributes:           keyValues(d.Attributes),
		Resource:             process,
		InstrumentationScope: instrumentation.Scope{Name: scope},
	}
	if d.Parent != (trace.SpanID{}) {
		stub.Parent = spanContext(d.Trace, d.Parent, d.State, true, d.ParentRemote)
	}
	for i := range d.Events {
		stub.Events = append(stub.Events, sdktrace.Event{Name: d.Events[i].Name, Time: d.Events[i].Time, Attributes: keyValues(d.Events[i].Attributes)})
	}
	if l := d.Link; l != nil {
		stub.Links = []sdktrace.Link{{SpanContext: spanContext(l.Trace, l.Span, l.State, l.Sampled, true)}}
	}
	if d.Failed {
		stub.Status.Code = codes.Error
	}
	return stub.Snapshot()
}

func spanContext(id trace.ID, span trace.SpanID, state string, sampled, remote bool) oteltrace.SpanContext {
	// A tracestate that is not valid is propagated, but not exported.
	parsed, _ := oteltrace.ParseTraceState(state)
	return oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
		TraceID: oteltrace.TraceID(id), SpanID: oteltrace.SpanID(span), TraceState: parsed,
		TraceFlags: oteltrace.TraceFlags(0).WithSampled(sampled), Remote: remote,
	})
}

func spanKind(k trace.Kind) oteltrace.SpanKind {
	switch k {
	case trace.Server:
		return oteltrace.SpanKindServer
	case trace.Client:
		return oteltrace.SpanKindClient
	default:
		return oteltrace.SpanKindInternal
	}
}

func keyValues(attributes []trace.Attribute) []attribute.KeyValue {
	all := make([]attribute.KeyValue, 0, len(attributes))
	for _, a := range attributes {
		if a.IsNumber {
			all = append(all, attribute.Int64(a.Key, a.Number))
		} else {
			all = append(all, attribute.String(a.Key, a.Text))
		}
	}
	return all
}
