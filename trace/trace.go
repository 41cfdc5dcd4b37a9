// Package trace records spans, with parents in this process and, by W3C trace context
// headers, in others. Start at Tracer and Span.
//
// A context carries a span or nothing. Without one Start does nothing, and the nil Span
// that it returns has all methods, so that code that records need not check whether
// tracing is on.
package trace

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// ID identifies a trace, SpanID a span in it. Zero is none.
type (
	ID     [16]byte
	SpanID [8]byte
)

// Kind is the role of a span; the numbers are OTLP's.
type Kind uint8

// The kinds of spans.
const (
	Internal Kind = 1 + iota
	Server
	Client
)

// Attribute is a key with a text or a number.
type Attribute struct {
	Key    string
	Text   string
	Number int64
	// IsNumber: the value is Number, not Text.
	IsNumber bool
}

// maxText is the largest length of a text in bytes. Some are chosen by clients, and
// spans wait in a queue.
const maxText = 4 << 10

// String returns a text attribute, truncated to maxText.
func String(key, value string) Attribute {
	if len(value) > maxText {
		value = value[:maxText] + "...TRUNCATED"
	}
	return Attribute{Key: key, Text: value}
}

// Int returns a number attribute.
func Int(key string, value int64) Attribute {
	return Attribute{Key: key, Number: value, IsNumber: true}
}

// Event is an event within a span.
type Event struct {
	Name       string
	Time       time.Time
	Attributes []Attribute
}

// Data is a finished span, as it is exported.
type Data struct {
	Trace        ID
	Span, Parent SpanID
	State        string // the tracestate header
	Name         string
	Kind         Kind
	Start, End   time.Time
	Attributes   []Attribute
	Events       []Event
	// Failed: the operation failed.
	Failed bool
	// Link is a span that caused this one without being its parent.
	Link *Remote
	// ParentRemote: the parent is in another process.
	ParentRemote bool
}

// Largest numbers of attributes and events of a span.
const (
	maxAttributes = 128
	maxEvents     = 128
)

// Tracer decides which traces are sampled.
type Tracer struct {
	// Ratio is the part of the traces beginning here that is sampled, from 0 to 1.
	Ratio float64
	// Export gets finished spans. It must not block.
	Export func(Data)
}

// Remote is the span of another process, from the headers of a request.
type Remote struct {
	Trace   ID
	Span    SpanID
	Sampled bool
	State   string
}

// Span is a timed operation. A nil Span records nothing.
type Span struct {
	tracer *Tracer // nil if the span is only propagated
	remote Remote  // what is propagated to others

	mu    sync.Mutex
	data  Data
	ended bool
}

// Root begins the first span of a request in this process. If trusted, the remote span
// is its parent and decides about sampling; otherwise it is only linked. The span may
// not be sampled, but is propagated.
func (t *Tracer) Root(remote *Remote, trusted bool, name string, kind Kind, start time.Time) *Span {
	s := &Span{tracer: t, data: Data{Name: name, Kind: kind, Start: start}}
	if remote != nil && trusted {
		s.remote = Remote{Trace: remote.Trace, Sampled: remote.Sampled, State: remote.State}
		s.data.Parent, s.data.ParentRemote = remote.Span, true
	} else {
		binary.BigEndian.PutUint64(s.remote.Trace[:8], rand.Uint64())
		binary.BigEndian.PutUint64(s.remote.Trace[8:], rand.Uint64()|1)
		// Compare the same part of the ID as other implementations do.
		s.remote.Sampled = t.Ratio >= 1 || float64(binary.BigEndian.Uint64(s.remote.Trace[8:])>>1) < t.Ratio*(1<<63)
		s.data.Link = remote
	}
	s.setIDs()
	return s
}

func (s *Span) setIDs() {
	binary.BigEndian.PutUint64(s.remote.Span[:], rand.Uint64()|1)
	s.data.Trace, s.data.Span, s.data.State = s.remote.Trace, s.remote.Span, s.remote.State
}

// Passed returns a span that is not recorded here: the remote one is propagated as it
// is.
func Passed(remote Remote) *Span { return &Span{remote: remote} }

// Recording reports whether the span is recorded.
func (s *Span) Recording() bool { return s != nil && s.tracer != nil && s.remote.Sampled }

// Name returns the name of the span; empty if it is not recorded.
func (s *Span) Name() string {
	if !s.Recording() {
		return ""
	}
	return s.data.Name
}

// Trace returns the ID of the trace; the zero ID if there is none.
func (s *Span) Trace() ID {
	if s == nil {
		return ID{}
	}
	return s.remote.Trace
}

// Set adds attributes.
func (s *Span) Set(attributes ...Attribute) {
	if !s.Recording() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended && len(s.data.Attributes)+len(attributes) <= maxAttributes {
		s.data.Attributes = append(s.data.Attributes, attributes...)
	}
}

// Event adds an event.
func (s *Span) Event(name string, attributes ...Attribute) {
	if !s.Recording() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended && len(s.data.Events) < maxEvents {
		s.data.Events = append(s.data.Events, Event{name, time.Now(), attributes})
	}
}

// Fail marks the operation as failed, with an event for err if it is not nil.
func (s *Span) Fail(err error) {
	if !s.Recording() {
		return
	}
	if err != nil {
		s.Event("exception", String("exception.message", err.Error()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data.Failed = true
}

// End ends the span and exports it. Only the first call has an effect.
func (s *Span) End() {
	if !s.Recording() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended, s.data.End = true, time.Now()
	s.tracer.Export(s.data)
}

type contextKey struct{}

// Key is the context key of the span, for custom context types that return a *Span.
func Key() any { return contextKey{} }

// With returns a context that carries a span.
func With(ctx context.Context, s *Span) context.Context {
	return context.WithValue(ctx, contextKey{}, s)
}

// From returns the span that a context carries, or nil.
func From(ctx context.Context) *Span {
	s, _ := ctx.Value(contextKey{}).(*Span)
	return s
}

// Start begins a child of the context's span. If that is not recorded, it returns ctx
// and nil.
func Start(ctx context.Context, name string, attributes ...Attribute) (context.Context, *Span) {
	parent := From(ctx)
	if !parent.Recording() {
		return ctx, nil
	}
	return parent.child(ctx, name, Internal, attributes)
}

// StartClient is Start for a request to another server.
func StartClient(ctx context.Context, name string, attributes ...Attribute) (context.Context, *Span) {
	parent := From(ctx)
	if !parent.Recording() {
		return ctx, nil
	}
	return parent.child(ctx, name, Client, attributes)
}

func (s *Span) child(ctx context.Context, name string, kind Kind, attributes []Attribute) (context.Context, *Span) {
	c := &Span{tracer: s.tracer, remote: s.remote, data: Data{Name: name, Kind: kind, Start: time.Now(), Parent: s.remote.Span, Attributes: attributes}}
	c.setIDs()
	return With(ctx, c), c
}

// W3C trace context headers.
const (
	parentHeader = "Traceparent"
	stateHeader  = "Tracestate"
)

// FromHeader returns the remote span of a request; nil if there is no valid one.
func FromHeader(h http.Header) *Remote {
	values := h[parentHeader]
	if len(values) == 0 {
		return nil
	}
	parts := strings.Split(values[0], "-")
	if len(parts) < 4 || len(parts[0]) != 2 || parts[0] == "ff" || parts[0] == "00" && len(parts) != 4 || strings.ToLower(values[0]) != values[0] {
		return nil
	}
	var version, flags [1]byte
	r := &Remote{State: strings.Join(h[stateHeader], ",")}
	for _, part := range []struct {
		to   []byte
		text string
	}{{version[:], parts[0]}, {r.Trace[:], parts[1]}, {r.Span[:], parts[2]}, {flags[:], parts[3]}} {
		if len(part.text) != 2*len(part.to) {
			return nil
		}
		if _, err := hex.Decode(part.to, []byte(part.text)); err != nil {
			return nil
		}
	}
	if r.Trace == (ID{}) || r.Span == (SpanID{}) {
		return nil
	}
	r.Sampled = flags[0]&1 != 0
	return r
}

// Inject sets the headers of a request to the context's span, replacing those that are
// there.
func Inject(ctx context.Context, h http.Header) {
	parent, state := Headers(ctx)
	if parent == "" {
		return
	}
	h[parentHeader] = []string{parent}
	delete(h, stateHeader)
	if state != "" {
		h[stateHeader] = []string{state}
	}
}

// Headers returns traceparent and tracestate for the context's span, empty without one.
func Headers(ctx context.Context) (parent, state string) {
	s := From(ctx)
	if s == nil {
		return "", ""
	}
	flags := "-00"
	if s.remote.Sampled {
		flags = "-01"
	}
	return "00-" + hex.EncodeToString(s.remote.Trace[:]) + "-" + hex.EncodeToString(s.remote.Span[:]) + flags, s.remote.State
}

// Outgoing begins a span for a request to another server, and sets its headers. ctx is
// that of the causing request.
func Outgoing(ctx context.Context, r *http.Request) *Span {
	parent := From(ctx)
	if parent == nil {
		return nil
	}
	ctx, span := StartClient(ctx, "HTTP "+r.Method, requestAttributes(r)...)
	Inject(ctx, r.Header)
	return span
}

// Outgoing is the function Outgoing for requests that may have no causing request:
// these begin a new trace. The tracer may be nil.
func (t *Tracer) Outgoing(ctx context.Context, r *http.Request) *Span {
	if t == nil || From(ctx) != nil {
		return Outgoing(ctx, r)
	}
	span := t.Root(nil, false, "HTTP "+r.Method, Client, time.Now())
	span.Set(requestAttributes(r)...)
	Inject(With(ctx, span), r.Header)
	return span
}

func requestAttributes(r *http.Request) []Attribute {
	return []Attribute{String("http.request.method", r.Method), String("server.address", r.URL.Hostname()), String("url.full", r.URL.Redacted())}
}

// Answered records the response of a request and ends its span.
func (s *Span) Answered(resp *http.Response, err error) {
	switch {
	case !s.Recording():
		return
	case err != nil:
		s.Fail(err)
	default:
		s.Set(Int("http.response.status_code", int64(resp.StatusCode)))
		if resp.StatusCode >= http.StatusBadRequest {
			s.Fail(nil)
		}
	}
	s.End()
}
