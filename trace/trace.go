// Package trace says where the time of a request goes: spans, which know their
// parents, in this process and, by the headers of the W3C, in others.
//
// A context carries a span or nothing. Without one Start does nothing, and the
// nil Span that it returns has all methods, so that whoever measures something
// need not know whether anybody wants to know.
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

// ID names a trace, SpanID a span in it. Zero is none.
type (
	ID     [16]byte
	SpanID [8]byte
)

// Kind is the part that a process has in what a span is about. The numbers are
// OTLP's.
type Kind uint8

// The kinds of spans.
const (
	Internal Kind = 1 + iota
	Server
	Client
)

// Attribute is something that is known of a span: text, or a number.
type Attribute struct {
	Key    string
	Text   string
	Number int64
	// IsNumber: it is Number.
	IsNumber bool
}

// maxText is how many bytes a text has. Clients choose some, and spans wait in a queue
// to be sent.
const maxText = 4 << 10

// String is a text, or as much of it as spans may have.
func String(key, value string) Attribute {
	if len(value) > maxText {
		value = value[:maxText] + "...TRUNCATED"
	}
	return Attribute{Key: key, Text: value}
}

// Int is a number.
func Int(key string, value int64) Attribute {
	return Attribute{Key: key, Number: value, IsNumber: true}
}

// Event is something that has happened in a span.
type Event struct {
	Name       string
	Time       time.Time
	Attributes []Attribute
}

// Data is what there is to tell of a span when it has ended.
type Data struct {
	Trace        ID
	Span, Parent SpanID
	State        string // tracestate, which others add to
	Name         string
	Kind         Kind
	Start, End   time.Time
	Attributes   []Attribute
	Events       []Event
	// Failed: what was done did not work.
	Failed bool
	// Link is a span that caused this one without being its parent.
	Link *Remote
	// ParentRemote: the parent is in another process.
	ParentRemote bool
}

// maxAttributes and maxEvents bound what a span can have.
const (
	maxAttributes = 128
	maxEvents     = 128
)

// Tracer decides which traces are kept.
type Tracer struct {
	// Ratio is the part of traces that begin here and are kept, from 0 to 1.
	Ratio float64
	// Export gets spans that have ended. It must not block.
	Export func(Data)
}

// Remote is a span in another process, as headers tell of it.
type Remote struct {
	Trace   ID
	Span    SpanID
	Sampled bool
	State   string
}

// Span is something that takes time. A nil Span is one that nobody wants to know
// of.
type Span struct {
	tracer *Tracer // nil if it is only passed on
	remote Remote  // what others are told of it

	mu    sync.Mutex
	data  Data
	ended bool
}

// Root begins the first span of a request in this process. If trusted, a remote
// one is its parent, and has decided whether it is kept; otherwise it is only
// linked to. It returns a span that may not be kept, but is passed on.
func (t *Tracer) Root(remote *Remote, trusted bool, name string, kind Kind, start time.Time) *Span {
	s := &Span{tracer: t, data: Data{Name: name, Kind: kind, Start: start}}
	if remote != nil && trusted {
		s.remote = Remote{Trace: remote.Trace, Sampled: remote.Sampled, State: remote.State}
		s.data.Parent, s.data.ParentRemote = remote.Span, true
	} else {
		binary.BigEndian.PutUint64(s.remote.Trace[:8], rand.Uint64())
		binary.BigEndian.PutUint64(s.remote.Trace[8:], rand.Uint64()|1)
		// The part of an ID that is compared is the one that others compare.
		s.remote.Sampled = t.Ratio >= 1 || float64(binary.BigEndian.Uint64(s.remote.Trace[8:])>>1) < t.Ratio*(1<<63)
		s.data.Link = remote
	}
	s.identify()
	return s
}

func (s *Span) identify() {
	binary.BigEndian.PutUint64(s.remote.Span[:], rand.Uint64()|1)
	s.data.Trace, s.data.Span, s.data.State = s.remote.Trace, s.remote.Span, s.remote.State
}

// Passed is a span that nothing is kept of here: others are told of it as it
// came.
func Passed(remote Remote) *Span { return &Span{remote: remote} }

// Recording reports whether the span is kept.
func (s *Span) Recording() bool { return s != nil && s.tracer != nil && s.remote.Sampled }

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

// Event notes that something has happened.
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

// Fail notes that it did not work; with an error it says why.
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

// End ends the span. Only the first time counts.
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

// Key is what a context is asked for its span with. A context of one's own can
// answer with a *Span.
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

// Start begins a span within the one of the context. If that is not kept, it
// returns the context as it is, and nil.
func Start(ctx context.Context, name string, attributes ...Attribute) (context.Context, *Span) {
	parent := From(ctx)
	if !parent.Recording() {
		return ctx, nil
	}
	return parent.child(ctx, name, Internal, attributes)
}

// StartClient begins a span that is about a request to somebody else.
func StartClient(ctx context.Context, name string, attributes ...Attribute) (context.Context, *Span) {
	parent := From(ctx)
	if !parent.Recording() {
		return ctx, nil
	}
	return parent.child(ctx, name, Client, attributes)
}

func (s *Span) child(ctx context.Context, name string, kind Kind, attributes []Attribute) (context.Context, *Span) {
	c := &Span{tracer: s.tracer, remote: s.remote, data: Data{Name: name, Kind: kind, Start: time.Now(), Parent: s.remote.Span, Attributes: attributes}}
	c.identify()
	return With(ctx, c), c
}

// The headers of the W3C.
const (
	parentHeader = "Traceparent"
	stateHeader  = "Tracestate"
)

// FromHeader reads the span that a request comes from. It is nil if there is
// none, or none that makes sense.
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

// Inject tells of the span of a context in the headers of a request. Those that
// are there are replaced.
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

// Headers returns traceparent and tracestate for the span of a context; empty
// ones if there is none.
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

// Outgoing begins a span about a request to another server, and tells that
// server of it. The context is the one that the request is made for.
func Outgoing(ctx context.Context, r *http.Request) *Span {
	parent := From(ctx)
	if parent == nil {
		return nil
	}
	ctx, span := StartClient(ctx, "HTTP "+r.Method, requested(r)...)
	Inject(ctx, r.Header)
	return span
}

// Outgoing is the function of the same name for requests that may be made for
// nobody's request: they are traces of their own. The tracer may be nil.
func (t *Tracer) Outgoing(ctx context.Context, r *http.Request) *Span {
	if t == nil || From(ctx) != nil {
		return Outgoing(ctx, r)
	}
	span := t.Root(nil, false, "HTTP "+r.Method, Client, time.Now())
	span.Set(requested(r)...)
	Inject(With(ctx, span), r.Header)
	return span
}

func requested(r *http.Request) []Attribute {
	return []Attribute{String("http.request.method", r.Method), String("server.address", r.URL.Hostname()), String("url.full", r.URL.Redacted())}
}

// Answered notes the answer to a request, and ends its span.
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
