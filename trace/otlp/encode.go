package otlp

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/apikeel/kelson/trace"
)

// scope is the instrumentation scope of the spans.
const scope = "github.com/apikeel/kelson/trace"

// Bits of the flags of spans and links.
const (
	flagSampled   = 1 << 0
	flagHasRemote = 1 << 8
	flagRemote    = 1 << 9
)

// statusError is the status code of a failed span.
const statusError = 2

// appendRequest appends an ExportTraceServiceRequest.
func appendRequest(b []byte, resource []trace.Attribute, spans []trace.Data) []byte {
	return appendMessage(b, 1, func(b []byte) []byte { // ResourceSpans
		b = appendMessage(b, 1, func(b []byte) []byte { return appendAttributes(b, 1, resource) })
		return appendMessage(b, 2, func(b []byte) []byte { // ScopeSpans
			b = appendMessage(b, 1, func(b []byte) []byte { return appendString(b, 1, scope) })
			for i := range spans {
				b = appendMessage(b, 2, func(b []byte) []byte { return appendSpan(b, &spans[i]) })
			}
			return b
		})
	})
}

func appendSpan(b []byte, d *trace.Data) []byte {
	b = appendBytes(b, 1, d.Trace[:])
	b = appendBytes(b, 2, d.Span[:])
	b = appendString(b, 3, d.State)
	if d.Parent != (trace.SpanID{}) {
		b = appendBytes(b, 4, d.Parent[:])
	}
	b = appendString(b, 5, d.Name)
	b = appendNumber(b, 6, uint64(d.Kind))
	b = appendTime(b, 7, d.Start)
	b = appendTime(b, 8, d.End)
	b = appendAttributes(b, 9, d.Attributes)
	for i := range d.Events {
		b = appendMessage(b, 11, func(b []byte) []byte {
			b = appendTime(b, 1, d.Events[i].Time)
			b = appendString(b, 2, d.Events[i].Name)
			return appendAttributes(b, 3, d.Events[i].Attributes)
		})
	}
	if l := d.Link; l != nil {
		b = appendMessage(b, 13, func(b []byte) []byte {
			b = appendBytes(b, 1, l.Trace[:])
			b = appendBytes(b, 2, l.Span[:])
			b = appendString(b, 3, l.State)
			return appendFlags(b, 6, l.Sampled, true)
		})
	}
	if d.Failed {
		b = appendMessage(b, 15, func(b []byte) []byte { return appendNumber(b, 3, statusError) })
	}
	return appendFlags(b, 16, true, d.ParentRemote)
}

func appendFlags(b []byte, field protowire.Number, sampled, remote bool) []byte {
	flags := uint32(flagHasRemote)
	if sampled {
		flags |= flagSampled
	}
	if remote {
		flags |= flagRemote
	}
	return protowire.AppendFixed32(protowire.AppendTag(b, field, protowire.Fixed32Type), flags)
}

func appendAttributes(b []byte, field protowire.Number, attributes []trace.Attribute) []byte {
	for _, a := range attributes {
		b = appendMessage(b, field, func(b []byte) []byte { // KeyValue
			b = appendString(b, 1, a.Key)
			return appendMessage(b, 2, func(b []byte) []byte { // AnyValue
				if a.IsNumber {
					return protowire.AppendVarint(protowire.AppendTag(b, 3, protowire.VarintType), uint64(a.Number))
				}
				return protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), a.Text)
			})
		})
	}
	return b
}

// appendMessage appends a field with a message.
func appendMessage(b []byte, field protowire.Number, fill func([]byte) []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), fill(nil))
}

func appendBytes(b []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), value)
}

func appendString(b []byte, field protowire.Number, value string) []byte {
	if value == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), value)
}

func appendNumber(b []byte, field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), value)
}

func appendTime(b []byte, field protowire.Number, t time.Time) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), uint64(t.UnixNano()))
}
