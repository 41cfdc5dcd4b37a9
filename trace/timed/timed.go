// Package timed records where time goes within a request: in the trace that the request
// belongs to, and in the log if it was slow. Start at Start and Span.
package timed

import (
	"context"
	"net/http"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/trace"
)

// Span is a timed operation, both a trace span and a timeline entry. The zero Span
// records nothing.
type Span struct {
	trace *trace.Span
	line  *request.Timeline
	// borrowed: the trace span is ended by who has begun it.
	borrowed bool
}

// Wanted reports whether anything is recorded, so that the caller can skip describing
// it.
func Wanted(ctx context.Context) bool {
	return trace.From(ctx).Recording() || request.TimelineFrom(ctx) != nil
}

// Start begins an operation within a request. It is logged only if it takes longer than
// threshold.
func Start(ctx context.Context, name string, threshold time.Duration, attributes ...trace.Attribute) (context.Context, Span) {
	line := request.TimelineFrom(ctx)
	ctx, span := trace.Start(ctx, name, attributes...)
	if line == nil {
		return ctx, Span{trace: span}
	}
	return ctx, Span{trace: span, line: line.Nest(name, threshold, fields(attributes)...)}
}

// Within is Start for an operation whose trace span a caller has begun: events are added
// to the span of ctx, which the caller ends.
func Within(ctx context.Context, name string, threshold time.Duration, attributes ...trace.Attribute) Span {
	s := Span{trace: trace.From(ctx), borrowed: true}
	if line := request.TimelineFrom(ctx); line != nil {
		s.line = line.Nest(name, threshold, fields(attributes)...)
	}
	return s
}

// Event records an event of the operation.
func (s Span) Event(name string, attributes ...trace.Attribute) {
	s.trace.Event(name, attributes...)
	if s.line != nil {
		s.line.Step(name, fields(attributes)...)
	}
}

// First is Event at the beginning of the operation, Last at its end: they need not read
// the clock.
func (s Span) First(name string) {
	s.trace.Event(name)
	s.line.First(name)
}

// Last is Event at the end of the operation.
func (s Span) Last(name string) {
	s.trace.Event(name)
	s.line.Last(name)
}

// End ends the operation.
func (s Span) End() {
	if !s.borrowed {
		s.trace.End()
	}
	s.line.End()
}

// EndVerb ends an operation that Verb has begun.
func (s Span) EndVerb(req *request.Request) {
	s.trace.End()
	req.Timed()
}

// Verb begins the main operation of a request. It is on the hot path: attributes is
// called only if a trace is recorded.
func Verb(ctx context.Context, req *request.Request, name string, attributes func() []trace.Attribute) (context.Context, Span) {
	req.Time(name)
	var span *trace.Span
	if trace.From(ctx).Recording() {
		ctx, span = trace.Start(ctx, name, attributes()...)
	}
	return ctx, Span{trace: span, line: req.Timeline()}
}

func fields(attributes []trace.Attribute) []request.Field {
	if len(attributes) == 0 {
		return nil
	}
	all := make([]request.Field, len(attributes))
	for i, a := range attributes {
		all[i] = request.Field{Key: a.Key, Value: a.Text}
		if a.IsNumber {
			all[i].Value = a.Number
		}
	}
	return all
}

// maxUserAgent is the largest recorded length of the User-Agent.
const maxUserAgent = 1024

// Attributes returns the attributes of a request for a resource.
func Attributes(r *http.Request, req *request.Request, verb string) []trace.Attribute {
	client := "unknown"
	if ip := utilnet.GetClientIP(r); ip != nil {
		client = ip.String()
	}
	scope, name := "cluster", req.Name
	if req.Verb == request.Create && len(req.Parts) < 2 {
		name = "" // the path of a create has no name
	}
	switch {
	case req.Name != "" || req.Verb == request.Create:
		scope = "resource"
	case req.Namespace != "":
		scope = "namespace"
	}
	agent := utilnet.GetHTTPClient(r)
	if len(agent) > maxUserAgent {
		agent = agent[:maxUserAgent] + "...TRUNCATED"
	}
	return []trace.Attribute{
		trace.String("accept", r.Header.Get("Accept")), trace.String("audit-id", req.LoggedID()), trace.String("client", client),
		trace.String("api-group", req.Group), trace.String("api-version", req.Version), trace.String("name", name),
		trace.String("subresource", req.Subresource), trace.String("namespace", req.Namespace), trace.String("protocol", r.Proto),
		trace.String("resource", req.Resource), trace.String("scope", scope), trace.String("url", r.URL.Path),
		trace.String("user-agent", agent), trace.String("verb", verb),
	}
}

// Text returns the log texts of slow operations of a request, none if nothing was slow.
// attributes returns the attributes of the span of a request.
func Text(req *request.Request, now time.Time, number func() uint32, all bool, attributes func() []trace.Attribute) (texts []string) {
	for _, t := range req.Timeline().Slow(now) {
		var own []request.Field
		if t == req.Timeline() {
			own = fields(attributes())
		}
		texts = append(texts, t.Text(number(), all, own...))
	}
	return texts
}
