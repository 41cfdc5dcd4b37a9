// Package timed tells what takes time within a request to whoever wants to know:
// to the trace that the request is part of, and to the log if it was slow.
package timed

import (
	"context"
	"net/http"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/trace"
)

// Span is something that takes time. The zero Span is one that nobody wants to know
// of.
type Span struct {
	trace *trace.Span
	line  *request.Timeline
}

// Wanted reports whether anybody wants to know what takes time: it saves the work
// of describing it.
func Wanted(ctx context.Context) bool {
	return trace.From(ctx).Recording() || request.TimelineFrom(ctx) != nil
}

// Start begins something within a request. What takes less time than the threshold is
// not for the log.
func Start(ctx context.Context, name string, threshold time.Duration, attributes ...trace.Attribute) (context.Context, Span) {
	line := request.TimelineFrom(ctx)
	ctx, span := trace.Start(ctx, name, attributes...)
	if line == nil {
		return ctx, Span{trace: span}
	}
	return ctx, Span{span, line.Nest(name, threshold, fields(attributes)...)}
}

// Event notes that something has happened.
func (s Span) Event(name string, attributes ...trace.Attribute) {
	s.trace.Event(name, attributes...)
	if s.line != nil {
		s.line.Step(name, fields(attributes)...)
	}
}

// First is Event for who begins with it, and Last for who ends with it: they cost
// less.
func (s Span) First(name string) {
	s.trace.Event(name)
	s.line.First(name)
}

// Last is the last event.
func (s Span) Last(name string) {
	s.trace.Event(name)
	s.line.Last(name)
}

// End ends it.
func (s Span) End() {
	s.trace.End()
	s.line.End()
}

// EndVerb ends what Verb has begun.
func (s Span) EndVerb(req *request.Request) {
	s.trace.End()
	req.Timed()
}

// Verb begins what a request is for. It does not cost more than it must: the
// attributes are only those of a trace, and those of the log are known to it.
func Verb(ctx context.Context, req *request.Request, name string, attributes func() []trace.Attribute) (context.Context, Span) {
	req.Time(name)
	var span *trace.Span
	if trace.From(ctx).Recording() {
		ctx, span = trace.Start(ctx, name, attributes()...)
	}
	return ctx, Span{span, req.Timeline()}
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

// maxUserAgent is how much is told of what clients call themselves.
const maxUserAgent = 1024

// Attributes are what is told of a request for a resource.
func Attributes(r *http.Request, req *request.Request, verb string) []trace.Attribute {
	client := "unknown"
	if ip := utilnet.GetClientIP(r); ip != nil {
		client = ip.String()
	}
	scope, name := "cluster", req.Name
	if req.Verb == request.Create && len(req.Parts) < 2 {
		name = "" // the path has none
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

// Text tells of what was slow in a request, as Timeline.Text does: nothing if nothing
// was. attributes are those of what the request is for.
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
